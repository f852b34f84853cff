"""A call of the sink's own that a signal's handler breaks into: what the handler raises is what comes out."""

from __future__ import annotations

import signal
import threading

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from sinkfence_postgres import PostgresSink

WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'sinkfence.mark'::regclass"


class Soft(Exception):
    """A soft time limit, as task queues have them."""


@pytest.fixture
def raising():
    """Return what has the main thread raise an error of a kind, out of a signal's handler."""
    before = signal.getsignal(signal.SIGUSR1)

    def raises(kind):
        def handler(*_):
            raise kind("now")

        signal.signal(signal.SIGUSR1, handler)

    yield raises
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [Soft, TimeoutError, KeyboardInterrupt])
@pytest.mark.parametrize("call", ["arm", "check"])
@pytest.mark.parametrize("source", ["engine", "pool", "dsn"])
def test_the_sinks_own_call_raises_what_the_handler_did(db, token, raising, source, call, kind):
    """No rollback's error is told instead, the call isn't repeated, and the next one finds a connection."""
    raising(kind)

    def interrupt():
        with psycopg.connect(db.dsn, autocommit=True) as admin:
            while not admin.execute(WAITING).fetchone():
                pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    mine = token()
    with db.engine() as engine, ConnectionPool(db.dsn, min_size=1, max_size=1) as pool:
        sink = PostgresSink({"engine": engine, "pool": pool, "dsn": db.dsn}[source])
        sink.arm(mine)
        with psycopg.connect(db.dsn) as other:
            other.execute("LOCK TABLE sinkfence.mark")
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(kind, match="now"):
                getattr(sink, call)(mine)
            thread.join()
        getattr(sink, call)(mine)
