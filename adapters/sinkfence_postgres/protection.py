"""Tables that refuse whoever comes without a guard, or to a row of a job that is not guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sinkfence.errors import NotEnforced, SchemaMismatch
from sinkfence.findings import Finding
from sinkfence_postgres.installation import begun
from sinkfence_postgres.plans import Plan, carry_out
from sinkfence_postgres.refusals import Meanings, explained
from sinkfence_postgres.statements import Query

if TYPE_CHECKING:
    from sinkfence_postgres.connections import AnyTx


def protect(
    conn: AnyTx,
    table: str,
    *,
    job_id: str | None = None,
    warn_only: bool = False,
) -> None:
    """Have the table refuse, from the commit on, what is written to it without a guard, by any client.

    Triggers see to it: for INSERT, UPDATE, DELETE, TRUNCATE, COPY, MERGE, for what comes through views and
    cascades, and for each partition, of which later ones get all but TRUNCATE by their own name. A table that
    comes later and INHERITS gets none: protect again (`doctor` tells). In an open transaction the caller
    commits. To repeat it is harmless; called otherwise, it replaces what was there. It takes the table's
    owner, waits for writers under way, and lets new ones wait meanwhile: set lock_timeout. It doesn't look at
    the rows that are there.

    It fences staleness, not malice: the table's owner can disable triggers, and neither a superuser nor
    session_replication_role = replica (logical replication, a restore) is stopped.

    Args:
        conn: a psycopg Connection; a SQLAlchemy Connection or Session.
        table: as in SQL: "orders", "shop.orders", '"Odd name"'.
        job_id: the column, of type text, that says whose a row is, by its plain name. Then a row can be
            written only while its job is guarded, and one without a job not at all. None: any guarded
            transaction may write.
        warn_only: let everything pass, and count the transactions that would have been refused, see `doctor`.

    Raises:
        NotEnforced: it can't be made safe: a view, a foreign or temporary table, a partition by itself.
            Or a transaction is open that is REPEATABLE READ or SERIALIZABLE.
        SchemaMismatch: there is no such table, or column, or it can't hold a job_id; the caller is not the
            table's owner; sinkfence is not installed, or an older version.
    """
    with explained(meanings(table)):
        carry_out(conn, protecting(table, job_id, warn_only), read_committed=True)


def protecting(table: str, job_id: str | None, warn_only: bool) -> Plan[None]:
    """Protect a table. Its name is read by the caller's search_path."""
    for name in (table, job_id):
        if name is not None and (not name or "\0" in name):
            raise ValueError(f"a name of a table or column is no empty string, and has no NUL: {name!r}")
    query = Query(
        "SELECT sinkfence.protect(pg_catalog.to_regclass(:table),"
        " cast(:job_id AS pg_catalog.name), cast(:warn_only AS boolean))",
        {"table": table, "job_id": job_id, "warn_only": warn_only},
    )
    return _single(query)  # no `yield` here: a generator would refuse a name once a transaction is begun


def _single(query: Query) -> Plan[None]:
    yield query


def meanings(table: str) -> Meanings:
    """Return what the server's refusals mean, by SQLSTATE."""

    def unfit(said: str) -> SchemaMismatch:
        return SchemaMismatch(f"{table} can't be protected so ({said})")

    return {
        "SF005": NotEnforced,
        "25001": begun,  # active_sql_transaction
        "42809": NotEnforced,  # wrong_object_type
        "42501": lambda said: SchemaMismatch(f"only its owner can protect {table} ({said})"),
        # undefined_table, undefined_column, datatype_mismatch, invalid_name (before PostgreSQL 16),
        # feature_not_supported: the name of another database before that of the schema
        **dict.fromkeys(("42P01", "42703", "42804", "42602", "0A000"), unfit),
    }


def survey(findings: list[Finding]) -> Plan[None]:
    """Find out, for the doctor, what is protected, and how well."""
    columns = "relation, job_id, warn_only, lacks, misses"
    rows = yield Query(f"SELECT {columns} FROM sinkfence.protected() ORDER BY 1", {}, rows=None)  # noqa: S608
    emptied = yield Query(_NAMED, {}, rows=None)
    for row in rows:
        findings.append(_judge(*row))
    for (table,) in emptied:
        if table not in {row[0] for row in rows}:
            says = "not protected: triggers have the names of protect's, and call what is not of sinkfence"
            advice = "find out who did that, and call protect again; or drop them, to give the protection up"
            findings.append(Finding(f"table {table}", "broken", says, advice))
    if not rows and not emptied:
        says = "no table is protected: what goes round the guard is not checked"
        findings.append(Finding("tables", "note", says, "run sinkfence_postgres.protect(conn, table)"))


# CREATE OR REPLACE TRIGGER leaves the name. Of triggers that were dropped nothing is left: that is also how
# a protection is given up.
_NAMED: Final = """
    WITH RECURSIVE up (relid, top) AS (
      SELECT t.tgrelid, t.tgrelid FROM pg_trigger t
       WHERE t.tgname IN ('sinkfence_statement', 'sinkfence_truncate',
                          'sinkfence_insert', 'sinkfence_update', 'sinkfence_delete')
       UNION SELECT u.relid, i.inhparent FROM up u JOIN pg_inherits i ON i.inhrelid = u.top
    )
    SELECT DISTINCT cast(cast(u.top AS regclass) AS text) FROM up u
     WHERE NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = u.top) ORDER BY 1
"""


def _judge(table: str, job_id: str | None, warn_only: bool, lacks: str | None, misses: int | None) -> Finding:
    name, mode = f"table {table}", f"job_id={job_id!r}" if job_id else "any job"
    if lacks:
        says = f"half protected ({mode}): {lacks}"
        return Finding(name, "broken", says, "call protect again, as you want it")
    if warn_only:
        counted = "nobody may say how many" if misses is None else misses
        says = f"counts only ({mode}): {counted} transactions would have been refused"
        advice = "the server's log names them; when no more come, protect without warn_only"
        return Finding(name, "note", says, advice)
    return Finding(name, "ok", f"protected ({mode})")
