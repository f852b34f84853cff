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
  lent boolean := false;
begin
  -- Nothing that the caller's search_path could put before the system's own names is used below.
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  -- Two installers at once: the second waits here, then finds everything in place.
  perform pg_advisory_xact_lock(7308332182883852904);
  if current_setting('server_version_num')::integer < 140000 or current_setting('server_encoding') <> 'UTF8' then
    raise exception 'sinkfence needs PostgreSQL 14 or newer and a database encoded in UTF8' using errcode = '55000';
  end if;

  -- What is looked at below would be older than what was waited for.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'sinkfence installs under READ COMMITTED alone, not %', current_setting('transaction_isolation')
      using errcode = 'SF005', hint = 'BEGIN ISOLATION LEVEL READ COMMITTED';
  end if;

  -- PARTS

  perform set_config('role', role_before, true);
  if lent then
    revoke sinkfence_owner from current_user;
  end if;
  perform set_config('search_path', path_before, true);
end $install$;
