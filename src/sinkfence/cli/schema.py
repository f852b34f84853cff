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
    """Print the SQL that has to be installed.

    For installing by hand, or by a tool for migrations. A program calls sinkfence_postgres.install(conn)
    and SqlStore(...).create_schema() instead, which do the same.

    \b
    Examples:
      sinkfence schema postgres | psql -v ON_ERROR_STOP=1 shop
      sinkfence schema leases | psql -v ON_ERROR_STOP=1 shop
    """


@commands.command(epilog=CODES)
def postgres() -> None:
    """Print the SQL by which PostgreSQL checks tokens.

    It is what `install(conn)` runs: one statement, for a superuser or a role that may create roles and
    schemas. To run it again is harmless, and upgrades.

    \b
    Example:
      sinkfence schema postgres | psql -v ON_ERROR_STOP=1 shop
    """
    from sinkfence_postgres.installation import schema as script

    typer.echo(script(), nl=False)


@commands.command(epilog=CODES)
def leases(
    dialect: Annotated[
        Dialect, typer.Option(help="The database that keeps the leases.")
    ] = Dialect.POSTGRESQL,
) -> None:
    """Print the SQL for the tables of a lease store.

    It is what `SqlStore(...).create_schema()` does. The tables belong to the role that runs it. Another role
    whose workers take leases needs SELECT, INSERT and UPDATE on sinkfence_lease, and SELECT on
    sinkfence_schema. To run it again is harmless.

    \b
    Examples:
      sinkfence schema leases | psql -v ON_ERROR_STOP=1 shop
      sinkfence schema leases --dialect sqlite | sqlite3 leases.db
    """
    need(["sqlalchemy"], "sql")
    from sinkfence.stores.sql.schema import script

    typer.echo(script(dialect.value), nl=False)
