"""Puts into a database what makes it refuse."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

from sinkfence.errors import SchemaMismatch
from sinkfence_postgres import connections
from sinkfence_postgres.refusals import message, sqlstate

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy


def install(conn: psycopg.Connection[Any] | sqlalchemy.Connection) -> None:
    """Create or bring up to date the schema `sinkfence` and the roles sinkfence_owner and sinkfence_writer.

    To run it again, or twice at once, is harmless; marks stay. In an open transaction the caller commits;
    else it is committed here. It takes a superuser, or a role with CREATEROLE and CREATE on the database.
    Roles that write then need `GRANT sinkfence_writer TO …`: with it they can call the functions, and not
    touch the tables.

    Raises:
        SchemaMismatch: installed by a newer version, the schema belongs to somebody else, the database is not
            encoded in UTF8, or the server is older than PostgreSQL 14.
    """
    tx: Any = connections.expect(conn, *connections.KINDS)
    with explained():
        if connections.is_open(tx):
            script(tx)
        else:
            with connections.begun(tx):
                script(tx)


def schema() -> str:
    """Return the installation script, one statement."""
    return resources.files("sinkfence_postgres").joinpath("schema.sql").read_text("utf-8")


def script(tx: Any) -> None:
    """Send the script as it is: neither `%` nor `:` in it marks a parameter."""
    if connections.is_psycopg(tx):
        tx.execute(schema())
    else:
        options = {"no_parameters": True}
        connections.core(tx).exec_driver_sql(schema(), execution_options=options)


@contextmanager
def explained() -> Generator[None]:
    """Raise SchemaMismatch where the script has found that it must not run here."""
    try:
        yield
    except Exception as exc:
        if sqlstate(exc) != "55000":  # object_not_in_prerequisite_state
            raise
        raise SchemaMismatch(message(exc)) from exc
