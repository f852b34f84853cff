  -- The highest generation seen per job, and whose it was. Read at each commit, written once per owner.
  create table if not exists sinkfence.mark (
    job_id         text collate "C" primary key,
    max_generation bigint not null check (max_generation between 1 and 999999999999999),
    owner          text collate "C" not null,
    raised_at      timestamptz not null default clock_timestamp()
  ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);

  -- The advisory lock of a job: writers share it from their check to the end of COMMIT, a raise excludes them.
  -- The seed keeps these keys apart from the application's own; two jobs that collide only wait for each other.
  create or replace function sinkfence.lock_key(job_id text) returns bigint
  language sql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $fn$
    select hashtextextended(job_id collate "C", 7308332182883852904)
  $fn$;

  -- The rules of sinkfence.tokens.check_text and check_generation. A newline or tab in a job_id would forge an
  -- entry of the setting sinkfence.held.
  create or replace function sinkfence.check_token(job_id text, generation bigint, owner text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  begin
    if (octet_length(job_id) between 1 and 200 and octet_length(owner) between 1 and 200
        and job_id collate "C" !~ E'[\\u0001-\\u001F\\u007F-\\u009F]' and owner collate "C" !~ E'[\\u0001-\\u001F\\u007F-\\u009F]'
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

  grant execute on function sinkfence.lock_key to sinkfence_writer;
