"""Sessions and engines that are given to one bearer: every transaction of theirs is guarded.

A transaction begins: guard it. Each statement: is it still in that transaction? COMMIT: ask the server.
Anything refused: leave a connection on which only rollback works. The three tables of `listeners` say which
event of SQLAlchemy does what: for sessions, for an engine, and on each connection on which one is guarded.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sinkfence.errors import NotEnforced
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_postgres import connections, statements
from sinkfence_postgres.outcomes import failing
from sinkfence_postgres.sessions import connected
from sinkfence_postgres.transactions import Attempt, guard, translating

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.orm import sessionmaker

    Target = TypeVar("Target", bound=sqlalchemy.Engine | sessionmaker[Any])

KINDS: Final = ("sqlalchemy:Engine", "sqlalchemy.orm:sessionmaker")

Bearers = dict[Token, Bearer]
Listeners = dict[str, Callable[..., None]]


def bind(target: Target, bearer: Bearer) -> Target:
    """Guard every transaction that the sessions or the engine begin from here on, and return the same object.

    Where a transaction begins, `guard` is called; before each COMMIT the server is asked, in one more round
    trip, whether the guard is there still: COMMIT or ROLLBACK may have been sent by other means. Where its
    COMMIT is refused, the error is what it means, and the bearer is told. What was refused must be rolled
    back before the session or connection takes anything else.
    This can't be undone: bind one for each lease, and drop it with the lease. Of an engine that is a copy,
    `bind(engine.execution_options(), lease)`: it shares the pool, and `Session(copy)` is guarded by it.
    Arming and the lease store use autocommit, which a bound engine refuses. Where leases come and go, bind
    copies and no sessionmakers: of each of those SQLAlchemy keeps some entries while the process lives.

    Args:
        target: a SQLAlchemy sessionmaker or Engine.
        bearer: its token is read at the beginning of each transaction.

    Raises, where a transaction begins:
        as `guard`; NotEnforced in autocommit and for a two-phase transaction.

    Raises, later on:
        NotEnforced: the transaction that was guarded is not the one that it is in.
    """
    target_: Any = connections.expect(target, *KINDS)
    bound = BoundEngine if connections.is_a(target_, KINDS[0]) else BoundSessions
    listen(target_, bound(bearer).listeners())
    return target


def listen(target: Any, listeners: Listeners) -> None:
    """Have SQLAlchemy call each listener at the event that it stands for. They live as long as the target."""
    from sqlalchemy import event

    for name, listener in listeners.items():
        event.listen(target, name, listener)


@dataclass(frozen=True, eq=False)
class BoundSessions:
    """Guards each connection of each session: every one of them commits by itself."""

    bearer: Bearer

    def listeners(self) -> Listeners:
        return {
            "after_begin": self._guard,
            "do_orm_execute": self._check_statement,
            "before_flush": self._check,
            "before_commit": self._check_commit,
            "after_transaction_end": self._forget,
        }

    def _guard(self, session: Any, transaction: Any, conn: sqlalchemy.Connection) -> None:
        if not transaction.nested:
            try:
                guard(conn, self.bearer)
                bound = bound_on(conn)
                bearers = bound.sessions[transaction] = statements.shown([self.bearer])
                bound.told.setdefault(conn.get_transaction(), {}).update(bearers)
            except BaseException:
                conn.invalidate()  # the session has it already, and would go on with it: unguarded
                raise

    def _check(self, session: Any, *_: Any) -> None:
        transaction = session.get_transaction()
        if session.twophase and connected(transaction):  # in _guard, SQLAlchemy 2.0.40 chokes on that
            raise NotEnforced(connections.TWO_PHASE)
        for conn in connected(transaction):
            # A listener of the user's that comes first and fails keeps _guard from being called.
            if not conn.invalidated and transaction not in bound_on(conn).sessions:
                raise NotEnforced("this transaction was begun without its guard: roll back, and begin again")

    def _check_statement(self, state: Any) -> None:
        self._check(state.session)

    def _check_commit(self, session: Any) -> None:
        self._check(session)
        transaction = session.get_transaction()
        for conn, commits in connected(transaction).items():
            # Somebody else commits the transaction that the session has joined, after _forget. A savepoint of
            # theirs that was rolled back may have taken the guard with it.
            if not commits and not conn.invalidated:
                confirm(conn, bound_on(conn).sessions[transaction])

    def _forget(self, session: Any, transaction: Any) -> None:
        for conn in connected(transaction):
            bound_on(conn).sessions.pop(transaction, None)


@dataclass(frozen=True, eq=False)
class BoundEngine:
    """Guards each transaction in the moment of its BEGIN, when SQLAlchemy has no name for it yet.

    Outside of SQLAlchemy's transactions run a sequence by itself, and what the user's own listeners send at
    BEGIN. One that comes first and fails keeps `_guard` from being called, and SQLAlchemy goes on so; then
    COMMIT may come from a pool that resets by it, or as text.
    """

    bearer: Bearer

    def listeners(self) -> Listeners:
        return {
            "begin": self._guard,
            "before_cursor_execute": self._refuse_autocommit,
            "after_cursor_execute": self._guard_outside,
            "begin_twophase": self._refuse_two_phase,
        }

    def _guard(self, conn: sqlalchemy.Connection) -> None:
        try:
            bound = bound_on(conn)
            if bound.ours:
                return
            connections.refuse_unfit(conn)
            attempt = Attempt(statements.shown([self.bearer]), ours=True)
            bound.ours = True
            try:
                with translating(attempt):
                    connections.run(conn, statements.guard(attempt.bearers))
            finally:
                bound.ours = False
            bound.engines[self] = attempt.bearers
        except BaseException:
            refuse(conn)
            raise

    def _refuse_autocommit(self, conn: sqlalchemy.Connection, *_: Any) -> None:
        if conn.get_transaction() is None and connections.autocommits(conn):
            if not bound_on(conn).ours:
                refuse(conn)
            raise NotEnforced("in autocommit, and begun without its guard: roll back, and begin again")

    def _guard_outside(self, conn: sqlalchemy.Connection, *_: Any) -> None:
        if conn.get_transaction() is None and not bound_on(conn).ours:
            self._guard(conn)  # only now, for SET TRANSACTION must be the first; in time for any COMMIT
            if conn.get_transaction() is not None:
                conn.rollback()  # it could be begun: the sequence alone had run, and is none the worse for it

    def _refuse_two_phase(self, conn: sqlalchemy.Connection, xid: Any) -> None:
        raise NotEnforced(connections.TWO_PHASE)


@dataclass(slots=True, eq=False)
class Bound:
    """What is guarded on one connection. It keeps nothing of SQLAlchemy's alive."""

    engines: dict[BoundEngine, Bearers] = field(default_factory=dict[BoundEngine, Bearers])
    """Whose guard COMMIT must find there, as of the last BEGIN."""
    sessions: WeakKeyDictionary[Any, Bearers] = field(default_factory=WeakKeyDictionary[Any, Bearers])
    """The same by each session's transaction, until that has ended: several may share one COMMIT."""
    told: WeakKeyDictionary[Any, Bearers] = field(default_factory=WeakKeyDictionary[Any, Bearers])
    """Who hears of a refused COMMIT: the bearers of all sessions that were in it, by its transaction."""
    ours: bool = False
    """Whether what begins or is sent now comes from here, and is not to be guarded."""

    def listeners(self) -> Listeners:
        return {"before_cursor_execute": self._check_statement, "commit": self._confirm}

    def _check_statement(self, conn: sqlalchemy.Connection, *_: Any) -> None:
        """Notice at once, where the driver knows it, that the guarded transaction is over."""
        guarded = self.engines or self.sessions
        if guarded and conn.get_transaction() is not None and connections.on_server(conn) is False:
            raise NotEnforced(
                "the guarded transaction was ended by other means than its session or engine, as by a COMMIT "
                "or ROLLBACK that was sent as text: what follows is not guarded. Roll back, and begin again"
            )

    def _confirm(self, conn: sqlalchemy.Connection) -> None:
        """Ask the server, which alone knows what was sent past SQLAlchemy: as text, by the driver."""
        guarded = ChainMap(*self.engines.values(), *self.sessions.values())
        try:
            if guarded:
                confirm(conn, dict(guarded))
        except BaseException:
            conn.invalidate()  # SQLAlchemy sends no ROLLBACK any more once it has come here
            raise


