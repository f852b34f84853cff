  -- The new owner, once, in a transaction of its own: from its COMMIT on nothing lower takes effect here.
  create or replace function sinkfence.arm(job_id text, generation bigint, owner text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
  declare
    seen bigint;
    seen_owner text;
  begin
    perform sinkfence.check_token(job_id, generation, owner);
    perform sinkfence.bound_waits();  -- the first look waits, too, where somebody has locked the table
    select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m where m.job_id = arm.job_id collate "C";
    if seen is null or seen < generation then
      -- A mark committed asynchronously was forgotten by a crash, and the stale owner let in again. Set here and not
      -- in a SET clause of the function, which is undone before COMMIT; never lowered from remote_apply.
      if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
      end if;
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
  -- Generations are told apart modulo 65536: who is exactly that far behind is taken for one's own, and stays.
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

  grant execute on function sinkfence.arm, sinkfence.hold_mark, sinkfence.evict to sinkfence_writer;
