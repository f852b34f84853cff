"""Where a command is pointed at, as what connects has read it, and what must not be told of that."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus, urlsplit

from sinkfence.cli.mistakes import Mistake

if TYPE_CHECKING:
    from sinkfence.stores.sql import SqlStore

NO_URL: Final = "that is no database URL: postgresql+psycopg://USER@HOST:5432/DATABASE or sqlite:///FILE"
NO_DSN: Final = "that is no connection string: postgresql://USER@HOST:5432/DATABASE"
_ENCODE: Final = (
    "that URL can't be read: in a user name or password write %40 for @, %3A for :, %2F for /, %3F for ?, "
    "%23 for #"
)


@dataclass(frozen=True, slots=True)
class Place:
    """What may be said of it, and the secrets that lead there."""

    says: str
    secrets: tuple[str, ...] = ()
    file: str | None = None
    """That of an SQLite database."""
    host: str = ""

    def masked(self, text: str) -> str:
        """Return a text without the secrets, in whichever way it has them written."""
        for form in sorted({form for each in self.secrets for form in _forms(each)}, key=len, reverse=True):
            text = text.replace(form, "***")
        return text

    def __str__(self) -> str:
        return self.masked(self.says)


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
        known = backend in {"sqlite", "postgresql"}
    except (ValueError, SQLAlchemyError):  # of which part is wrong nothing is told: it may be a password
        raise Mistake(NO_URL) from None
    try:
        dialect = read.get_dialect()() if known else None
    except (ValueError, SQLAlchemyError):
        raise Mistake(NO_URL) from None
    except ImportError:
        dialect, backend = None, ""  # the store says what to install
    hidden = (*_written(url), read.password, *_values(read.query))
    # What stands before the first @ is a login, so a second one would be the end of a password.
    login = read.username is not None or read.password is not None
    if (
        "@" in f"{read.host}"
        or (backend != "sqlite" and "@" in f"{read.database}")
        or (login and url.count("@") > 1)
    ):
        raise Mistake(_ENCODE)
    if dialect is None:
        return _place("lease store", hidden)
    if backend == "sqlite":
        return _place(f"lease store: SQLite file {read.database!r}", hidden, file=read.database or "")
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
        return _place(f"{what}: service {service!r}", hidden, host=f"service {service}")
    at = f"{host or 'a local socket'}:{port}"
    return _place(told(what, name or user, at, user), hidden, host=at)


def connected(store: "SqlStore", place: Place) -> Place:
    """Return what a lease store turned out to be, by the word of its database."""
    from sinkfence.stores.sql.dialects import Query

    if place.file is not None:
        return place
    # By text: an address is another type for each driver.
    sql = "SELECT current_database(), current_user, host(inet_server_addr()), inet_server_port()"
    ((name, user, address, port),) = store.fetch(Query(sql))
    at = place.host
    if address and at != f"{address}:{port}":
        at += f" ({address}:{port})"  # of a name, of the list of hosts, behind a pooler: which one it is
    return Place(told("lease store", name, at, user), place.secrets)


def told(what: str, name: str, at: str, user: str) -> str:
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
    named = f"[{host}]" if ":" in host else host
    says = f"{parts.scheme}://{named}" + (f":{port}" if port else "")
    return _place(says, (*_written(url), parts.username and parts.password))


def _place(says: str, hidden: tuple[str | None, ...], *, file: str | None = None, host: str = "") -> Place:
    return Place(says, tuple(each for each in hidden if each), file, host)


def _values(query: Mapping[str, Any]) -> list[str]:
    """Return what a query may hide: that of sqlcipher has keys, libpq's passwords."""
    return [f"{value}" for name, value in query.items() if re.search("pass|key|secret|pragma", name.lower())]


def _written(url: str) -> tuple[str, ...]:
    """Return what may be a password as it was written, which is more than what was meant by it."""
    login = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return (*([login] if login else []), *re.findall(r"(?i)(?:password|secret)\s*=\s*'?([^\s'&]+)", url))


def _forms(secret: str) -> set[str]:
    with_slashes = secret.replace("\\", "\\\\").replace("'", "\\'")
    forms = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], ascii(secret)[1:-1], with_slashes}
    with contextlib.suppress(UnicodeEncodeError):  # half surrogates, of an argument that is no text
        forms |= {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    return forms


def absent(place: Place) -> bool:
    """Whether a file is named that isn't there. SQLite would make it, and a store without leases."""
    name = place.file
    return (
        bool(name)
        and name != ":memory:"
        and not f"{name}".startswith("file:")
        and not Path(f"{name}").is_file()
    )
