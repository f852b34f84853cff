"""A database as a destination: armed by a new owner, written to in guarded transactions."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from sinkfence import observe
from sinkfence.sinks import Bearer, token_of
from sinkfence.tokens import Token
from sinkfence_postgres import connections, sources, statements, watch
from sinkfence_postgres.refusals import is_demoted, repeatable, sqlstate
from sinkfence_postgres.replay import Replay
from sinkfence_postgres.sources import alone
from sinkfence_postgres.statements import Query
from sinkfence_postgres.transactions import Attempt, transaction, translating

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool
    from sqlalchemy import Engine

ATTEMPTS: Final = 5
"""How often an arm is sent that meets a deadlock (40P01) or, where the default isolation is stricter than
READ COMMITTED, a serialization failure (40001)."""

IN_FLIGHT: Final = "100ms"
"""How long `evict` leaves those alone that are about to end by themselves: commits under way."""


class PostgresSink:
    """A PostgreSQL database in which `install` was run, as a sink, and as the gate of a service's door.

    Args:
        source: where connections come from: a SQLAlchemy Engine, a psycopg_pool ConnectionPool, or a libpq
            connection string ("postgresql://…" or "host=… dbname=…") for a new connection at each call.
            Nothing is opened here, and the source stays the caller's to close.
    """

    durable: bool = True
    """Marks outlive processes, crashes and restarts."""

    def __init__(self, source: Engine | ConnectionPool[Any] | str) -> None:
        self._source: Any = sources.checked(source, *sources.KINDS)

    def arm(self, bearer: Bearer, *, evict: bool = False) -> None:
        """Raise the job's mark to the bearer's generation: from then on nothing lower is committed here.

        A short transaction of its own, durable when this returns; to repeat it is harmless. It waits for
        commits under way and for `guard(lock=True)`, as long as lock_timeout says (5 s where the session
        sets none), and then raises the driver's error, SQLSTATE 55P03.

        Args:
            bearer: the new owner.
            evict: also end the sessions in which earlier owners, logged in as the same database role, have a
                transaction open: they keep the mark from rising, or their row locks keep the bearer waiting.

        Raises:
            StaleToken, GenerationConflict: the database has seen a newer owner; the bearer is told.
            SchemaMismatch: sinkfence is not installed here, or this role may not use it.
        """
        token = token_of(bearer)

        def work(tx: Any) -> None:
            armed = evict and raise_mark(tx, statements.arm(token, IN_FLIGHT), bounded=True)
            if evict:
                raise_mark(tx, statements.evict(token))
            if not armed:
                raise_mark(tx, statements.arm(token))

        with observe.at("postgres", "arm", token), translating(Attempt({token: bearer}, ours=True)):
            self._alone(work)

    @contextmanager
    def begin(self, bearer: Bearer) -> Generator[Any]:
        """Give a connection in a guarded transaction, committed at the end: see `transaction`."""
        with self._connection() as conn, transaction(conn, bearer):
            yield conn

    def check(self, token: Token) -> None:
        """Check the token against the mark, and leave the mark as it is.

        Raises:
            NotArmed, StaleToken, GenerationConflict: the mark is lower, higher, or another owner's.
        """
        with translating(Attempt({token: token}, ours=True)):
            self._alone(lambda tx: connections.run(tx, statements.recognise(token)))

    def announce(self, token: Token) -> None:
        """Raise the mark for a newer owner before its request is handled; a known one is just looked up.

        Raises:
            StaleToken, GenerationConflict, SchemaMismatch: as `arm`.
        """
        self.arm(token)

    def enter(self, token: Token) -> AbstractContextManager[watch.Watch]:
        """Surround a request's handler, and watch over what is guarded with this token inside.

        It sees the commits that are made by `transaction`, by `begin`, or inside `translated`.
        """
        return watch.entered(token)

    def replay(self, max_body: int = 65536) -> Replay:
        """Keep answers in this database, with bodies of at most `max_body` bytes: for `Fence(replay=…)`."""
        return Replay(self._connection, max_body)

    def _alone(self, work: Callable[[Any], object]) -> None:
        """Do what is harmless to repeat, on a connection in autocommit, and once more where that has died.

        A pool may have given out a dead one: the server ends idle connections, and all of them at a failover.
        Or one that leads to a server that was the primary, and may only be read from now.
        """
        with self._connection() as conn:
            try:
                with alone(conn) as tx:
                    work(tx)
                return
            except Exception as error:
                demoted = is_demoted(error)
                # The drivers here have errors of their own. An OSError, TimeoutError say, is what a signal's
                # handler has raised, though SQLAlchemy gives the connection up for it.
                if not demoted and (isinstance(error, OSError) or not connections.is_dead(conn)):
                    raise
        if renew := sources.renewal(self._source, demoted=demoted):
            renew()
        with self._connection() as conn, alone(conn) as tx:
            work(tx)

    def _connection(self) -> AbstractContextManager[Any]:
        return sources.connection(self._source)


def raise_mark(tx: Any, query: Query, *, bounded: bool = False) -> bool:
    """Send what raises a mark or makes room for it, anew after a deadlock or serialization failure.

    False: `bounded`, and the lock_timeout that the query brings ran out.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            connections.run(tx, query)
            break
        except Exception as exc:
            if bounded and sqlstate(exc) == "55P03":  # lock_not_available
                return False
            if attempt == ATTEMPTS or not repeatable(exc):
                raise
    return True
