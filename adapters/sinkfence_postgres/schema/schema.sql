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

  execute format('create or replace function sinkfence.schema_version() returns integer language sql immutable as %L',
                 'select ' || version);
  grant execute on function sinkfence.schema_version to sinkfence_writer;
  grant usage on schema sinkfence to public;
