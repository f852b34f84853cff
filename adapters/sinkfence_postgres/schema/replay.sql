  -- For a service's door: refuses as a guard does. Nothing is raised, nothing is held.
  create or replace function sinkfence.recognise(job_id text, generation bigint, owner text) returns void
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $fn$
  declare
    seen bigint;
    seen_owner text;
  begin
    perform sinkfence.check_token(job_id, generation, owner);
    perform sinkfence.bound_waits();
    select m.max_generation, m.owner into seen, seen_owner from sinkfence.mark m
     where m.job_id = recognise.job_id collate "C";
    perform sinkfence.judge(job_id, generation, owner, seen, seen_owner);
  end $fn$;

  -- A request under an idempotency key: whether it is the only one of its generation, and what was answered to it before.
  -- Lock, then read: two statements, so that what is read is no older than the lock. That is held to the end of the
  -- transaction, which keeps the answer. Others of the generation don't wait for it. A newer generation has a lock of its
  -- own: nothing that this one still does can be committed.
  create or replace function sinkfence.claim(job_id text, generation bigint, owner text, key text,
    out free boolean, out fingerprint text, out answer text)
  language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $fn$
  begin
    perform sinkfence.recognise(job_id, generation, owner);  -- a stale owner is told nothing
    -- The transaction idles for as long as the handler runs. Were it ended for that, the lock would be lost, and a
    -- repetition would run beside the first one; the answer would be kept nowhere.
    perform set_config(s.name, '0', true) from pg_settings s
     where s.name in ('idle_in_transaction_session_timeout', 'transaction_timeout');
    free := pg_try_advisory_xact_lock(hashtextextended(key || ':' || generation, 7308332182883852906));
    select l.fingerprint, l.result::text into claim.fingerprint, claim.answer from sinkfence.ledger l
     where l.scope = 'http:' || claim.job_id collate "C" and l.key = claim.key collate "C";
  end $fn$;
  grant execute on function sinkfence.recognise, sinkfence.claim to sinkfence_writer;
