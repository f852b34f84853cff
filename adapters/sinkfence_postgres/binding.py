"""Sessions and engines that are given to one bearer: every transaction of theirs is guarded."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sinkfence.errors import NotEnforced
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_postgres import connections, statements
from sinkfence_postgres.sessions import connected
from sinkfence_postgres.transactions import Attempt, guard, translating

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.orm import sessionmaker

    Bound = TypeVar("Bound", bound=sqlalchemy.Engine | sessionmaker[Any])

KINDS: Final = ("sqlalchemy:Engine", "sqlalchemy.orm:sessionmaker")


def bind(target: Bound, bearer: Bearer) -> Bound:
    """Guard every transaction that the sessions or the engine begin from here on, and return the same object.

    Where a transaction begins, `guard` is called; where its COMMIT is refused, the error is what it means,
    and the bearer is told. Refused where it begins, it must be rolled back before the session or connection
    takes anything else. A session looks again where it executes, flushes and commits: its connection may have
    been committed or rolled back behind its back. One that was given its connection asks the server at its
    commit, in one more round trip, for a savepoint may have taken the guard with it.
    This can't be undone: make a sessionmaker for each lease, and drop it with the lease.
    Of an engine bind a copy, `bind(engine.execution_options(), lease)`, which shares its pool: arms, and the
    leases, are in autocommit, which is refused here.

    Args:
        target: a SQLAlchemy sessionmaker or Engine.
        bearer: its token is read at the beginning of each transaction.

    Raises, where a transaction begins:
        as `guard`; NotEnforced in autocommit and for a two-phase transaction.

    Raises, later on in a session:
        NotEnforced: the transaction that was guarded is not the one that it is in.
    """
    target_: Any = connections.expect(target, *KINDS)
    if connections.is_a(target_, KINDS[0]):
        bind_engine(target_, bearer)
    else:
        bind_sessions(target_, bearer)
    return target


def bind_sessions(sessions: Any, bearer: Bearer) -> None:
    """Guard each connection of each session: every one of them commits by itself."""
    from sqlalchemy import event

    # By the session's own transaction: several sessions may be in savepoints of one that began outside.
    guarded: WeakKeyDictionary[Any, dict[sqlalchemy.Connection, Guarded]] = WeakKeyDictionary()

    def begun(session: Any, transaction: Any, conn: sqlalchemy.Connection) -> None:
        if not transaction.nested:
            try:
                guard(conn, bearer)
                tokens = statements.shown([bearer])
                _listen(conn, tokens)
                guarded.setdefault(transaction, {})[conn] = Guarded(conn.get_transaction(), tokens)
            except BaseException:
                # The session has the connection already, and would go on with it: unguarded.
                conn.invalidate()
                raise

    def standing(session: Any) -> dict[sqlalchemy.Connection, Guarded]:
        """Return what was guarded, of all that this session writes through; NotEnforced if some is not."""
        found: dict[sqlalchemy.Connection, Guarded] = {}
        transaction = session.get_transaction()
        for conn in connected(transaction):
            if conn.invalidated:
                continue
            held = guarded.get(transaction, {}).get(conn)
            # A listener of the user's that comes first and fails keeps `begun` from being called.
            if held is None:
                raise NotEnforced("this transaction was begun without its guard: roll back, and begin again")
            # The session goes on in whatever was begun on its connection since, and may say nothing of it.
            if conn.get_transaction() is not held.root:
                raise NotEnforced(
                    "the guarded transaction was ended on its connection, behind the session's back: "
                    "roll the session back, and begin again"
                )
            found[conn] = held
        return found

    def executing(state: Any) -> None:
        standing(state.session)

    def flushing(session: Any, *_: Any) -> None:
        standing(session)

    def committing(session: Any) -> None:
        opened = connected(session.get_transaction())
        for conn, held in standing(session).items():
            if not opened[conn]:
                # Whose it is may have rolled back a savepoint, and the guard with it: the server knows.
                with translating(Attempt(held.tokens, ours=True)):
                    connections.run(conn, statements.confirm(held.tokens))

    event.listen(sessions, "after_begin", begun)
    event.listen(sessions, "do_orm_execute", executing)
    event.listen(sessions, "before_flush", flushing)
    event.listen(sessions, "before_commit", committing)


@dataclass(frozen=True, slots=True)
class Guarded:
    """What was guarded on one connection of a session."""

    root: object
    """SQLAlchemy's transaction; the session itself may be in a savepoint of it."""
    tokens: dict[Token, Bearer]


