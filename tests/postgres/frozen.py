"""An owner that waits in mid-transaction, before its COMMIT: frozen.py WAY DSN JOB GENERATION OWNER."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sinkfence.errors import OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_postgres import bind, guard, once, transaction, translated

INSERT = "insert into frozen (job, generation) values (%s, %s)"


def pause() -> None:
    """Say that all is written but the COMMIT, and go on when told to."""
    print("written", flush=True)
    sys.stdin.readline()


@contextmanager
def by_transaction(dsn: str, token: Token) -> Iterator[Callable[..., object]]:
    with psycopg.connect(dsn) as conn, transaction(conn, token):
        yield conn.execute


@contextmanager
def by_lock(dsn: str, token: Token) -> Iterator[Callable[..., object]]:
    with psycopg.connect(dsn) as conn:
        guard(conn, token, lock=True)
        yield conn.execute
        with translated():
            conn.commit()


@contextmanager
def by_once(dsn: str, token: Token) -> Iterator[Callable[..., object]]:
    with psycopg.connect(dsn) as conn, transaction(conn, token):

        def execute(*statement: object) -> None:
            once(conn, token, "the step", lambda: conn.execute(*statement) and None)

        yield execute


@contextmanager
def by_bound_session(dsn: str, token: Token) -> Iterator[Callable[..., object]]:
    engine = sa.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    with bind(sessionmaker(engine), token).begin() as session:
        yield lambda sql, values: session.connection().exec_driver_sql(sql, values)
    engine.dispose()


if __name__ == "__main__":
    way, dsn, job, generation, owner = sys.argv[1:]
    token = Token(job, int(generation), owner)
    try:
        with globals()[way](dsn, token) as execute:
            execute(INSERT, (job, token.generation))
            pause()
    except StaleToken as stale:
        print("stale", stale.mark)
    except OutcomeUnknown:
        print("unknown")
    else:
        print("committed")
