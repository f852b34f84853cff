  -- What COMMIT has to check for the transactions under way. A row never outlives its transaction, hence unlogged.
  create unlogged table if not exists sinkfence.sealed (
    job_id     text collate "C" not null,
    generation bigint not null,
    owner      text collate "C" not null
  ) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

  -- The presence of a guarded transaction, from its guard to its end, for those who look: nobody waits for this one.
  -- The last two bytes are the generation's, so that a successor can tell its own writers from those before it.
  create or replace function sinkfence.presence_key(job_id text, generation bigint) returns bigint
  language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $fn$
    select (hashtextextended(job_id collate "C", 7308332182883852905) & ~65535::bigint) | (generation & 65535)
  $fn$;

  -- Bounds, for this transaction only, the waits that a frozen owner could cause, where the session sets no bound.
  create or replace function sinkfence.bound_waits() returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  begin
    if current_setting('lock_timeout') = '0' then
      perform set_config('lock_timeout', '5s', true);
    end if;
    if current_setting('idle_in_transaction_session_timeout') = '0' then
      perform set_config('idle_in_transaction_session_timeout', '60s', true);
    end if;
  end $fn$;

  -- Lock, then read: two statements of a VOLATILE function, so that under READ COMMITTED the second sees what was
  -- committed while the first waited. One statement, or a STABLE function, would read by a snapshot older than the lock.
  create or replace function sinkfence.lock_and_judge(job_id text, generation bigint, owner text) returns void
  language plpgsql volatile set search_path = pg_catalog, pg_temp as $fn$
  declare
    seen bigint;
    seen_owner text;
  begin
    perform pg_advisory_xact_lock_shared(sinkfence.lock_key(job_id));
    if current_setting('transaction_isolation') = 'read committed' then
      select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m
       where m.job_id = lock_and_judge.job_id collate "C";
    else
      -- One snapshot for the whole transaction, and it may be older than the lock:
      --   old: BEGIN REPEATABLE READ, reads | new: arm, COMMIT | old: COMMIT, lock granted at once, sees the old mark.
      -- A row lock makes the server notice and raise 40001.
      select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m
       where m.job_id = lock_and_judge.job_id collate "C" for share;
    end if;
    perform sinkfence.judge(job_id, generation, owner, seen, seen_owner);
  end $fn$;

  -- The seal: the check inside COMMIT. The lock that it takes is released when the commit is visible, so
  --   old: check passes | new: arm waits | old: commit done | new: mark raised, sees all that the old one wrote.
  -- SET CONSTRAINTS IMMEDIATE fires it early: then the lock is held from there on, which is lock => true.
  -- No sequential scan, which a planner prefers while the table is small and remembers when it is not: it would read the
  -- rows of all the others, and under SERIALIZABLE fail because of them.
  create or replace function sinkfence.seal() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $fn$
  begin
    perform sinkfence.lock_and_judge(new.job_id, new.generation, new.owner);
    delete from sinkfence.sealed s where s.ctid = new.ctid;
    return null;
  end $fn$;
  if not exists (select from pg_trigger t where t.tgrelid = 'sinkfence.sealed'::regclass and t.tgname = 'seal') then
    create constraint trigger seal after insert on sinkfence.sealed deferrable initially deferred
      for each row execute function sinkfence.seal();
  end if;

  -- In the writing transaction, before its first write. Default: a look that locks nothing, to fail fast, and the
  -- seal inside COMMIT, so that an owner frozen in mid-transaction never keeps its successor from arming.
  -- lock => true: checked under the lock here, and the lock is held to the end; arming waits for it.
  create or replace function sinkfence.guard(job_id text, generation bigint, owner text, lock boolean default false)
  returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
  declare
    seen bigint;
    seen_owner text;
    -- What this transaction guards: '<xid>\n<job_id>\t<generation>\t<owner>\n...', transaction-local, undone by
    -- ROLLBACK TO exactly as locks and sealed rows are. The xid unmasks what an earlier transaction has left.
    -- No check is ever left out because of it.
    held text := current_setting('sinkfence.held', true);
    head constant text := pg_current_xact_id()::text || E'\n';
    entry constant text := job_id || E'\t' || generation || E'\t' || owner || E'\n';
    other text[];
  begin
    perform sinkfence.check_token(job_id, generation, owner);
    perform sinkfence.bound_waits();
    perform pg_try_advisory_xact_lock_shared(sinkfence.presence_key(job_id, generation));
    if lock then
      perform sinkfence.lock_and_judge(job_id, generation, owner);
    else
      select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m
       where m.job_id = guard.job_id collate "C";
      perform sinkfence.judge(job_id, generation, owner, seen, seen_owner);
      insert into sinkfence.sealed values (job_id, generation, owner);
    end if;
    if held is null or not starts_with(held, head) then
      held := head;
    end if;
    if strpos(held, E'\n' || entry) > 0 then
      return;
    end if;
    if strpos(held, E'\n' || job_id || E'\t') > 0 then
      -- Two generations of one job in one transaction: the mark is at the second, so the first is stale.
      other := string_to_array(split_part(split_part(held, E'\n' || job_id || E'\t', 2), E'\n', 1), E'\t');
      perform sinkfence.judge(job_id, other[1]::bigint, other[2], generation, owner);
    end if;
    perform set_config('sinkfence.held', held || entry, true);
  end $fn$;

  -- Just before COMMIT, for clients that want to know that the transaction is still the one that was guarded: not a
  -- later one, after a COMMIT or ROLLBACK in between that nobody has noticed, of which COMMIT would check nothing.
  create or replace function sinkfence.confirm(job_id text, generation bigint, owner text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  declare
    held constant text := current_setting('sinkfence.held', true);
  begin
    if (starts_with(held, pg_current_xact_id_if_assigned()::text || E'\n')
        and strpos(held, E'\n' || job_id || E'\t' || generation || E'\t' || owner || E'\n') > 0) is not true then
      raise exception 'sinkfence: the transaction in which job % was guarded has ended, and what followed was not guarded', to_json(job_id)
        using errcode = 'SF005', hint = 'Leave COMMIT and ROLLBACK to the block, and the connection to it alone.';
    end if;
  end $fn$;

  grant execute on function sinkfence.presence_key, sinkfence.guard to sinkfence_writer;