def bind_engine(engine: Any, bearer: Bearer) -> None:
    """Guard each transaction in the moment of its BEGIN, when SQLAlchemy has no name for it yet."""
    from sqlalchemy import event

    def begun(conn: sqlalchemy.Connection) -> None:
        if conn in _refused:
            return
        try:
            connections.refuse_unfit(conn)
            attempt = Attempt(statements.shown([bearer]), ours=True)
            _guarding.add(conn)
            try:
                with translating(attempt):
                    connections.run(conn, statements.guard(attempt.bearers))
            finally:
                _guarding.discard(conn)
            _listen(conn, attempt.bearers)
        except BaseException:
            _refuse(conn)
            raise

    # Outside of SQLAlchemy's transactions run a sequence by itself, and what the user's own listeners send at
    # BEGIN. A listener that comes first and fails keeps `begun` from being called, and SQLAlchemy goes on so;
    # then COMMIT may come from a pool that resets by it, or as text.
    def executing(conn: sqlalchemy.Connection, *_: Any) -> None:
        if conn.get_transaction() is None and connections.autocommits(conn):
            if conn not in _refused:
                _refuse(conn)
            raise NotEnforced("in autocommit, and begun without its guard: roll back, and begin again")

    def executed(conn: sqlalchemy.Connection, *_: Any) -> None:
        if conn.get_transaction() is None and conn not in _guarding:
            begun(conn)  # afterwards, for SET TRANSACTION must come first; what matters is that COMMIT looks
            if conn.get_transaction() is not None:
                conn.rollback()  # it could be begun: the sequence alone had run, and is none the worse for it

    def prepared(conn: sqlalchemy.Connection, xid: Any) -> None:
        raise NotEnforced(connections.TWO_PHASE)

    event.listen(engine, "begin", begun)
    event.listen(engine, "before_cursor_execute", executing)
    event.listen(engine, "after_cursor_execute", executed)
    event.listen(engine, "begin_twophase", prepared)


_guarding: Final[WeakSet[sqlalchemy.Connection]] = WeakSet()
"""Those on which a bound engine's own statement is under way."""
_refused: Final[WeakSet[sqlalchemy.Connection]] = WeakSet()


def _refuse(conn: sqlalchemy.Connection) -> None:
    """Leave the connection in a transaction that can only be rolled back, as the failed one of a session is.

    Where this event raises, SQLAlchemy has no transaction, and begins none any more: what the connection is
    given next would run outside of any, at once in autocommit, and its commit() would say nothing.
    """
    _refused.add(conn)
    try:
        with suppress(Exception):
            conn.begin()
            conn.invalidate()
    finally:
        _refused.discard(conn)
        if not (conn.invalidated and conn.in_transaction()):
            conn.close()


_bearers: Final[WeakKeyDictionary[Any, dict[Token, Bearer]]] = WeakKeyDictionary()
# By SQLAlchemy's transaction, for which sessions of several leases may be guarded, each of them to be told; a
# bound engine, which has none yet and the same bearers for all, by the connection.


def _listen(conn: sqlalchemy.Connection, bearers: dict[Token, Bearer]) -> None:
    """Have the errors of this connection translated, that of its COMMIT above all."""
    from sqlalchemy import event

    _bearers.setdefault(conn.get_transaction() or conn, {}).update(bearers)
    if not event.contains(conn.dialect, "handle_error", _translate):
        event.listen(conn.dialect, "handle_error", _translate)


def _translate(context: Any) -> None:
    """Raise what the error means: what a listener raises, SQLAlchemy raises in place of its own error."""
    conn = context.connection
    if conn is None:  # none could be had, or one in the pool didn't answer
        return
    root = conn.get_transaction()
    attempt = Attempt({**_bearers.get(conn, {}), **(_bearers.get(root, {}) if root is not None else {})})
    if attempt.bearers and attempt.meaning(context.original_exception):
        with translating(attempt):
            raise context.original_exception