_bound: Final[WeakKeyDictionary[sqlalchemy.Connection, Bound]] = WeakKeyDictionary()


def bound_on(conn: sqlalchemy.Connection) -> Bound:
    """Return what is guarded on a connection, whose COMMIT asks for that from the first call on."""
    if conn not in _bound:
        bound = Bound()
        listen(conn, bound.listeners())
        listen(conn.dialect, {"handle_error": translate})  # shared by all connections, and added once
        _bound[conn] = bound  # if a signal raises before this, those listeners have nothing to look after
    return _bound[conn]


def confirm(conn: sqlalchemy.Connection, bearers: Bearers) -> None:
    """Refuse the COMMIT unless each guard was taken in the very transaction that is open on the server."""
    with translating(Attempt(bearers, ours=True)):
        connections.run(conn, statements.confirm(bearers))


def refuse(conn: sqlalchemy.Connection) -> None:
    """Leave the connection in a transaction that can only be rolled back, as the failed one of a session is.

    Where "begin" raises, SQLAlchemy has no transaction, and begins none any more: what the connection is
    given next would run outside of any, at once in autocommit, and its commit() would say nothing.
    """
    bound = bound_on(conn)
    bound.ours = True
    try:
        with suppress(Exception):
            conn.begin()
            conn.invalidate()
    finally:
        bound.ours = False
        if not (conn.invalidated and conn.in_transaction()):
            conn.close()


def translate(context: Any) -> None:
    """Raise what the error means: what a listener raises, SQLAlchemy raises in place of its own error."""
    conn = context.connection  # None where none could be had, or one in the pool didn't answer
    if conn is not None and (bound := _bound.get(conn)):
        root = conn.get_transaction()
        told = ChainMap(*bound.engines.values(), bound.told.get(root, {}) if root is not None else {})
        attempt = Attempt(dict(told))
        if told and attempt.meaning(context.original_exception):
            failing(context)  # it may come after this in the row of listeners, which ends where one raises
            with translating(attempt):
                raise context.original_exception
