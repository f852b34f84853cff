  -- Our triggers fire under session_replication_role = replica, too. Again, after DISABLE TRIGGER, or an ENABLE that has
  -- made them ordinary ones, as pg_restore --disable-triggers does; and not where nothing is amiss: this waits for
  -- writers under way.
  declare
    loose record;
  begin
    for loose in select c.oid::regclass as relation, t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
                  where c.relnamespace = 'sinkfence'::regnamespace and not t.tgisinternal and t.tgenabled <> 'A' loop
      execute format('alter table %s enable always trigger %I', loose.relation, loose.tgname);
    end loop;
  end;

  -- New functions are everybody's until here. What a part grants to sinkfence_writer stays.
  revoke all on all functions in schema sinkfence from public;
  revoke all on all tables in schema sinkfence from public;
  -- A transaction may have gone on as another role (SET LOCAL ROLE, for row security): it is confirmed, and writes to
  -- protected tables, all the same. To protect a table is for its owner, who needs no right to write.
  grant execute on function sinkfence.confirm, sinkfence.schema_version, sinkfence.refuse_write, sinkfence.count_write,
    sinkfence.counter, sinkfence.unprotected, sinkfence.protected, sinkfence.protect to public;
