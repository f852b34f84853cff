"""A new session with the database: durable, missed when it goes silent, and its state nobody else's."""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event

from sinkfence.errors import NotEnforced

_TCP: Final = {"TCP_USER_TIMEOUT": 5000, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2}
"""A way to the server that swallows everything is noticed within seconds (tcp(7)), and not after TCP's
quarter of an hour: a heartbeat has until its ttl is over."""

_SWITCHES: Final = 500
_PAUSE: Final = 0.01
"""Seconds between two attempts to switch a new file of SQLite: together 5, as its timeout."""


def listen(engine: sa.Engine) -> None:
    """Have each new connection of an engine made ready."""
    # Before SQLAlchemy, whose own first question fails where texts are bytes.
    event.listen(engine, "connect", _refuse_sql_ascii, insert=True)
    event.listen(engine, "connect", begin)
    event.listen(engine, "handle_error", _drop_when_interrupted)


def begin(connection: Any, _record: object) -> None:
    """Make a new connection ready for use: SQLAlchemy's handler of "connect"."""
    driver = getattr(connection, "driver_connection", connection)
    _notice_silence(driver)
    # What an engine has set to None stays None.
    if getattr(driver, "prepare_threshold", None) is not None:
        named_apart = _serves_us_alone(connection, driver) and _start_names_at_random(driver)
        driver.prepare_threshold = driver.prepare_threshold if named_apart else None
    if type(driver).__module__.startswith("sqlite3"):
        _use_wal(driver)


def _drop_when_interrupted(context: sa.ExceptionContext) -> None:
    """Drop a connection, and only that one, if its call was broken off by what is no error of the driver's.

    SQLAlchemy does so for a BaseException only. After the Exception of a soft time limit it would roll back
    on a connection that is still busy, and the driver's complaint would hide what the handler raised.
    """
    if not isinstance(context.original_exception, context.dialect.loaded_dbapi.Error):
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False


def _refuse_sql_ascii(connection: Any, _record: object) -> None:
    driver = getattr(connection, "driver_connection", connection)
    told = getattr(getattr(driver, "info", None), "encoding", None), getattr(driver, "encoding", None)
    if "ascii" in told or "SQLASCII" in told:  # as psycopg and psycopg2 call it
        connection.close()
        raise NotEnforced(
            "the client_encoding of this session is SQL_ASCII, in which texts are bytes: connect with "
            "client_encoding=utf8, in the URL or by connect_args"
        )


def _serves_us_alone(connection: Any, driver: Any) -> bool:
    """Whether the server process that answers is the one that we logged in to, and so prepares for us alone.

    A pooler hands statements to whichever process is free. PgBouncer makes a number up at the login
    (BackendKeyData, PostgreSQL manual, section 54.2; pgbouncer#945); pgagroal replays a server's own message,
    and so may pass for one. psycopg counts the names of what it prepares, so that two clients of one process
    could execute each other's, were they not named apart.
    """
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] == driver.info.backend_pid)
    finally:
        cursor.close()


def _start_names_at_random(driver: Any) -> bool:
    """Have its statements named from a random number on; whether that could be done.

    Where a pooler names at the login the process that serves its first statement, two clients' names still
    never meet: a statement is missing then (26000), and nobody executes another's.
    """
    names: Any = getattr(driver, "_prepared", None)  # psycopg has no public way
    if not isinstance(getattr(names, "_prepared_idx", None), int):
        return False
    names._prepared_idx = secrets.randbits(62)
    return True


def _use_wal(driver: Any) -> None:
    if driver.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        mode = _switch_to_wal(driver)
        if mode != "wal":  # in memory, by whatever name, or where files have no shared memory
            driver.close()
            raise NotEnforced(
                f"this SQLite database cannot keep leases (journal_mode {mode!r}, and not 'wal'): "
                "it must be a file on a disk of this host; in memory, MemoryStore does it"
            )
    driver.execute("PRAGMA synchronous = FULL")


def _switch_to_wal(driver: Any) -> str:
    """Switch a file, which others may be doing at this moment: SQLite tells all but one that it is locked.

    It doesn't wait for the lock here, whatever its timeout (sqlite3_busy_handler: "may be invoked").
    """
    import sqlite3  # not every Python was built with it

    for _ in range(_SWITCHES - 1):
        try:
            return str(driver.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY":
                raise
            time.sleep(_PAUSE)
    return str(driver.execute("PRAGMA journal_mode = WAL").fetchone()[0])


def _notice_silence(driver: Any) -> None:
    fileno = getattr(driver, "fileno", None)
    if transport := getattr(driver, "_transport", None):  # asyncpg's: it shows it in no other way
        fileno = transport.get_extra_info("socket").fileno
    if fileno is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    with socket.socket(fileno=os.dup(fileno())) as way:
        if way.family == socket.AF_UNIX or way.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            return  # there is no network between, or whoever opened it has said how long
        way.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _TCP.items():
            way.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
