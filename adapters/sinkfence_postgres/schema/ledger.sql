  -- What was done, once per scope and key: 'once:JOB' for steps of a job. Written in the transaction that does it, so
  -- that the entry and the effect are there both or neither. Inserted first; of two at once the second waits here for
  -- the end of the first, and then reads in a statement of its own: one statement would read by its older snapshot.
  create table if not exists sinkfence.ledger (
    scope       text collate "C" not null,
    key         text collate "C" not null,
    fingerprint text collate "C" not null,  -- of the content, for telling another use of the key from a repetition
    -- Under which it was entered. That of a newer owner, where it settles an outcome that was unknown, is not: writers
    -- may change the result alone. Nothing is decided by it.
    generation  bigint not null,
    result      json,                       -- as text: jsonb would refuse \u0000, and change numbers
    created_at  timestamptz not null default clock_timestamp(),
    primary key (scope, key)
  ) with (fillfactor = 80);
  -- IF NOT EXISTS would lock the table first, and wait for every step that is under way.
  if to_regclass('sinkfence.ledger_created_at') is null then
    create index ledger_created_at on sinkfence.ledger (created_at);
  end if;
  grant select, insert, update (result) on sinkfence.ledger to sinkfence_writer;

  -- For operators, whom an administrator lets: writers must not forget what was done. The oldest first, at most so
  -- many, so that a long clean-up can be made of short transactions. Their number.
  create or replace function sinkfence.clean_ledger(older_than interval, at_most integer default 10000) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $fn$
  declare
    gone bigint;
  begin
    if older_than > interval '0' and at_most > 0 then
      delete from sinkfence.ledger l using
        (select o.scope, o.key from sinkfence.ledger o where o.created_at < clock_timestamp() - older_than
          order by o.created_at limit at_most for update skip locked) old
       where l.scope = old.scope and l.key = old.key;
      get diagnostics gone = row_count;
      return gone;
    end if;
    raise exception 'sinkfence: older_than and at_most must be positive' using errcode = '22023';
  end $fn$;
