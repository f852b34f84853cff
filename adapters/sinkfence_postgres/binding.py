"""Sessions and engines that are given to one bearer: every transaction of theirs is guarded."""

from __future__ import annotations

from contextlib import suppress
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
    takes anything else. This can't be undone: make a sessionmaker for each lease, and drop it with the lease.
    Of an engine bind a copy, `bind(engine.execution_options(), lease)`, which shares its pool: arms, and the
    leases, are in autocommit, which is refused here.

    Args:
        target: a SQLAlchemy sessionmaker or Engine.
        bearer: its token is read at the beginning of each transaction.

    Raises, where a transaction begins:
        as `guard`; NotEnforced in autocommit and for a two-phase transaction.
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
    guarded: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()

    def begun(session: Any, transaction: Any, conn: sqlalchemy.Connection) -> None:
        if not transaction.nested:
            try:
                guard(conn, bearer)
                _listen(conn, statements.shown([bearer]))
                guarded.setdefault(transaction, set()).add(id(conn))
            except BaseException:
                # The session has the connection already, and would go on with it: unguarded.
                conn.invalidate()
                raise

    def committing(session: Any) -> None:
        # A listener of the user's that comes first and fails keeps `begun` from being called.
        transaction = session.get_transaction()
        for conn in connected(transaction):  # which keeps them alive, and so their ids
            if not conn.invalidated and id(conn) not in guarded.get(transaction, ()):
                raise NotEnforced("this transaction was begun without its guard: roll back, and begin again")

    event.listen(sessions, "after_begin", begun)
    event.listen(sessions, "before_commit", committing)


def bind_engine(engine: Any, bearer: Bearer) -> None:
    """Guard each transaction in the moment of its BEGIN, when SQLAlchemy has no name for it yet."""
    from sqlalchemy import event

    def begun(conn: sqlalchemy.Connection) -> None:
        if conn in _refused:
            return
        try:
            connections.refuse_unfit(conn)
            attempt = Attempt(statements.shown([bearer]), ours=True)
            with translating(attempt):
                connections.run(conn, statements.guard(attempt.bearers))
            _listen(conn, attempt.bearers)
        except BaseException:
            _refuse(conn)
            raise

    def executing(conn: sqlalchemy.Connection, *_: Any) -> None:
        # A listener of the user's that comes first and fails keeps `begun` from being called, and SQLAlchemy
        # goes on outside of any transaction. Else nothing is committed there; but in autocommit all of it is.
        if conn.get_transaction() is None and connections.autocommits(conn):
            _refuse(conn)
            raise NotEnforced("in autocommit, and begun without its guard: roll back, and begin again")

    def prepared(conn: sqlalchemy.Connection, xid: Any) -> None:
        raise NotEnforced(connections.TWO_PHASE)

    event.listen(engine, "begin", begun)
    event.listen(engine, "before_cursor_execute", executing)
    event.listen(engine, "begin_twophase", prepared)


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


_bearers: Final[WeakKeyDictionary[sqlalchemy.Connection, dict[Token, Bearer]]] = WeakKeyDictionary()


def _listen(conn: sqlalchemy.Connection, bearers: dict[Token, Bearer]) -> None:
    """Have the errors of this connection translated, that of its COMMIT above all."""
    from sqlalchemy import event

    _bearers[conn] = bearers
    if not event.contains(conn.dialect, "handle_error", _translate):
        event.listen(conn.dialect, "handle_error", _translate)


def _translate(context: Any) -> None:
    """Raise what the error means: what a listener raises, SQLAlchemy raises in place of its own error."""
    if context.connection is None:  # none could be had, or one in the pool didn't answer
        return
    attempt = Attempt(_bearers.get(context.connection, {}))
    if attempt.bearers and attempt.meaning(context.original_exception):
        with translating(attempt):
            raise context.original_exception
