"""`sinkfence schema`: what has to be installed, printed."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from sinkfence.cli.exits import CODES, need

commands: Final = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=CODES)


class Dialect(StrEnum):
    """The databases that leases are kept in."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


@commands.callback()
def group() -> None:
    """Print what has to be installed, as SQL.

    For those who run it by hand or through other tools. Programs call sinkfence_postgres.install(conn)
    and SqlStore(...).create_schema(), which do the same.
    """


@commands.command(epilog=CODES)
def postgres() -> None:
    """Print the SQL that makes a PostgreSQL database refuse a stale owner, as `install(conn)` runs it.

    One statement, to be run by a superuser or a role that may create roles and schemas. To run it again
    is harmless, and upgrades.

    \b
    Example:
      sinkfence schema postgres | psql -v ON_ERROR_STOP=1 shop
    """
    from sinkfence_postgres.installation import schema as script

    typer.echo(script(), nl=False)


@commands.command(epilog=CODES)
def leases(
    dialect: Annotated[Dialect, typer.Option(help="The database that it is for.")] = Dialect.POSTGRESQL,
) -> None:
    """Print the SQL that makes the tables of a lease store, as `SqlStore(...).create_schema()` does.

    The tables belong to whoever runs it. Workers of another role need SELECT, INSERT and UPDATE on
    sinkfence_lease, and SELECT on sinkfence_schema. To run it again is harmless.

    \b
    Examples:
      sinkfence schema leases | psql -v ON_ERROR_STOP=1 shop
      sinkfence schema leases --dialect sqlite | sqlite3 leases.db
    """
    need(["sqlalchemy"], "sql")
    from sinkfence.stores.sql.schema import script

    typer.echo(script(dialect.value), nl=False)
