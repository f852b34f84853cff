"""Where a command is pointed at: a URL or connection string that can be read in one way only, and told of."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from sinkfence.cli.masking import Place
from sinkfence.cli.mistakes import NO_DSN, NO_URL, Mistake

if TYPE_CHECKING:
    from sinkfence.stores.sql import SqlStore

_URL: Final = "that URL"
_ENCODE: Final = (
    "that URL can't be read: in a user name or password write %40 for @, %3A for :, %2F for /, %3F for ?, "
    "%23 for #"
)
_UNSEEN: Final = "there is a line break or another control character in {}, at its end perhaps: take it out"


def lease_store(url: str) -> Place:
    """Read the URL of a lease store, as SQLAlchemy does.

    Raises:
        Mistake: it is none, or can be read in two ways.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import SQLAlchemyError

    try:
        read = sa.make_url(url)
        sqlite = read.get_backend_name() == "sqlite"
    except (ValueError, SQLAlchemyError):  # of which part is wrong nothing is told: it may be a password
        raise Mistake(NO_URL) from None
    # What stands before the first @ is a login, so a second one would be the end of a password.
    login = read.username is not None or read.password is not None
    if "@" in f"{read.host}" or (not sqlite and "@" in f"{read.database}") or (login and url.count("@") > 1):
        raise Mistake(_ENCODE)
    if not sqlite:
        seen(_URL, read.host, read.database, read.username)
    hidden = (*_written(url), read.password, *_values(read.query))
    if sqlite:
        return Place(f"lease store: SQLite file {read.database!r}", hidden, file=read.database or "")
    return Place(f"lease store {read.set(query={})}", hidden)


def database(dsn: str) -> Place:
    """Read a connection string, as libpq does.

    Raises:
        Mistake: it is none, or can be read in two ways.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = {name: f"{value}" for name, value in conninfo_to_dict(dsn).items() if value}
    except (psycopg.Error, ValueError):
        raise Mistake(NO_DSN) from None
    shown = {name: given[name] for name in ("service", "host", "port", "dbname", "user") if name in given}
    seen(_URL, *shown.values())
    # libpq ends a login at the first / as well: the rest of a password would be a port and a database.
    odd = any("@" in given.get(name, "") for name in ("host", "dbname"))
    if odd or not re.fullmatch(r"[0-9, ]*", given.get("port", "")):
        raise Mistake(_ENCODE)
    says = " ".join(("database", *(f"{name}={value}" for name, value in shown.items())))
    return Place(says, (*_written(dsn), *_values(given)))


def connected(store: "SqlStore", place: Place) -> Place:
    """Return what a lease store turned out to be, by the word of its database."""
    from sinkfence.stores.sql.dialects import Query

    if place.file is not None:
        return place
    # By text: an address is another type for each driver.
    sql = "SELECT current_database(), current_user, host(inet_server_addr()), inet_server_port()"
    ((name, user, address, port),) = store.fetch(Query(sql))
    at = f"{address}:{port}" if address else "a local socket"
    return Place(f"lease store: database {name!r} at {at}, as {user!r}", place.secrets)


def web(what: str, url: str, *, login: bool) -> Place:
    """Read the base URL of a service, whose host alone is told.

    Raises:
        Mistake: it is none, or has what a base URL can't have.
    """
    seen(_URL, url)  # whole: what splits it leaves line breaks out, and who uses it does not
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


def proxies() -> tuple[str, ...]:
    """Return the passwords of the proxies that HTTP clients find in the environment.

    Raises:
        Mistake: one of them can be read in two ways: a client's error would show a part as its host.
    """
    hidden: list[str] = []
    for kind, url in getproxies_environment().items():
        if kind not in {"http", "https", "all"}:
            continue
        whole = url if "://" in url else f"http://{url}"
        seen(f"{kind}_proxy", url)
        try:
            parts = urlsplit(whole)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if not host or "@" in whole.replace(parts.netloc, "", 1):
            raise Mistake(f"{kind}_proxy in the environment: {_ENCODE}")
        hidden += [*_written(whole), parts.password or ""]
    return tuple(hidden)


def seen(what: str, *parts: str | None) -> None:
    """Refuse what nobody has meant to write: a file's last line break, say, read with what it holds."""
    if any(re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", part or "") for part in parts):
        raise Mistake(_UNSEEN.format(what))


def _values(query: Mapping[str, Any]) -> list[str]:
    """Return what a query may hide: that of sqlcipher has keys, libpq's passwords."""
    return [f"{value}" for name, value in query.items() if re.search("pass|key|secret|pragma", name.lower())]


def _written(url: str) -> tuple[str, ...]:
    """Return what may be a password as it was written, which is more than what was meant by it."""
    login = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return (login, *re.findall(r"(?i)(?:password|secret)\s*=\s*'?([^\s'&]+)", url))
