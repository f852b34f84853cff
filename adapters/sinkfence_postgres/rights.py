"""Who could change what is ours, beside its owner: what the marks are worth depends on it."""

from __future__ import annotations

from typing import Final

from sinkfence.findings import Finding
from sinkfence_postgres.asking import Plan
from sinkfence_postgres.statements import Query

ROLES: Final = """
SELECT 'weak', quote_ident(r.rolname) || ' can act as sinkfence_owner',
       'make sinkfence_owner NOLOGIN, and REVOKE it from all: it can change the marks'
  FROM pg_roles r
 WHERE CASE r.rolname WHEN 'sinkfence_owner' THEN r.rolcanlogin
       ELSE NOT r.rolsuper AND pg_has_role(r.oid, 'sinkfence_owner', 'MEMBER') END
UNION ALL
SELECT 'weak', quote_ident(r.rolname) || ' has CREATEROLE: before PostgreSQL 16 it may GRANT itself '
       || 'sinkfence_owner, and any other role but a superuser''s',
       'ALTER ROLE ... NOCREATEROLE'
  FROM pg_roles r
 WHERE r.rolcreaterole AND NOT r.rolsuper AND cast(current_setting('server_version_num') AS int) < 160000
UNION ALL
SELECT 'broken', 'schema sinkfence belongs to ' || quote_ident(r.rolname),
       'find out who did that, and ALTER SCHEMA sinkfence OWNER TO sinkfence_owner'
  FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
 WHERE n.nspname = 'sinkfence' AND r.rolname <> 'sinkfence_owner'
UNION ALL
SELECT 'weak', quote_ident(r.rolname) || ' writes as a superuser, whom nothing stops',
       'let the application log in as another role'
  FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member
 WHERE m.roleid = cast('sinkfence_writer' AS regrole) AND r.rolsuper
UNION ALL
SELECT 'note', 'this one is a superuser, whom nothing stops',
       'ask as the role of your application, too'
  FROM pg_roles r WHERE r.rolname = session_user AND r.rolsuper
UNION ALL
SELECT 'broken', 'session_replication_role = replica is set for '
       || coalesce(quote_ident(r.rolname), 'everybody')
       || coalesce(' in database ' || quote_ident(d.datname), ''),
       'reset it: protected tables do not look then'
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
  LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE 'session_replication_role=replica' = ANY (cast(lower(cast(s.setconfig AS text)) AS text[]))
   AND (s.setdatabase = 0 OR d.datname = current_database())
"""

OURS: Final = """
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
SELECT 'weak', coalesce(quote_ident(r.rolname), 'everybody') || ' has '
       || string_agg(DISTINCT g.privilege_type, ', ' ORDER BY g.privilege_type) || ' on ' || g.name,
       'REVOKE it: who changes it by hand goes round the functions'
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
  LEFT JOIN pg_roles r ON r.oid = g.grantee
 WHERE g.grantee <> g.owner GROUP BY r.rolname, g.name
UNION ALL
SELECT 'weak', quote_ident(r.rolname) || ' may ' || w.may, 'REVOKE ' || w.role || ' from it'
  FROM pg_roles r,
       (VALUES ('pg_write_all_data', 'write to all tables, the marks among them'),
               ('pg_write_server_files', 'write the files of the server, the marks'' among them'),
               ('pg_execute_server_program', 'run programs as the server, which may do all')) w (role, may)
 WHERE NOT r.rolsuper AND r.rolname <> w.role AND pg_has_role(r.oid, w.role, 'MEMBER')
UNION ALL
SELECT 'note', quote_ident(session_user) || ' may not guard, nor arm',
       'GRANT sinkfence_writer TO it, if it is to write'
 WHERE NOT has_function_privilege(session_user, 'sinkfence.guard(text, bigint, text, boolean)', 'EXECUTE')
"""


PARAMETERS: Final = """
UNION ALL
SELECT 'weak',
       coalesce(quote_ident(r.rolname), 'everybody') || ' may ' || a.privilege_type || ' ' || p.parname
       || CASE p.parname WHEN 'session_replication_role' THEN ': protected tables do not look under replica'
          ELSE ': it can run programs as the server, which may do all' END,
       'REVOKE ' || a.privilege_type || ' ON PARAMETER ' || p.parname || ' FROM it'
  FROM pg_parameter_acl p CROSS JOIN LATERAL aclexplode(p.paracl) a
  LEFT JOIN pg_roles r ON r.oid = a.grantee
 WHERE r.rolsuper IS NOT TRUE
   AND (p.parname = 'session_replication_role' OR p.parname ~ '_(command|library|libraries)$')
"""
"""From PostgreSQL 15 on: GRANT SET, or ALTER SYSTEM, ON PARAMETER."""


def survey(findings: list[Finding]) -> Plan[None]:
    """Find out, for the doctor, who could change the marks, and in what else they aren't as installed."""
    ((granted,),) = yield Query("SELECT to_regclass('pg_parameter_acl') IS NOT NULL", {})
    rows = yield Query(ROLES + OURS + (PARAMETERS if granted else ""), {}, rows=None)
    findings += [Finding("roles", *row) for row in rows]
    if not any(grade != "note" for grade, *_ in rows):
        findings.append(Finding("roles", "ok", "the marks are out of everybody's reach, but a superuser's"))
