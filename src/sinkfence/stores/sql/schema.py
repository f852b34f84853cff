"""The tables that leases are counted in, and which version of them is there."""

from __future__ import annotations

import textwrap
from typing import Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as sa_postgresql
from sqlalchemy.dialects import sqlite as sa_sqlite

from sinkfence.errors import SchemaMismatch
from sinkfence.stores.sql.dialects import TABLE

VERSION: Final = 1

metadata: Final = sa.MetaData()
"""The tables without their triggers, which SQLAlchemy has no words for."""

_TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")  # compared bytewise, everywhere
_BIG: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite's INTEGER has 64 bits

lease: Final = sa.Table(
    TABLE,
    metadata,
    sa.Column("job_id", _TEXT, primary_key=True),
    sa.Column("generation", _BIG, nullable=False, server_default="0"),
    sa.Column("owner", _TEXT),
    # In no index: a renewal changes nothing else, and so stays a HOT update.
    sa.Column("lease_until", sa.TIMESTAMP(timezone=True).with_variant(sa.REAL(), "sqlite"), nullable=False),
    sa.Column("state", _TEXT, nullable=False, server_default="open"),
    sa.Column("result", sa.Text().with_variant(sa.JSON(), "postgresql")),
    sa.CheckConstraint("length(job_id) BETWEEN 1 AND 200", name="sinkfence_lease_job_id"),
    sa.CheckConstraint("generation BETWEEN 0 AND 999999999999999", name="sinkfence_lease_generation"),
    sa.CheckConstraint("state IN ('open', 'done')", name="sinkfence_lease_state"),
    postgresql_with={"fillfactor": 70},
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

schema: Final = sa.Table(
    "sinkfence_schema",
    metadata,
    sa.Column("part", _TEXT, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


def _dedented(*statements: str) -> tuple[str, ...]:
    return tuple(textwrap.dedent(each).strip() for each in statements)


# Whatever deletes a record or lowers its generation would have numbers issued again, which sinks have
# seen already. The conditions stand in WHEN, where they cost a renewal nothing. Nothing is replaced by its
# equal: that waits for every transaction that has the table in use, and all the others wait behind it.
_POSTGRESQL: Final = _dedented(
    """
    CREATE OR REPLACE FUNCTION sinkfence_lease_keep() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'sinkfence: records of leases are not deleted, and a generation never goes back'
        USING ERRCODE = 'SF009', HINT = 'Its numbers would be issued again. To free a job, reopen it.';
    END $$""",
    f"""
    CREATE OR REPLACE TRIGGER sinkfence_lease_update BEFORE UPDATE ON {TABLE} FOR EACH ROW
    WHEN (new.generation < old.generation OR new.job_id <> old.job_id)
    EXECUTE FUNCTION sinkfence_lease_keep()""",
    f"""
    CREATE OR REPLACE TRIGGER sinkfence_lease_delete BEFORE DELETE OR TRUNCATE ON {TABLE} FOR EACH STATEMENT
    EXECUTE FUNCTION sinkfence_lease_keep()""",
)
_SQLITE: Final = _dedented(
    f"""
    CREATE TRIGGER IF NOT EXISTS sinkfence_lease_update BEFORE UPDATE ON {TABLE} FOR EACH ROW
    WHEN new.generation < old.generation OR new.job_id <> old.job_id
    BEGIN SELECT RAISE(ABORT, 'sinkfence: a generation never goes back'); END""",
    f"""
    CREATE TRIGGER IF NOT EXISTS sinkfence_lease_delete BEFORE DELETE ON {TABLE} FOR EACH ROW
    BEGIN SELECT RAISE(ABORT, 'sinkfence: records of leases are not deleted'); END""",
)


def create(connection: sa.Connection) -> None:
    """Create what is missing, inside the caller's transaction."""
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:  # two workers that start together would both find nothing and one would fail
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239414406513180001)")
    metadata.create_all(connection)
    if not postgresql or _lacks_triggers(connection):
        for statement in _POSTGRESQL if postgresql else _SQLITE:
            connection.exec_driver_sql(statement)
    if _found(connection) is None:
        connection.execute(sa.insert(schema).values(part="lease", version=VERSION))
    check(connection)


def script(dialect: Literal["postgresql", "sqlite"]) -> str:
    """Return as SQL what `create` does where nothing is there yet. To repeat it is harmless."""
    postgresql = dialect == "postgresql"
    words = sa_postgresql.dialect() if postgresql else sa_sqlite.dialect()  # type: ignore[no-untyped-call]
    tables = (
        str(sa.schema.CreateTable(table, if_not_exists=True).compile(dialect=words))
        for table in metadata.sorted_tables
    )
    statements = [
        "BEGIN",
        *(["SELECT pg_advisory_xact_lock(7239414406513180001)"] if postgresql else []),
        *tables,
        *(_POSTGRESQL if postgresql else _SQLITE),
        f"INSERT INTO {schema.name} (part, version) VALUES ('lease', {VERSION}) ON CONFLICT DO NOTHING",
        "COMMIT",
    ]
    lines = "".join(f"{each.strip()};\n" for each in statements).splitlines()
    return "".join(f"{line.rstrip()}\n".replace("\t", "  ") for line in lines)


def check(connection: sa.Connection) -> None:
    """Make sure, before the first statement, that the tables are the ones that the statements are for.

    Raises:
        SchemaMismatch: they are older, newer, or of a shape in which generations would not fit.
    """
    found = _found(connection)
    if found is None or found < VERSION:
        raise missing()
    if found > VERSION:
        raise SchemaMismatch(
            f"the lease tables have version {found} and this sinkfence knows {VERSION}: upgrade sinkfence"
        )
    if connection.dialect.name == "postgresql":
        kind = connection.exec_driver_sql(
            "SELECT format_type(atttypid, NULL) FROM pg_attribute "
            f"WHERE attrelid = CAST('{TABLE}' AS regclass) AND attname = 'generation'"
        ).scalar()
        if kind != "bigint":
            raise SchemaMismatch(
                f"generation is {kind}, too small: ALTER TABLE {TABLE} ALTER generation TYPE bigint"
            )


def missing() -> SchemaMismatch:
    """Return the error for tables that aren't there, or not all of them."""
    return SchemaMismatch(
        "the lease tables are missing here, or incomplete: run SqlStore(...).create_schema() once"
    )


def forbidden(said: str) -> SchemaMismatch:
    """Return the error for a role that lacks a right on the lease tables."""
    return SchemaMismatch(
        f"this role may not use the lease tables ({said}): run GRANT SELECT, INSERT, UPDATE ON {TABLE} and "
        "GRANT SELECT ON sinkfence_schema TO the role that logs in here, as their owner"
    )


def _lacks_triggers(connection: sa.Connection) -> bool:
    found = connection.exec_driver_sql(
        f"SELECT count(*) FROM pg_trigger WHERE tgrelid = CAST('{TABLE}' AS regclass) "
        f"AND tgname IN ('{TABLE}_update', '{TABLE}_delete')"
    )
    return bool(found.scalar_one() < 2)


def _found(connection: sa.Connection) -> int | None:
    return connection.execute(sa.select(schema.c.version).where(schema.c.part == "lease")).scalar()
