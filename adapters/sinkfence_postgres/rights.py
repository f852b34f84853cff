"""Who can go round the check: by changing what is ours, or by keeping protected tables from looking."""

from __future__ import annotations

from typing import Final

from sinkfence.findings import Finding
from sinkfence_postgres.plans import Plan
from sinkfence_postgres.statements import Query

# The roles of applications are those that log in and write, and the one that asks. What is a SET ROLE away,
# or a GRANT to oneself, is within their reach: MEMBER, not USAGE. Before PostgreSQL 16 memberships have no
# options: each lets one inherit, and SET ROLE.
APPLICATIONS: Final = """
WITH RECURSIVE writer (oid) AS (
  SELECT cast(cast('sinkfence_writer' AS regrole) AS oid)
  UNION SELECT m.member FROM writer w JOIN pg_auth_members m ON m.roleid = w.oid
   WHERE 'false' IS DISTINCT FROM to_jsonb(m) ->> 'inherit_option' OR to_jsonb(m) ->> 'set_option' = 'true'
), application (oid, super) AS (
  SELECT r.oid, r.rolsuper FROM pg_roles r
   WHERE r.rolcanlogin AND r.oid IN (TABLE writer) OR r.rolname = session_user AND NOT r.rolsuper
), reach (oid) AS (
  SELECT cast(0 AS oid)
  UNION SELECT r.oid FROM pg_roles r, application a
   WHERE r.oid = a.oid OR NOT a.super AND pg_has_role(a.oid, r.oid, 'MEMBER')
), power (role, says, advice) AS (
"""

POWERS: Final = """
SELECT r.oid, ' can act as sinkfence_owner, and change the marks',
       CASE WHEN r.rolname = 'sinkfence_owner' THEN 'ALTER ROLE sinkfence_owner NOLOGIN'
            WHEN r.oid IN (TABLE writer) THEN '<role> counts as an application''s, because it has '
                 || 'sinkfence_writer: if it only installs, REVOKE sinkfence_writer FROM <role>; '
                 || 'if it writes, let a superuser run REVOKE sinkfence_owner FROM <role> CASCADE'
            ELSE 'let a superuser run REVOKE sinkfence_owner FROM <role> CASCADE' END
  FROM pg_roles r
 WHERE CASE r.rolname WHEN 'sinkfence_owner' THEN r.rolcanlogin
       ELSE NOT r.rolsuper AND pg_has_role(r.oid, 'sinkfence_owner', 'MEMBER') END
UNION ALL
SELECT r.oid, ' has CREATEROLE: before PostgreSQL 16 it may GRANT itself sinkfence_owner, and any other role '
       || 'but a superuser''s', 'ALTER ROLE <role> NOCREATEROLE'
  FROM pg_roles r
 WHERE r.rolcreaterole AND NOT r.rolsuper AND cast(current_setting('server_version_num') AS int) < 160000
UNION ALL
SELECT r.oid, ' is a superuser, whom nothing stops, and can be had by who writes',
       'let the application log in as a role that is no superuser and no member of one'
  FROM pg_roles r
 WHERE r.rolsuper AND (r.oid IN (TABLE writer) OR EXISTS
       (SELECT FROM application a WHERE NOT a.super AND pg_has_role(a.oid, r.oid, 'MEMBER')))
UNION ALL
SELECT g.grantee, ' has ' || string_agg(DISTINCT g.privilege_type, ', ' ORDER BY g.privilege_type) || ' on '
       || g.name || ': who changes it by hand goes round the functions',
       'REVOKE ALL ON ' || g.name || ' FROM <role>'
  FROM (SELECT c.relname, 'table ' || cast(c.oid AS regclass) AS name, c.relowner AS owner, a.*
          FROM pg_class c LEFT JOIN pg_attribute t ON t.attrelid = c.oid,
               LATERAL (SELECT null AS part, * FROM aclexplode(c.relacl)
                         UNION ALL SELECT t.attname, * FROM aclexplode(t.attacl)) a
         WHERE c.relnamespace = cast('sinkfence' AS regnamespace) AND c.relkind = 'r'
           AND a.privilege_type <> 'SELECT'
           AND (c.relname = 'ledger' AND a.grantee = cast('sinkfence_writer' AS regrole)
                AND (a.privilege_type = 'INSERT' OR a.part = 'result')) IS NOT TRUE
         UNION ALL
        SELECT n.nspname, 'schema ' || n.nspname, n.nspowner, null, a.*
          FROM pg_namespace n, LATERAL aclexplode(n.nspacl) a
         WHERE n.nspname = 'sinkfence' AND a.privilege_type = 'CREATE') g
 WHERE g.grantee <> g.owner GROUP BY g.grantee, g.name
UNION ALL
SELECT r.oid, ' may ' || w.may, 'REVOKE ' || w.role || ' FROM <role>'
  FROM pg_roles r,
       (VALUES ('pg_write_all_data', 'write to all tables, the marks among them'),
               ('pg_write_server_files', 'write the files of the server, the marks'' among them'),
               ('pg_execute_server_program', 'run programs as the server, which may do all'),
               ('pg_create_subscription', 'have a subscription write: protected tables do not look then')
       ) w (role, may) JOIN pg_roles p ON p.rolname = w.role
 WHERE NOT r.rolsuper AND r.oid <> p.oid AND pg_has_role(r.oid, p.oid, 'MEMBER')
UNION ALL
SELECT x.role, ' ' || x.can || string_agg(cast(x.relid AS regclass) || '', ', ' ORDER BY x.relid), x.advice
  FROM (SELECT c.oid, c.relowner, 'owns, and can disable the triggers of, ',
               'ALTER TABLE ... OWNER TO a role without login, of which no writer is a member'
          FROM pg_class c
         UNION
        SELECT c.oid, a.grantee, 'has TRIGGER, and can replace the triggers, on ',
               'REVOKE TRIGGER ON ... FROM <role>'
          FROM pg_class c, LATERAL aclexplode(c.relacl) a
         WHERE a.privilege_type = 'TRIGGER' AND a.grantee <> c.relowner
         UNION
        SELECT c.oid, n.nspowner,
               'owns schema ' || quote_ident(n.nspname) || ', and can drop and make anew, ',
               CASE n.nspowner WHEN cast('pg_database_owner' AS regrole)
               THEN 'it is who owns the database: ALTER DATABASE' ELSE 'ALTER SCHEMA' END
               || ' ... OWNER TO a role without login, of which no writer is a member'
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspowner <> c.relowner) x (relid, role, can, advice)
 WHERE x.role IN (TABLE reach)
   AND x.relid IN (SELECT t.tgrelid FROM pg_trigger t
                    WHERE t.tgfoid = cast('sinkfence.refuse_write()' AS regprocedure))
 GROUP BY x.role, x.can, x.advice
"""

