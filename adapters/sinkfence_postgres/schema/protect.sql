  -- Triggers of protected tables. They are reached through a WHEN clause, so whatever comes here is to be refused: a
  -- writer that is guarded pays for the clause alone. SECURITY INVOKER, and nothing that a role could lack.
  create or replace function sinkfence.refuse_write() returns trigger
  language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  declare
    held constant text := current_setting('sinkfence.held', true);
    job constant name := tg_argv[0];
    entry text[];
    belongs_to text;
    made text;
  begin
    if starts_with(held, pg_current_xact_id_if_assigned()::text || E'\n') is not true then
      raise exception 'sinkfence: % on % without a fencing token', tg_op, tg_relid::regclass
        using errcode = 'SF002', schema = tg_table_schema, table = tg_table_name,
              hint = 'Guard the transaction before it writes: SELECT sinkfence.guard(job_id, generation, owner).';
    end if;
    entry := string_to_array(split_part(held, E'\n', 2), E'\t');
    -- null for a TRUNCATE, which touches rows of all jobs
    select r.value ->> job into belongs_to from (values (to_jsonb(old)), (to_jsonb(new))) r (value)
     where r.value is not null and (strpos(held, E'\n' || (r.value ->> job) || E'\t') > 0) is not true limit 1;
    -- A virtual column is worked out for WHEN, and is null in a trigger's row: by its expression, then.
    select format('select (%s)::text from (select ($1).*) r', pg_get_expr(d.adbin, d.adrelid)) into made
      from pg_attribute a join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where a.attrelid = tg_relid and a.attname = job and a.attgenerated = 'v' and tg_level = 'ROW';
    if made is not null and tg_op <> 'INSERT' then
      execute made into belongs_to using old;
    end if;
    if made is not null and (tg_op = 'INSERT' or tg_op = 'UPDATE' and strpos(held, E'\n' || belongs_to || E'\t') > 0) then
      execute made into belongs_to using new;
    end if;
    raise exception 'sinkfence: % on % touches %, and this transaction guards job %', tg_op, tg_relid::regclass,
        case when tg_level <> 'ROW' then 'every job'
             when not coalesce(to_jsonb(new), to_jsonb(old)) ? job
               then 'a row of a job in the column that was ' || quote_ident(job) || ' (it was renamed: protect the table again)'
             else 'a row of job ' || coalesce(to_json(belongs_to)::text, 'NULL') end,
        to_json(entry[1])
      using errcode = 'SF004', schema = tg_table_schema, table = tg_table_name, column = job,
            detail = jsonb_build_object('job_id', entry[1], 'generation', entry[2]::bigint, 'owner', entry[3],
                                        'belongs_to', belongs_to)::text,
            hint = 'Generations order the owners of one job only: guard the job that the row belongs to.';
  end $fn$;

  -- The same while a fleet moves over: counts once per transaction and table, and says who it was. By a sequence, which
  -- is no row to wait for or to conflict on under any isolation, and keeps its count when the transaction rolls back.
  create or replace function sinkfence.count_write() returns trigger
  language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  declare
    counter constant regclass := sinkfence.counter(tg_relid);
    counted text := current_setting('sinkfence.counted', true);
    head constant text := pg_current_xact_id()::text || E'\n';
    entry constant text := coalesce(counter::oid, 0) || E'\n';
  begin
    if counted is null or not starts_with(counted, head) then
      counted := head;
    end if;
    if strpos(counted, E'\n' || entry) > 0 then
      return null;
    end if;
    perform set_config('sinkfence.counted', counted || entry, true);
    begin
      perform nextval(counter);
    exception when insufficient_privilege then
      null;  -- somebody has taken back what everybody has: to count is no reason to fail
    end;
    raise warning 'sinkfence: % on % would be refused: %, by role % in application %', tg_op, tg_relid::regclass,
        case when starts_with(current_setting('sinkfence.held', true), head) then 'a row of another job'
             else 'no fencing token' end,
        session_user, to_json(current_setting('application_name'));
    return null;
  end $fn$;

  -- The sequence that counts for a table, or for the one that it is a partition or heir of.
  create or replace function sinkfence.counter(relation regclass) returns regclass
  language sql stable set search_path = pg_catalog, pg_temp as $fn$
    with recursive above (relid) as (
      select relation::oid union select i.inhparent from above a join pg_inherits i on i.inhrelid = a.relid
    )
    select s.oid::regclass from above a
      join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = a.relid
      join pg_class s on d.classid = 'pg_class'::regclass and s.oid = d.objid
     where d.deptype = 'a' and s.relkind = 'S' and starts_with(s.relname::text, 'sinkfence_misses_') limit 1
  $fn$;

  -- What a table lacks to be protected in this way, or has too much, and the statements that mend it, in their order.
  -- The test stands in the WHEN clauses: is this the transaction that was guarded, and for the row's job? Rows are
  -- looked at AFTER all else has changed them. Row triggers of a partitioned table are its partitions' too, and are
  -- there for each partition that comes later; statement triggers are for what is written to a partition by its name.
  create or replace function sinkfence.unprotected(relation regclass, job_id name, warn_only boolean)
  returns table (turn integer, lacks text, mend text)
  language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $fn$
    with recursive tree (relid) as (
      select relation::oid union select i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid
    ), part as (
      select c.oid as relid, c.oid::regclass as name, c.relispartition as cloned,
             job_id is not null or (select r.relkind = 'p' from pg_class r where r.oid = relation) as by_row
        from tree t join pg_class c on c.oid = t.relid
    ), kind as (
      select case when warn_only then 'sinkfence.count_write()' else 'sinkfence.refuse_write()' end::regprocedure as fn,
             case when job_id is null then '' else convert_to(job_id, 'UTF8') || E'\\x00' end as args,
             (select a.atttypid = 'text'::regtype from pg_attribute a where a.attrelid = relation and a.attname = job_id) as is_text
    ), wanted as (
      -- Written as pg_get_triggerdef writes it back, letter by letter, so that what is there can be held against it:
      -- CREATE OR REPLACE TRIGGER leaves name and function, and changes when it is called.
      select w.*, w.head || format('%s(%s)', (select k.fn::oid::regproc from kind k), quote_literal(job_id)) as ddl from (
        select p.relid, w.name, format(
            E'CREATE TRIGGER %s %s ON %s FOR EACH %s WHEN ((%s IS NOT TRUE)) EXECUTE FUNCTION ',
            w.name, w.event, p.name, w.level, case when more is null then this else format('(%s AND %s)', this, more) end) as head
          from part p, (values ('sinkfence_statement', 'BEFORE INSERT OR DELETE OR UPDATE', 'STATEMENT', '{}'::text[]),
                               ('sinkfence_truncate', 'BEFORE TRUNCATE', 'STATEMENT', '{}'),
                               ('sinkfence_insert', 'AFTER INSERT', 'ROW', '{new}'),
                               ('sinkfence_update', 'AFTER UPDATE', 'ROW', '{old,new}'),
                               ('sinkfence_delete', 'AFTER DELETE', 'ROW', '{old}')) w (name, event, level, sides),
               lateral (select $t$current_setting('sinkfence.held'::text, true)$t$) s (held),
               lateral (select format($t$starts_with(%s, ((pg_current_xact_id_if_assigned())::text || %L::text))$t$, held, E'\n')) t (this),
               lateral (select case when job_id is null then null when w.name = 'sinkfence_truncate' then 'false' else
                 -- no job has a tab in its name, and the entries of the setting have one after it
                 (select string_agg(format($t$(strpos((%1$s COLLATE "C"), %2$L::text) = 0)$t$
                    || $t$ AND (strpos(%3$s, ((%4$L::text || (%1$s COLLATE "C")) || %2$L::text)) > 0)$t$,
                    format(case when (select k.is_text from kind k) then '%s.%I' else '(%s.%I)::text' end, side, job_id),
                    E'\t', held, E'\n'), ' AND ')
                    from unnest(w.sides) side) end) m (more)
         where w.level = 'STATEMENT' or p.by_row and not p.cloned) w
    ), existing as (
      select p.relid, p.name as part, t.tgname as name, t.tgenabled, t.tgparentid <> 0 as cloned, r.renamed,
             f.kin and (t.tgparentid <> 0 or starts_with(pg_get_triggerdef(t.oid), w.head)) is true as fits
        from part p cross join kind k join pg_trigger t on t.tgrelid = p.relid
        left join wanted w on w.relid = p.relid and w.name = t.tgname,
             lateral (select t.tgfoid = k.fn and t.tgargs = k.args) f (kin),
             -- a WHEN clause goes with a column that is renamed, and the name in the arguments does not
             lateral (select f.kin and t.tgtype & 1 = 1 and exists
                        (select from pg_depend d join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
                          where d.classid = 'pg_trigger'::regclass and d.objid = t.oid and d.refclassid = 'pg_class'::regclass
                            and d.refobjid = t.tgrelid and a.attname <> job_id)) r (renamed)
       where t.tgfoid in ('sinkfence.refuse_write()'::regprocedure, 'sinkfence.count_write()'::regprocedure)
          or w.relid is not null
    )
    select 1, format(case when e.renamed then 'trigger %I on %s looks at another column'
                          else 'trigger %I on %s is not as protect makes it' end, e.name, e.part),
           format('drop trigger %I on %s', e.name, e.part)
      from existing e left join wanted w on w.relid = e.relid and w.name = e.name
     where not e.cloned and (not e.fits or w.relid is null)
    union all
    select 2, case when not exists (select from existing e where e.relid = w.relid and e.name = w.name)
                then format('trigger %I is missing on %s', w.name, w.relid::regclass) end, w.ddl from wanted w
     where not exists (select from existing e where e.relid = w.relid and e.name = w.name and e.fits)
    union all
    select 3, format('trigger %I on %s is disabled', e.name, e.part), format('alter table %s enable trigger %I', e.part, e.name)
      from existing e left join wanted w on w.relid = e.relid and w.name = e.name
     where e.fits and (e.cloned or w.relid is not null) and e.tgenabled not in ('O', 'A')
    union all
    select 4, 'it has no counter', format(
        'create sequence %1$I.%2$I; alter sequence %1$I.%2$I owner to %3$I; alter sequence %1$I.%2$I owned by %4$s.%5$I;'
        ' grant usage on sequence %1$I.%2$I to public', n.nspname, 'sinkfence_misses_' || c.oid, o.rolname, relation,
        (select a.attname from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped limit 1))
      from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_roles o on o.oid = c.relowner
     where c.oid = relation and warn_only and sinkfence.counter(relation) is null
    union all
    select 5, 'it has a counter', format('drop sequence %s', s) from sinkfence.counter(relation) s
     where not warn_only and s is not null
    order by 1, 2
  $fn$;

  -- Every table that has one of these triggers, or is the table of a partition that has; for the doctor.
  create or replace function sinkfence.protected()
  returns table (relation text, job_id name, warn_only boolean, lacks text, misses bigint)
  language sql stable set search_path = pg_catalog, pg_temp as $fn$
    with recursive ours as (
      select t.tgrelid, t.tgparentid, t.tgargs, t.tgfoid = 'sinkfence.count_write()'::regprocedure as warn_only
        from pg_trigger t
       where t.tgfoid in ('sinkfence.refuse_write()'::regprocedure, 'sinkfence.count_write()'::regprocedure)
    ), up (relid, top) as (
      select o.tgrelid, o.tgrelid from ours o
      union select u.relid, i.inhparent from up u join pg_inherits i on i.inhrelid = u.top
    ), root as (  -- its mode is what its own triggers say, or those of its parts
      select distinct on (u.top) u.top::regclass as relation, o.warn_only,
             nullif(convert_from(rtrim(o.tgargs, E'\\x00'), 'UTF8'), '')::name as job_id
        from up u join ours o on o.tgrelid = u.relid
       where not exists (select from pg_inherits i where i.inhrelid = u.top)
       order by u.top, u.relid <> u.top, o.tgparentid <> 0, o.tgargs desc
    )
    select r.relation::text, r.job_id, r.warn_only,
           (select string_agg(l.lacks, ', ') from sinkfence.unprotected(r.relation, r.job_id, r.warn_only) l),
           -- not for who may not read it; and null before the first
           case when has_sequence_privilege(s.oid, 'usage, select') then coalesce(pg_sequence_last_value(s.oid), 0) end
      from root r left join pg_class s on s.oid = sinkfence.counter(r.relation)
  $fn$;

  -- From its COMMIT on the table refuses whoever writes without a guard, or to a row of a job that is not guarded. For
  -- the table's owner. Harmless to repeat: where all is as it should be, nothing is locked.
  create or replace function sinkfence.protect(relation regclass, job_id name default null, warn_only boolean default false)
  returns void language plpgsql set search_path = pg_catalog, pg_temp as $fn$
  declare
    unfit record;
    column_type oid;
    step record;
  begin
    -- The look that counts would be older than the lock: partitions and triggers of meanwhile weren't seen.
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
      raise exception 'sinkfence protects a table under READ COMMITTED alone, not %', current_setting('transaction_isolation')
        using errcode = 'SF005', hint = 'BEGIN ISOLATION LEVEL READ COMMITTED';
    end if;
    if relation is null or not exists (select from pg_class c where c.oid = relation) then
      raise exception 'sinkfence: there is no such table' using errcode = '42P01';
    end if;
    for unfit in
      with recursive tree (relid) as (
        select relation::oid union select i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid
      )
      select c.oid::regclass as name, case
          when c.relkind = 'f' then 'a foreign table: what is written there is not of this database'
          when c.relkind not in ('r', 'p') then 'no table: protect the tables behind it'
          when c.relpersistence = 't' then 'a temporary table, which nobody shares'
          when c.relnamespace = 'sinkfence'::regnamespace then 'a table of sinkfence itself'
          else 'a partition: protect the table that it is a part of' end as reason
        from tree t join pg_class c on c.oid = t.relid
       where c.relkind not in ('r', 'p') or c.relpersistence = 't' or c.relnamespace = 'sinkfence'::regnamespace
          or c.relispartition and c.oid = relation limit 1
    loop
      raise exception 'sinkfence: % is %', unfit.name, unfit.reason using errcode = '42809';
    end loop;
    if job_id is not null then
      select a.atttypid into column_type from pg_attribute a
       where a.attrelid = relation and a.attname = job_id and a.attnum > 0 and not a.attisdropped;
      if not found then
        raise exception 'sinkfence: % has no column %', relation, quote_ident(job_id) using errcode = '42703';
      end if;
      while (select t.typtype = 'd' from pg_type t where t.oid = column_type) loop
        select t.typbasetype into column_type from pg_type t where t.oid = column_type;
      end loop;
      -- A job_id is compared bytewise. char(n) loses the blanks at its end, "name" all after 63 bytes.
      if column_type in ('bpchar'::regtype, 'name'::regtype)
         or (select t.typcategory <> 'S' from pg_type t where t.oid = column_type) then
        raise exception 'sinkfence: column % of % is of type %, which is no job_id: use one of type text, such as GENERATED ALWAYS AS (''order-'' || id) STORED',
          quote_ident(job_id), relation, format_type(column_type, null) using errcode = '42804';
      end if;
    end if;
    if exists (select from sinkfence.unprotected(relation, job_id, warn_only)) then
      -- First the lock, then the look that counts: of two at once the second finds everything in place, and no
      -- partition comes in between. All of the lock, since to take more later is a deadlock with who has read and
      -- is about to write.
      execute format('lock table %s in %s mode', relation,
        case when exists (select from sinkfence.unprotected(relation, job_id, warn_only) u where u.turn in (1, 5))
             then 'access exclusive' else 'share row exclusive' end);
      for step in select u.mend from sinkfence.unprotected(relation, job_id, warn_only) u order by u.turn loop
        execute step.mend;
      end loop;
    end if;
  end $fn$;
