"""Where a command is pointed at, as the libraries that connect read it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sinkfence.cli.masking import Place
from sinkfence.cli.mistakes import NO_DSN, NO_URL, Mistake

if TYPE_CHECKING:
    from sinkfence.stores.sql import SqlStore

_ENCODE: Final = (
    "that URL can't be read: in a user name or password write %40 for @, %3A for :, %2F for /, %3F for ?, "
    "%23 for #"
)


def lease_store(url: str) -> Place:
    """Read the URL of a lease store, as SQLAlchemy does, and libpq what it makes of that.

    Raises:
        Mistake: it is none, or can be read in two ways.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import SQLAlchemyError

    try:
        read = sa.make_url(url)
        backend = read.get_backend_name()
        dialect = read.get_dialect()() if backend in {"sqlite", "postgresql"} else None
    except ImportError:
        return Place("lease store", _written(url))  # the store says what to install
    except (ValueError, SQLAlchemyError):  # of which part is wrong nothing is told: it may be a password
        raise Mistake(NO_URL) from None
    hidden = (*_written(url), read.password, *_values(read.query))
    # What stands before the first @ is a login, so a second one would be the end of a password.
    login = read.username is not None or read.password is not None
    in_name = backend != "sqlite" and "@" in f"{read.database}"
    if "@" in f"{read.host}" or in_name or (login and url.count("@") > 1):
        raise Mistake(_ENCODE)
    if dialect is None:
        return Place("lease store", hidden)
    if backend == "sqlite":
        name = read.database or ""
        in_memory = not name or name == ":memory:" or name.startswith("file:")
        return Place(f"lease store: SQLite file {name!r}", hidden, None if in_memory else Path(name))
    _, given = dialect.create_connect_args(read)
    return postgres("lease store", {name: f"{value}" for name, value in given.items()}, hidden)


def database(dsn: str) -> Place:
    """Read a connection string, as libpq does.

    Raises:
        Mistake: it is none, or can be read in two ways.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(dsn)
    except (psycopg.Error, ValueError):
        raise Mistake(NO_DSN) from None
    return postgres("database", {name: f"{value}" for name, value in given.items()}, _written(dsn))


def postgres(what: str, given: Mapping[str, str], hidden: tuple[str | None, ...]) -> Place:
    """Return what libpq would connect to: what was given, and its variables for the rest."""
    from psycopg import pq

    options = pq.Conninfo.get_defaults()
    found = {each.keyword.decode(): each.val.decode(errors="replace") for each in options if each.val}
    found |= {name: value for name, value in given.items() if value}
    # libpq marks what is a secret: it asks programs to show a star for each letter, or nothing at all.
    secret = {each.keyword.decode() for each in options if each.dispchar}
    host, port, name, user = (found.get(each, "") for each in ("host", "port", "dbname", "user"))
    host = host or found.get("hostaddr", "")
    # libpq ends a login at the first / as well: the rest of a password would be a port and a database.
    if any("@" in each for each in (host, port, name)) or not re.fullmatch(r"[0-9, ]*", port):
        raise Mistake(_ENCODE)
    hidden = (*hidden, *(value for key, value in found.items() if key in secret))
    if service := given.get("service"):
        return Place(f"{what}: service {service!r}", hidden, host=f"service {service}")
    at = f"{host or 'a local socket'}:{port}"
    return Place(named(what, name or user, at, user), hidden, host=at)


def connected(store: "SqlStore", place: Place) -> Place:
    """Return what a lease store turned out to be, by the word of its database."""
    from sinkfence.stores.sql.dialects import Query

    if not place.host:
        return place
    # By text: an address is another type for each driver.
    sql = "SELECT current_database(), current_user, host(inet_server_addr()), inet_server_port()"
    ((name, user, address, port),) = store.fetch(Query(sql))
    at = place.host
    if address and at != f"{address}:{port}":
        at += f" ({address}:{port})"  # of a name, of the list of hosts, behind a pooler: which one it is
    return Place(named("lease store", name, at, user), place.secrets)


def named(what: str, name: str, at: str, user: str) -> str:
    """Name a database."""
    return f"{what}: database {name!r} at {at}, as {user!r}"


def web(what: str, url: str, *, login: bool) -> Place:
    """Read the base URL of a service, whose host alone is told.

    Raises:
        Mistake: it is none, or has what a base URL can't have.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Mistake(f"{what} is no URL: http://HOST:PORT") from None
    if parts.scheme not in {"http", "https"}:
        raise Mistake(f"{what} begins with http:// or https://")
    if not login and "@" in url:
        raise Mistake(f"{what} takes no user and no password")
    if "@" in url.replace(parts.netloc, "", 1) or not host:
        raise Mistake(_ENCODE)
    if "?" in url or "#" in url:
        raise Mistake(f"{what} has no ? and no #: paths are put to its end")
    at = f"[{host}]" if ":" in host else host
    at += f":{port}" if port else ""
    return Place(f"{parts.scheme}://{at}", (*_written(url), parts.username and parts.password))


def _values(query: Mapping[str, Any]) -> list[str]:
    """Return what a query may hide: that of sqlcipher has keys, libpq's passwords."""
    return [f"{value}" for name, value in query.items() if re.search("pass|key|secret|pragma", name.lower())]


def _written(url: str) -> tuple[str, ...]:
    """Return what may be a password as it was written, which is more than what was meant by it."""
    login = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return (login, *re.findall(r"(?i)(?:password|secret)\s*=\s*'?([^\s'&]+)", url))
