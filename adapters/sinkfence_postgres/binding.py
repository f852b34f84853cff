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
    if connections.is_a(target_, KINDS[0]):
        bind_engine(target_, bearer)
    else:
        bind_sessions(target_, bearer)
    return target


def bind_sessions(sessions: Any, bearer: Bearer) -> None:
    """Guard each connection of each session: every one of them commits by itself."""
    from sqlalchemy import event

    def begun(session: Any, transaction: Any, conn: sqlalchemy.Connection) -> None:
        if not transaction.nested:
            try:
                guard(conn, bearer)
                _hold(conn, transaction, statements.shown([bearer]))
            except BaseException:
                # The session has the connection already, and would go on with it: unguarded.
                conn.invalidate()
                raise

    def judge(session: Any, *_: Any) -> None:
        transaction = session.get_transaction()
        if session.twophase and connected(transaction):  # as it began; SQLAlchemy 2.0.40 chokes on that
            raise NotEnforced(connections.TWO_PHASE)
        for conn in connected(transaction):
            # A listener of the user's that comes first and fails keeps `begun` from being called.
            if not conn.invalidated and transaction not in _held.get(conn, ()):
                raise NotEnforced("this transaction was begun without its guard: roll back, and begin again")

    def executing(state: Any) -> None:
        judge(state.session)

    def committing(session: Any) -> None:
        judge(session)
        transaction = session.get_transaction()
        for conn, commits in connected(transaction).items():
            # Where the COMMIT is another's, whose savepoint may have taken the guard with it.
            if not commits and not conn.invalidated:
                _confirm(conn, _held[conn][transaction])

    def ended(session: Any, transaction: Any) -> None:
        for conn in connected(transaction):
            if (held := _held.get(conn)) is not None:
                held.pop(transaction, None)

    event.listen(sessions, "after_begin", begun)
    event.listen(sessions, "do_orm_execute", executing)
    event.listen(sessions, "before_flush", judge)
    event.listen(sessions, "before_commit", committing)
    event.listen(sessions, "after_transaction_end", ended)


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
            _hold(conn, conn, attempt.bearers)
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


_held: Final[WeakKeyDictionary[sqlalchemy.Connection, WeakKeyDictionary[Any, dict[Token, Bearer]]]] = (
    WeakKeyDictionary()
)
# Whose guard must be there at the next COMMIT: of a session's transaction, until it has ended, as
# sessions may be in savepoints of one that began outside; of a bound engine, by the connection itself.
_bearers: Final[WeakKeyDictionary[Any, dict[Token, Bearer]]] = WeakKeyDictionary()
# By SQLAlchemy's transaction, for which sessions of several leases may be guarded, each of them to be told; a
# bound engine, which has none yet and the same bearers for all, by the connection.


def _hold(conn: sqlalchemy.Connection, key: Any, bearers: dict[Token, Bearer]) -> None:
    """Have the guard looked for before each COMMIT, and the errors of this connection translated."""
    from sqlalchemy import event

    if conn not in _held:
        event.listen(conn, "commit", _committing)
        event.listen(conn, "before_cursor_execute", _executing)
    if not event.contains(conn.dialect, "handle_error", _translate):
        event.listen(conn.dialect, "handle_error", _translate)
    _held.setdefault(conn, WeakKeyDictionary())[key] = bearers
    _bearers.setdefault(conn.get_transaction() or conn, {}).update(bearers)


def _committing(conn: sqlalchemy.Connection) -> None:
    """Ask the server, which alone knows what was sent past SQLAlchemy: as text, by the driver's cursor."""
    tokens = {token: bearer for held in list(_held[conn].values()) for token, bearer in held.items()}
    try:
        if tokens:
            _confirm(conn, tokens)
    except BaseException:
        conn.invalidate()  # SQLAlchemy sends no ROLLBACK any more once it has come here
        raise


def _confirm(conn: sqlalchemy.Connection, tokens: dict[Token, Bearer]) -> None:
    with translating(Attempt(tokens, ours=True)):
        connections.run(conn, statements.confirm(tokens))


def _executing(conn: sqlalchemy.Connection, *_: Any) -> None:
    """Notice at once, where the driver knows it, that the guarded transaction is over."""
    if _held[conn] and conn.get_transaction() is not None and connections.on_server(conn) is False:
        raise NotEnforced(
            "the guarded transaction was ended by other means than its session or engine, as by a COMMIT or "
            "ROLLBACK that was sent as text: what follows is not guarded. Roll back, and begin again"
        )


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
