"""Puts into a database what makes it refuse."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from sinkfence.errors import NotEnforced, SchemaMismatch
from sinkfence_postgres import connections
from sinkfence_postgres.plans import in_transaction
from sinkfence_postgres.refusals import Meanings, explained

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy

VERSION: Final = 1
"""Of the schema, as in `install.sql`."""

PARTS: Final = ("roles", "schema", "marks", "guard", "arm", "ledger", "replay", "rows", "protect", "grants")
"""The files of `schema/`, in the order in which they need each other. Each grants what is its own."""


def install(conn: psycopg.Connection[Any] | sqlalchemy.Connection) -> None:
    """Create or bring up to date the schema `sinkfence` and the roles sinkfence_owner and sinkfence_writer.

    To run it again, or twice at once, is harmless; marks stay. In an open transaction the caller commits;
    else it is committed here. It takes a superuser, or a role with CREATEROLE and CREATE on the database,
    which must be a member of sinkfence_owner where that exists already. Roles belong to all databases of a
    server: in those that trust each other less than that, REVOKE CONNECT.
    Roles that write then need `GRANT sinkfence_writer TO …`: with it they can call the functions, and not
    touch the tables.

    Raises:
        SchemaMismatch: installed by a newer version, the schema or the role sinkfence_owner is open to
            somebody else, this role may not install, the database is not encoded in UTF8, or the server is
            older than PostgreSQL 14.
        NotEnforced: an open transaction is REPEATABLE READ or SERIALIZABLE.
    """
    tx: Any = connections.expect(conn, *connections.KINDS)
    with explained(MEANINGS), in_transaction(tx, read_committed=True):
        script(tx)


def schema() -> str:
    """Return the installation script, one statement: `install.sql` with the parts inside."""
    folder = resources.files("sinkfence_postgres") / "schema"

    def read(part: str) -> str:
        return (folder / f"{part}.sql").read_text("utf-8")

    return read("install").replace("  -- PARTS\n", "\n".join(map(read, PARTS)))


def script(tx: Any) -> None:
    """Send the script as it is: neither `%` nor `:` in it marks a parameter."""
    if connections.is_psycopg(tx):
        tx.execute(schema())
    else:
        options = {"no_parameters": True}
        connections.core(tx).exec_driver_sql(schema(), execution_options=options)


def _forbidden(said: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"this role may not install sinkfence here ({said}): let a superuser do it, or a "
        "role with CREATEROLE, CREATE on the database and, where the roles exist already, a GRANT "
        "sinkfence_owner for the time being"
    )


def begun(said: str) -> NotEnforced:
    """Say that the isolation level can no more be chosen."""
    return NotEnforced(
        f"a statement has been sent before, by a listener for instance ({said}): use another engine"
    )


MEANINGS: Final[Meanings] = {
    "25001": begun,  # active_sql_transaction
    "SF005": NotEnforced,
    "55000": SchemaMismatch,  # object_not_in_prerequisite_state
    "42501": _forbidden,  # insufficient_privilege
}
