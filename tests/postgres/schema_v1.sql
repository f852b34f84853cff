-- What makes a PostgreSQL database refuse a stale owner: a mark per job, and the functions that hold writers to it.
-- One statement (a DO block), so that every driver can send it and it is applied as a whole or not at all.
-- Any client in any language is fenced by these two, the first in a transaction of its own:
--     SELECT sinkfence.arm(job_id, generation, owner)        "I am the owner now"
--     SELECT sinkfence.guard(job_id, generation, owner)      in each writing transaction; COMMIT checks once more
-- SQLSTATEs: SF001 stale, or the same number under another owner; SF003 never armed here (DETAIL is JSON in both);
-- SF005 not guarded any more; SF009 a mark cannot go back; 22023 malformed token.
do $install$
declare
  version constant integer := 1;
  role_before constant pg_catalog.text := pg_catalog.current_setting('role');
  path_before constant pg_catalog.text := pg_catalog.current_setting('search_path');
  name pg_catalog.text;
  found_version integer;
  loose record;
  lent boolean := false;
begin
  -- Nothing that the caller's search_path could put before the system's own names is used below.
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  -- Two installers at once: the second waits here, then finds everything in place.
  perform pg_advisory_xact_lock(7308332182883852904);
  if current_setting('server_version_num')::integer < 140000 or current_setting('server_encoding') <> 'UTF8' then
    raise exception 'sinkfence needs PostgreSQL 14 or newer and a database encoded in UTF8' using errcode = '55000';
  end if;

  foreach name in array array['sinkfence_owner', 'sinkfence_writer'] loop
    if not exists (select from pg_roles r where r.rolname = name) then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then
        null;  -- roles belong to the whole cluster: an installer in another database was quicker
      end;
    end if;
  end loop;
  -- Who can act as the owner can change the marks, here and in each other database of the cluster. Whoever may create
  -- roles could otherwise create this one first, and stay its member.
  select string_agg(format('%I', r.rolname), ', ') into name from pg_roles r
   where r.rolname = 'sinkfence_owner' and r.rolcanlogin
      or not r.rolsuper and r.rolname <> current_user
         and exists (select from pg_auth_members m where m.member = r.oid and m.roleid = 'sinkfence_owner'::regrole);
  if name is not null then
    raise exception 'role sinkfence_owner is open to %, who could change the marks: make it NOLOGIN, REVOKE it from its members, and install as a superuser from then on', name
      using errcode = '55000';
  end if;
  -- An installer that is no superuser acts as the owner by membership, lent for as long as this takes. From
  -- PostgreSQL 16 on, having created a role isn't enough.
  begin
    set local role sinkfence_owner;
  exception when insufficient_privilege then
    grant sinkfence_owner to current_user;
    lent := true;
  end;
  perform set_config('role', role_before, true);

  select r.rolname into name from pg_namespace n join pg_roles r on r.oid = n.nspowner where n.nspname = 'sinkfence';
  if not found then
    create schema sinkfence authorization sinkfence_owner;
  elsif name <> 'sinkfence_owner' then
    -- Somebody who may create schemas could otherwise plant a table of marks and keep the right to change it.
    raise exception 'schema sinkfence belongs to role %, not to sinkfence_owner: it is not ours to fill', name
      using errcode = '55000';
  end if;
  set local role sinkfence_owner;
  if to_regprocedure('sinkfence.schema_version()') is not null then
    execute 'select sinkfence.schema_version()' into found_version;
    if found_version > version then
      raise exception 'schema sinkfence has version %, this library knows %: use a newer library', found_version, version
        using errcode = '55000';
    end if;
  end if;

  create or replace function sinkfence.schema_version() returns integer language sql immutable as 'select 1';

  -- The highest generation seen per job, and whose it was. Read at each commit, written once per owner.
  create table if not exists sinkfence.mark (
    job_id         text collate "C" primary key,
    max_generation bigint not null check (max_generation between 1 and 999999999999999),
    owner          text collate "C" not null,
    raised_at      timestamptz not null default clock_timestamp()
  ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);

  -- What COMMIT has to check for the transactions under way. A row never outlives its transaction, hence unlogged.
  create unlogged table if not exists sinkfence.sealed (
    job_id     text collate "C" not null,
    generation bigint not null,
    owner      text collate "C" not null
  ) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

  -- The advisory lock of a job: writers share it from their check to the end of COMMIT, a raise excludes them.
  -- The seed keeps these keys apart from the application's own; two jobs that collide only wait for each other.
  create or replace function sinkfence.lock_key(job_id text) returns bigint
  language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $fn$
    select hashtextextended(job_id collate "C", 7308332182883852904)
  $fn$;

  -- The presence of a guarded transaction, from its guard to its end, for those who look: nobody waits for this one.
  -- The last two bytes are the generation's, so that a successor can tell its own writers from those before it.
  create or replace function sinkfence.presence_key(job_id text, generation bigint) returns bigint
  language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $fn$
    select (hashtextextended(job_id collate "C", 7308332182883852905) & ~65535::bigint) | (generation & 65535)
  $fn$;

  -- The rules of sinkfence.tokens.check_text and check_generation. A newline or tab in a job_id would forge an
  -- entry of the setting sinkfence.held.
  create or replace function sinkfence.check_token(job_id text, generation bigint, owner text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  begin
    if (octet_length(job_id) between 1 and 200 and octet_length(owner) between 1 and 200
        and job_id collate "C" !~ '[\u0001-\u001F\u007F-\u009F]' and owner collate "C" !~ '[\u0001-\u001F\u007F-\u009F]'
        and generation between 1 and 999999999999999) is not true then
      raise exception 'sinkfence: malformed token: job_id and owner are 1 to 200 bytes without control characters, generation is from 1 to 999999999999999'
        using errcode = '22023';
    end if;
  end $fn$;

  -- The rule, for a writer: equal and the same owner passes, everything else raises. It must raise: an answer
  -- of false or of no row stops neither a pipeline nor a COMMIT.
  create or replace function sinkfence.judge(job_id text, generation bigint, owner text, mark bigint, mark_owner text)
  returns void language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  declare
    facts text := jsonb_build_object('job_id', job_id, 'generation', generation, 'owner', owner,
                                     'mark', mark, 'same_owner', coalesce(owner = mark_owner, false))::text;
  begin
    if mark is null or mark < generation then
      raise exception 'sinkfence: generation % of job % was never armed here', generation, to_json(job_id)
        using errcode = 'SF003', detail = facts, hint = 'Call sinkfence.arm first, before reading what the write depends on.';
    elsif mark > generation then
      raise exception 'sinkfence: generation % of job % is stale, % has been seen here', generation, to_json(job_id), mark
        using errcode = 'SF001', detail = facts, hint = 'Stop: no retry with this token can succeed.';
    elsif owner <> mark_owner collate "C" then
      raise exception 'sinkfence: generation % of job % is known here under another owner', generation, to_json(job_id)
        using errcode = 'SF001', detail = facts, hint = 'Its store has issued a number twice: stop, and raise the store above it.';
    end if;
  end $fn$;

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
  create or replace function sinkfence.seal() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
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
    -- What this transaction guards: '<xid>\n<job_id>\t<generation>\t<owner>\n…', transaction-local, undone by
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

  -- The new owner, once, in a transaction of its own: from its COMMIT on nothing lower takes effect here.
  create or replace function sinkfence.arm(job_id text, generation bigint, owner text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
  declare
    seen bigint;
    seen_owner text;
  begin
    perform sinkfence.check_token(job_id, generation, owner);
    select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m where m.job_id = arm.job_id collate "C";
    if seen is null or seen < generation then
      -- A mark committed asynchronously was forgotten by a crash, and the stale owner let in again. Set here and not
      -- in a SET clause of the function, which is undone before COMMIT; never lowered from remote_apply.
      if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
      end if;
      perform sinkfence.bound_waits();
      begin
        perform pg_advisory_xact_lock(sinkfence.lock_key(job_id));  -- queues fairly, waits for those in COMMIT
      exception when lock_not_available then
        raise exception 'sinkfence: arming generation % of job % waited in vain for a transaction of an earlier owner', generation, to_json(job_id)
          using errcode = 'lock_not_available', hint = 'Try again, or end it: arm(..., evict=True), sinkfence.evict(job_id, generation, owner). One that is prepared: ROLLBACK PREPARED, see pg_prepared_xacts.';
      end;
      insert into sinkfence.mark as m (job_id, max_generation, owner) values (arm.job_id, arm.generation, arm.owner)
      on conflict on constraint mark_pkey do update
         set max_generation = excluded.max_generation, owner = excluded.owner, raised_at = clock_timestamp()
       where m.max_generation < excluded.max_generation;
      select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m where m.job_id = arm.job_id collate "C";
    end if;
    perform sinkfence.judge(job_id, generation, owner, seen, seen_owner);
  end $fn$;

  -- For evict: refuses the stale, and keeps the mark as it is to the end of the transaction.
  create or replace function sinkfence.hold_mark(job_id text, generation bigint, owner text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
  declare
    seen bigint;
    seen_owner text;
  begin
    perform sinkfence.check_token(job_id, generation, owner);
    perform sinkfence.bound_waits();
    select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m
     where m.job_id = hold_mark.job_id collate "C" for share;
    if seen >= generation then
      perform sinkfence.judge(job_id, generation, owner, seen, seen_owner);
    end if;
  end $fn$;

  -- Ends the sessions in which an earlier owner's transaction is open, as far as the caller's own login has opened
  -- them. Their number. The mark is held meanwhile. Without that:
  --   evict: not stale | successor: arm, guard | evict: ends the successor's session, of another generation than its own
  -- Only a first mark can't be held. Before it there is nobody to end, and between two statements hardly anybody comes.
  create or replace function sinkfence.evict(job_id text, generation bigint, owner text) returns bigint
  language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $fn$
  declare
    own constant bigint := sinkfence.presence_key(job_id, generation);
    role_before constant text := current_setting('role');
    ended bigint;
  begin
    perform sinkfence.hold_mark(job_id, generation, owner);
    perform set_config('role', 'none', true);  -- sessions belong to who has logged in, whatever SET ROLE says
    select count(*) filter (where pg_terminate_backend(found.pid)) into ended
      from (select distinct l.pid
              from pg_locks l join pg_stat_activity a on a.pid = l.pid,
                   lateral (select l.classid::bigint << 32 | l.objid::bigint as key) k
             where l.locktype = 'advisory' and l.granted and l.objsubid = 1
               and l.database = (select d.oid from pg_database d where d.datname = current_database())
               and (k.key # own) between 0 and 65535 and k.key <> own
               and a.usename = session_user and l.pid <> pg_backend_pid()) found;
    perform set_config('role', role_before, true);
    return ended;
  end $fn$;

  -- Marks rise or stay, whoever changes them: a hand-written UPDATE waits for the writers under way like any arm.
  create or replace function sinkfence.keep_mark() returns trigger
  language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  begin
    if tg_op = 'UPDATE' then
      perform pg_advisory_xact_lock(sinkfence.lock_key(old.job_id));
      if new.job_id = old.job_id and (new.max_generation > old.max_generation
         or (new.max_generation = old.max_generation and new.owner = old.owner)) then
        return new;
      end if;
    end if;
    raise exception 'sinkfence: a mark cannot go back, change its owner or disappear (% on sinkfence.mark)', tg_op
      using errcode = 'SF009', hint = 'A forgotten mark lets a stale owner write again.';
  end $fn$;
  if not exists (select from pg_trigger t where t.tgrelid = 'sinkfence.mark'::regclass and t.tgname = 'keep_mark') then
    create trigger keep_mark before update or delete on sinkfence.mark for each row execute function sinkfence.keep_mark();
  end if;
  if not exists (select from pg_trigger t where t.tgrelid = 'sinkfence.mark'::regclass and t.tgname = 'keep_marks') then
    create trigger keep_marks before truncate on sinkfence.mark for each statement execute function sinkfence.keep_mark();
  end if;
  -- Under session_replication_role = replica, too. Again, after DISABLE TRIGGER, or an ENABLE that has made them ordinary
  -- ones, as pg_restore --disable-triggers does; and not where nothing is amiss: this waits for writers under way.
  for loose in select t.tgrelid::regclass as relation, t.tgname from pg_trigger t
                where t.tgrelid in ('sinkfence.mark'::regclass, 'sinkfence.sealed'::regclass)
                  and t.tgname in ('seal', 'keep_mark', 'keep_marks') and t.tgenabled <> 'A' loop
    execute format('alter table %s enable always trigger %I', loose.relation, loose.tgname);
  end loop;

  revoke all on all functions in schema sinkfence from public;
  revoke all on all tables in schema sinkfence from public;
  -- A transaction may have gone on as another role (SET LOCAL ROLE, for row security), and is confirmed all the same.
  grant usage on schema sinkfence to public;
  grant execute on function sinkfence.confirm to public;
  grant execute on function sinkfence.schema_version, sinkfence.lock_key, sinkfence.presence_key, sinkfence.arm,
    sinkfence.guard, sinkfence.hold_mark, sinkfence.evict
    to sinkfence_writer;
  perform set_config('role', role_before, true);
  if lent then
    revoke sinkfence_owner from current_user;
  end if;
  perform set_config('search_path', path_before, true);
end $install$;
