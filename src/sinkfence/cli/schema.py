"""`sinkfence schema`: what has to be installed, printed."""

import typer

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Print what has to be installed, for those who run it by hand.",
)


@commands.callback()
def group() -> None:
    """Print what has to be installed, for those who run it by hand."""


@commands.command()
def postgres() -> None:
    """Print the SQL that makes a PostgreSQL database refuse a stale owner, as `install(conn)` runs it.

    One statement, to be run by a superuser or a role that may create roles and schemas. To run it again
    is harmless, and upgrades.
    """
    from sinkfence_postgres.installation import schema as script

    typer.echo(script(), nl=False)
