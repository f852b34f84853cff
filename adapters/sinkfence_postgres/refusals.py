"""What a driver's error means: one of ours, an unknown outcome, or the driver's own affair."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sinkfence.errors import (
    GenerationConflict,
    JobMismatch,
    MissingToken,
    NotArmed,
    NotEnforced,
    SchemaMismatch,
    SinkfenceError,
    StaleToken,
)
from sinkfence.tokens import Token

Meanings = Mapping[str, Callable[[str], SinkfenceError]]
"""What an error of a SQLSTATE means, made of the server's message."""


def refusal(exc: BaseException) -> SinkfenceError | None:
    """Return what the database has refused with this error, or None if it is no refusal of ours.

    Reads the errors of psycopg, psycopg2, asyncpg, and SQLAlchemy's and Django's wrappers of them. SQLSTATE
    SF001 is StaleToken or GenerationConflict, SF002 MissingToken, SF003 NotArmed, SF004 JobMismatch, SF005
    NotEnforced, SF009 (a mark cannot go back) a plain SinkfenceError.
    """
    code = sqlstate(exc)
    if code == "SF002":
        return MissingToken(message(exc))
    if code == "SF005":
        return NotEnforced(message(exc))
    if code == "SF009":
        return SinkfenceError(message(exc))
    if code not in ("SF001", "SF003", "SF004"):
        return None
    try:
        facts: dict[str, Any] = json.loads(_detail(exc))
        token = Token(facts["job_id"], facts["generation"], facts["owner"])
    except (ValueError, TypeError, KeyError):  # somebody else's use of the code
        return None
    mark = facts.get("mark")
    if code == "SF003":
        return NotArmed(token, mark)
    if code == "SF004":
        return JobMismatch(token, facts.get("belongs_to"), message(exc))
    if mark == token.generation and facts.get("same_owner") is False:
        return GenerationConflict(token, mark)
    return StaleToken(token, mark)


def lacking(exc: BaseException) -> SchemaMismatch | None:
    """Return what the installation lacks, if a statement failed because of it."""
    # invalid_schema_name, undefined_function, undefined_table; the user's own statements have them, too
    if sqlstate(exc) in ("3F000", "42883", "42P01") and re.search(r"\bsinkfence\b", message(exc)):
        return SchemaMismatch(
            f"this database lacks what sinkfence needs ({message(exc)}): run sinkfence_postgres.install(conn)"
        )
    return None


def forbidden(exc: BaseException) -> SinkfenceError | None:
    """Return what may not be done here, if one of our own statements failed because of it."""
    if is_demoted(exc):
        return NotEnforced(
            f"a read-only transaction, or server, writes nothing that could be refused ({message(exc)}): "
            "leave the guard out, or begin a transaction that may write, on the primary"
        )
    if sqlstate(exc) == "25P01":  # no_active_sql_transaction
        return NotEnforced(
            f"no transaction is open here ({message(exc)}): turn autocommit off, and guard one"
        )
    if sqlstate(exc) == "42501":  # insufficient_privilege
        return SchemaMismatch(
            f"this role may not use sinkfence here ({message(exc)}): "
            "run GRANT sinkfence_writer TO the role that logs in here, as an administrator"
        )
    return None


@contextmanager
def explained(meanings: Meanings) -> Generator[None]:
    """Raise what the server's refusals mean, or what the installation lacks."""
    try:
        yield
    except Exception as exc:
        meaning = meanings.get(sqlstate(exc) or "")
        known = meaning(message(exc)) if meaning else lacking(exc)
        if known is None:
            raise
        # From the driver's error: SQLAlchemy's would print the whole of the statement, hundreds of lines.
        raise known from getattr(exc, "orig", None) or exc


def lost(exc: BaseException) -> bool:
    """Whether the connection broke so that nobody knows what became of a COMMIT that was under way.

    An answer to COMMIT decides, and an error is an answer: the transaction was rolled back. But not when it
    comes with the end of the connection: a backend that is told to stop (57P01, 57P02) may say so instead of
    reporting a COMMIT that it has just finished. 25P03 and 25P04 (PostgreSQL manual, appendix A) are the
    exception: sent while idle in transaction or before the commit, so nothing was applied.
    """
    code = sqlstate(exc)
    if code in ("25P03", "25P04"):
        return False
    gone: bool | None = getattr(exc, "connection_invalidated", None)  # SQLAlchemy asked its dialect
    if gone is not None:
        return gone
    if isinstance(exc, OSError):
        return True
    if code is None:  # psycopg: lost without a word from the server
        return any(kind.__name__ == "OperationalError" for kind in type(exc).__mro__)
    return code in ("57P01", "57P02") or code.startswith("08")


def repeatable(exc: BaseException) -> bool:
    """Whether the transaction is worth repeating as it is: serialization failure, deadlock."""
    return sqlstate(exc) in ("40001", "40P01")


def is_demoted(exc: BaseException) -> bool:
    """Whether this server may only be read from: where it was the primary, there is another one now."""
    return sqlstate(exc) == "25006"  # read_only_sql_transaction


def sqlstate(exc: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, also through SQLAlchemy's wrapper."""
    return next((code for error in _layers(exc) if (code := _code(error))), None)


def _code(exc: BaseException) -> str | None:
    code = getattr(exc, "sqlstate", None) or getattr(exc, "pgcode", None)
    return code if isinstance(code, str) else None


def _layers(exc: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it wraps. The cause of an error that is no driver's is not looked at."""
    layer: BaseException | None = exc
    while layer is not None:
        yield layer
        # SQLAlchemy: .orig is the driver's; with asyncpg, a stand-in whose cause is the driver's. In Django,
        # the cause.
        wraps = _code(layer) or type(layer).__module__ == "django.db.utils"
        cause = layer.__cause__ if wraps else None
        layer = getattr(layer, "orig", None) or cause


def _detail(exc: BaseException) -> str:
    """DETAIL of the server's message: `diag` in psycopg and psycopg2, an attribute in asyncpg."""
    for error in _layers(exc):
        text = getattr(getattr(error, "diag", None), "message_detail", None) or getattr(error, "detail", None)
        if isinstance(text, str):
            return text
    return ""


def message(exc: BaseException) -> str:
    """Return the primary message of the server."""
    for error in _layers(exc):
        text = getattr(getattr(error, "diag", None), "message_primary", None)
        if isinstance(text, str):
            return text
    *_, innermost = _layers(exc)
    return str(innermost).partition("\n")[0]
