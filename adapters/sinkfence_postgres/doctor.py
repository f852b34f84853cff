"""What speaks for and against the fence in a database as it is, said with what to do about it."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from sinkfence.findings import Finding, Grade, Report
from sinkfence_postgres import protection, rights
from sinkfence_postgres.installation import VERSION
from sinkfence_postgres.plans import Elsewhere, Plan, carry_out
from sinkfence_postgres.statements import MAX_JOBS, Query

if TYPE_CHECKING:
    from sinkfence_postgres.connections import AnyTx

_INSTALL: Final = "run sinkfence_postgres.install(conn)"


def doctor(conn: AnyTx) -> Report:
    """Look at a database as its clients find it, and report it. Changes nothing; takes no special right.

    Ask as the role that your application logs in with: settings and rights are those of its sessions. That
    advisory locks exclude each other is tried with a second connection, which is opened as this one was.
    """
    return carry_out(conn, examining())


def examining() -> Plan[Report]:
    """Look at everything; where sinkfence is not installed, at little."""
    # Below, nothing that the session's search_path puts before the system's own names is used.
    ((path, database, login, version),) = yield Query(
        "SELECT pg_catalog.current_setting('search_path'), pg_catalog.current_database(), session_user,"
        " pg_catalog.current_setting('server_version')",
        {},
    )
    yield _search("pg_catalog, pg_temp")
    findings: list[Finding] = []
    installed = yield from _installation(findings)
    if installed:
        for look in (_triggers, rights.survey, protection.survey, _settings, _prepared, _generations, _locks):
            yield from look(findings)
    yield _search(path)
    return Report(f"database {database!r} of PostgreSQL {version}, as role {login!r}", tuple(findings))


def _search(path: str) -> Query:
    """Set the search_path to the end of the transaction."""
    return Query("SELECT pg_catalog.set_config('search_path', :path, true)", {"path": path})


Look = Generator[Query | Elsewhere, list[Any], None]


def _installation(findings: list[Finding]) -> Plan[bool]:
    name = "schema"
    ((there,),) = yield Query("SELECT to_regprocedure('sinkfence.schema_version()') IS NOT NULL", {})
    if not there:
        findings.append(Finding(name, "broken", "sinkfence is not installed here", _INSTALL))
        return False
    ((allowed,),) = yield Query("SELECT has_function_privilege('sinkfence.schema_version()', 'EXECUTE')", {})
    if not allowed:
        findings.append(Finding(name, "broken", "this role may not ask for its version", _INSTALL))
        return False
    ((found,),) = yield Query("SELECT sinkfence.schema_version()", {})
    if found != VERSION:
        advice = _INSTALL if found < VERSION else "use a newer sinkfence"
        says = f"its version is {found}, and this library's is {VERSION}"
        findings.append(Finding(name, "broken", says, advice))
        return False
    findings.append(Finding(name, "ok", f"version {found}"))
    return True


def _triggers(findings: list[Finding]) -> Look:
    rows = yield Query(
        """
        SELECT w.tab, w.trig, cast(t.tgenabled AS text)
          FROM (VALUES ('mark', 'keep_mark'), ('mark', 'keep_marks'), ('sealed', 'seal')) w (tab, trig)
          LEFT JOIN pg_trigger t ON t.tgname = w.trig
           AND t.tgrelid = to_regclass('sinkfence.' || w.tab)
         WHERE t.tgenabled IS DISTINCT FROM 'A' ORDER BY 1, 2
        """,
        {},
        rows=None,
    )
    for table, trigger, enabled in rows:
        says = f"trigger {trigger} of sinkfence.{table} is {'disabled' if enabled else 'missing'}"
        advice = f"find out who did that, and {_INSTALL}: a mark may have gone back meanwhile"
        findings.append(Finding("triggers", "broken", says, advice))
    if not rows:
        findings.append(Finding("triggers", "ok", "marks are kept, and COMMIT checks"))


def _settings(findings: list[Finding]) -> Look:
    settings = (
        "fsync",
        "full_page_writes",
        "session_replication_role",
        "synchronous_commit",
        "default_transaction_isolation",
        "max_locks_per_transaction",
        "max_connections",
        "max_prepared_transactions",
    )
    columns = ", ".join(f"current_setting('{name}')" for name in settings)
    ((standby, *values),) = yield Query(f"SELECT pg_is_in_recovery(), {columns}", {})
    value: dict[str, str] = dict(zip(settings, values, strict=True))
    before = len(findings)

    def tell(grade: Grade, says: str, advice: str) -> None:
        findings.append(Finding("settings", grade, says, advice))

    for setting in ("fsync", "full_page_writes"):
        if value[setting] == "off":
            tell(
                "weak",
                f"{setting} is off: after a crash of the machine a mark may be forgotten",
                "turn it on",
            )
    if value["session_replication_role"] == "replica":
        tell("broken", "session_replication_role is replica: protected tables do not look", "reset it")
    if value["synchronous_commit"] in ("off", "local"):
        says = (
            f"synchronous_commit is {value['synchronous_commit']}: what was committed may be lost in a crash"
        )
        tell(
            "note", says, "nothing, if you know: arm turns it on for its own transaction, marks are not lost"
        )
    if value["default_transaction_isolation"] != "read committed":
        says = f"default_transaction_isolation is {value['default_transaction_isolation']}"
        tell("note", says, "repeat guarded transactions that fail with SQLSTATE 40001, as all others there")
    if standby:
        tell("note", "this is a standby: nothing can be armed or written here", "ask its primary")
    places = int(value["max_locks_per_transaction"]) * (
        int(value["max_connections"]) + int(value["max_prepared_transactions"])
    )
    if places < 2 * (2 * MAX_JOBS):
        says = f"the lock table has {places} places, and a transaction that guards n jobs takes 2n"
        tell("note", says, "raise max_locks_per_transaction, or guard fewer jobs at once")
    if len(findings) == before:
        tell("ok", "nothing speaks against them", "")


def _prepared(findings: list[Finding]) -> Look:
    rows = yield Query(
        """
        SELECT DISTINCT p.gid, p.owner, cast(date_trunc('second', p.prepared) AS text)
          FROM pg_prepared_xacts p JOIN pg_locks l
            ON l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.pid IS NULL
           AND l.transactionid = p.transaction
          JOIN pg_locks a
            ON a.locktype = 'advisory' AND a.pid IS NULL AND a.virtualtransaction = l.virtualtransaction
         WHERE p.database = current_database() ORDER BY 1
        """,
        {},
        rows=None,
    )
    for gid, owner, since in rows:
        says = f"{gid!r} of {owner}, since {since}, holds advisory locks: if a guard's, no successor can arm"
        findings.append(
            Finding("prepared transactions", "weak", says, "COMMIT PREPARED or ROLLBACK PREPARED")
        )


def _generations(findings: list[Finding]) -> Look:
    rows = yield Query(
        """
        SELECT cast(c.oid AS regclass) || '.generation', format_type(a.atttypid, null)
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
         WHERE a.attname = 'generation' AND NOT a.attisdropped
           AND c.relkind IN ('r', 'p') AND NOT c.relispartition
           AND c.relpersistence <> 't' AND a.atttypid <> cast('bigint' AS regtype)
         ORDER BY 1
        """,
        {},
        rows=None,
    )
    for column, kind in rows:
        says = f"{column} is {kind}: fenced_execute refuses it, if it is meant to hold generations"
        findings.append(
            Finding("generation columns", "note", says, "ALTER TABLE ... ALTER generation TYPE bigint")
        )


def _locks(findings: list[Finding]) -> Look:
    """Try whether a lock is refused while another has it: some servers grant all, and do nothing."""
    name = "advisory locks"
    key = {"key": secrets.randbits(62)}
    hold = "SELECT pg_backend_pid() FROM pg_advisory_xact_lock(cast(:key AS bigint))"
    take = (
        "SELECT pg_backend_pid(), EXISTS (SELECT FROM pg_stat_activity a"
        " WHERE a.pid = :theirs AND a.datname = current_database()),"
        " pg_try_advisory_xact_lock_shared(cast(:key AS bigint))"
    )
    try:
        ((theirs,),) = yield Elsewhere(Query(hold, key))
    except Exception as exc:  # noqa: BLE001
        told = " ".join(str(exc).split())
        says = f"not tried, for no second connection could be had ({type(exc).__name__}: {told})"
        findings.append(Finding(name, "unknown", says, "ask again where two can be opened"))
        return
    ((here, seen, granted),) = yield Query(take, {**key, "theirs": theirs})
    if here == theirs or not seen:
        says = "not tried: the second connection leads to the same session, or to another server"
        findings.append(Finding(name, "unknown", says, "ask over a direct connection"))
    elif granted:
        says = "are accepted and do not exclude each other: this server can't fence"
        findings.append(Finding(name, "broken", says, "use PostgreSQL itself"))
    else:
        findings.append(Finding(name, "ok", "exclude each other between two connections"))
