  -- For a table that has the generation in each row: the value for that column in an UPDATE or upsert. It is worked out
  -- from the row as it is when its lock was waited for, and fails the whole statement where that is newer.
  create or replace function sinkfence.row_generation(seen anyelement, job_id text, generation bigint, owner text)
  returns bigint language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  begin
    if pg_typeof(seen) <> 'bigint'::regtype then
      raise exception 'sinkfence: a column of type % is no place for a generation: make it bigint', pg_typeof(seen)
        using errcode = 'SF005';
    end if;
    if (generation between 1 and 999999999999999) is not true then  -- null would make the row everybody's again
      raise exception 'sinkfence: a generation is from 1 to 999999999999999, not %', generation using errcode = '22023';
    end if;
    if seen > generation then
      raise exception 'sinkfence: generation % of job % is stale, a row has %', generation, to_json(job_id), seen
        using errcode = 'SF001', hint = 'Stop: no retry with this token can succeed.',
              detail = jsonb_build_object('job_id', job_id, 'generation', generation, 'owner', owner, 'mark', seen)::text;
    end if;
    return generation;
  end $fn$;
  grant execute on function sinkfence.row_generation to sinkfence_writer;