PARAMETERS: Final = """
UNION ALL
SELECT a.grantee, ' may ' || a.privilege_type || ' ' || p.parname
       || CASE p.parname WHEN 'session_replication_role' THEN ': protected tables do not look under replica'
          ELSE ': it can run programs as the server, which may do all' END,
       'REVOKE ' || a.privilege_type || ' ON PARAMETER ' || p.parname || ' FROM <role>'
  FROM pg_parameter_acl p CROSS JOIN LATERAL aclexplode(p.paracl) a
  LEFT JOIN pg_roles r ON r.oid = a.grantee
 WHERE r.rolsuper IS NOT TRUE
   AND (p.parname = 'session_replication_role' OR p.parname ~ '_(command|library|libraries)$')
"""
"""From PostgreSQL 15 on: GRANT SET, or ALTER SYSTEM, ON PARAMETER."""

FOUND: Final = """
)
SELECT CASE WHEN p.role IN (TABLE reach) THEN 'broken' ELSE 'weak' END,
       coalesce(quote_ident(r.rolname), 'everybody') || p.says,
       replace(p.advice, '<role>', coalesce(quote_ident(r.rolname), 'PUBLIC'))
  FROM power p LEFT JOIN pg_roles r ON r.oid = p.role
UNION ALL
SELECT 'unknown', 'this one is a superuser, whom nothing stops: what stops your application is not shown',
       'ask as the role that your application logs in with'
  FROM pg_roles r WHERE r.rolname = session_user AND r.rolsuper
UNION ALL
SELECT 'broken', 'schema sinkfence belongs to ' || quote_ident(r.rolname),
       'find out who did that, and ALTER SCHEMA sinkfence OWNER TO sinkfence_owner'
  FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
 WHERE n.nspname = 'sinkfence' AND r.rolname <> 'sinkfence_owner'
UNION ALL
SELECT 'broken', 'session_replication_role = replica is set for '
       || coalesce(quote_ident(r.rolname), 'everybody')
       || coalesce(' in database ' || quote_ident(d.datname), ''),
       'reset it: protected tables do not look then'
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
  LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE 'session_replication_role=replica' = ANY (cast(lower(cast(s.setconfig AS text)) AS text[]))
   AND (s.setdatabase = 0 OR d.datname = current_database())
UNION ALL
SELECT 'broken', o.name || ' belongs to ' || quote_ident(r.rolname),
       'find out who did that, and ALTER ... OWNER TO sinkfence_owner'
  FROM (SELECT 'table ' || cast(c.oid AS regclass) AS name, c.relowner AS owner
          FROM pg_class c WHERE c.relnamespace = cast('sinkfence' AS regnamespace) AND c.relkind = 'r'
         UNION ALL
        SELECT 'function ' || cast(p.oid AS regprocedure), p.proowner
          FROM pg_proc p WHERE p.pronamespace = cast('sinkfence' AS regnamespace)) o
  JOIN pg_roles r ON r.oid = o.owner WHERE r.rolname <> 'sinkfence_owner'
UNION ALL
SELECT 'broken', cast(c.oid AS regclass) || ' is unlogged: a crash of the server empties it',
       'ALTER TABLE ... SET LOGGED, and find out who did that: a mark may be forgotten'
  FROM pg_class c WHERE c.relnamespace = cast('sinkfence' AS regnamespace)
   AND c.relname IN ('mark', 'ledger') AND c.relpersistence <> 'p'
UNION ALL
SELECT 'note', quote_ident(session_user) || ' may not guard, nor arm',
       'GRANT sinkfence_writer TO ' || quote_ident(session_user) || ', if it is to write'
 WHERE NOT has_function_privilege(session_user, 'sinkfence.guard(text, bigint, text, boolean)', 'EXECUTE')
"""


def survey(findings: list[Finding]) -> Plan[None]:
    """Find out, for the doctor, who can go round the check, and in what else it isn't as installed."""
    ((granted,),) = yield Query("SELECT to_regclass('pg_parameter_acl') IS NOT NULL", {})
    query = APPLICATIONS + POWERS + (PARAMETERS if granted else "") + FOUND
    rows = yield Query(query, {}, rows=None)
    findings += [Finding("roles", *row) for row in rows]
    if not any(grade != "note" for grade, *_ in rows):
        findings.append(Finding("roles", "ok", "nobody that writes can go round the check"))
