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
  if exists (select from pg_roles r where r.rolname = 'sinkfence_owner' and r.rolcanlogin) then
    raise exception 'role sinkfence_owner can log in, and whoever does could change the marks: let a superuser run ALTER ROLE sinkfence_owner NOLOGIN, and install again'
      using errcode = '55000';
  end if;
  select string_agg(format('%I', r.rolname), ', ') into name from pg_roles r
   where not r.rolsuper and r.rolname <> current_user
     and exists (select from pg_auth_members m where m.member = r.oid and m.roleid = 'sinkfence_owner'::regrole);
  if name is not null then
    raise exception 'role sinkfence_owner is open to %, who could change the marks: let a superuser run REVOKE sinkfence_owner FROM % CASCADE, and install again, as a superuser or a role to which it is granted meanwhile', name, name
      using errcode = '55000';
  end if;
  -- What it makes would be somebody's else from the beginning.
  if exists (select from pg_default_acl d, lateral aclexplode(d.defaclacl) a
              where d.defaclrole = 'sinkfence_owner'::regrole and a.grantee <> d.defaclrole
                and (a.grantee <> 0 or d.defaclobjtype not in ('f', 'T'))) then
    raise exception 'role sinkfence_owner has default privileges that give what it makes to others: take them back with ALTER DEFAULT PRIVILEGES FOR ROLE sinkfence_owner REVOKE ALL ON ... FROM ..., see pg_default_acl'
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
