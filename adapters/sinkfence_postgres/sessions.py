"""A session of SQLAlchemy, held to the one connection that is guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sinkfence.errors import NotEnforced

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

GUARDED: Final = "sinkfence_postgres.guarded"
"""Where a session keeps, in its `info`, the transaction that is guarded."""


def refuse_second_connection(session: Session) -> None:
    """Refuse a second connection to the session's present transaction, from here on and at its commit.

    A session with several binds, or a `get_bind` of its own, commits each of its connections by itself, and
    the guard is in one of them. The listeners stay, and leave all other transactions of the session alone.

    Raises:
        NotEnforced: there are several connections already.
    """
    from sqlalchemy import event

    session.info[GUARDED] = session.get_transaction()
    for moment in ("after_begin", "before_commit"):
        if not event.contains(session, moment, _refuse_several):
            event.listen(session, moment, _refuse_several)
    _refuse_several(session)


def _refuse_several(session: Session, *_: object) -> None:
    """At a new connection, and once more at the commit: the first refusal may have been swallowed."""
    transaction = session.get_transaction()
    if transaction is session.info.get(GUARDED) and len(connected(transaction)) > 1:
        raise NotEnforced(
            "this session writes through more than one connection, and one is guarded: "
            "use a session that is bound to a single engine or connection"
        )


def connected(transaction: Any) -> dict[Connection, bool]:
    """Return the connections of a session's transaction, each with whether the session sends COMMIT there.

    It doesn't where it has joined a transaction that was open. SQLAlchemy has no public name for this.
    """
    if transaction is None:
        return {}
    return {
        conn: commits and root is conn.get_transaction()
        for conn, root, commits, _ in transaction._connections.values()
    }


def joined(session: Any) -> bool:
    """Whether a session that is about to begin joins a transaction that is open on its connection."""
    return bool(getattr(session.get_bind(), "in_transaction", bool)())
