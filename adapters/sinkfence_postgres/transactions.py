"""Transactions that commit only while their token is the newest that the database has seen."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sinkfence import observe
from sinkfence.errors import OutcomeUnknown, SinkfenceError, StaleToken
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_postgres import connections, statements, watch
from sinkfence_postgres.outcomes import follow
from sinkfence_postgres.refusals import forbidden, lacking, lost, refusal, sqlstate

if TYPE_CHECKING:
    from sinkfence_postgres.connections import AnyTx, Tx


@dataclass(slots=True)
class Attempt:
    """One call's dealings with the server, by which an error is understood."""

    bearers: dict[Token, Bearer] = field(default_factory=dict[Token, Bearer])
    ours: bool = False
    """Whether the statement under way is ours, not the user's."""
    committing: bool = False
    """Whether COMMIT may have been sent."""

    def meaning(self, exc: Exception) -> SinkfenceError | None:
        """Return what the error is, or None where it is the driver's or the user's own affair."""
        if (known := refusal(exc) or lacking(exc)) or (self.ours and (known := forbidden(exc))):
            return known
        if self.committing and lost(exc):
            return OutcomeUnknown(
                "COMMIT was sent and the connection was lost before its answer: the transaction was applied "
                "or not. Repeat it with the same idempotency key, or read back; never guess"
            )
        return None


@contextmanager
def translating(attempt: Attempt) -> Generator[None]:
    """Raise in place of a driver's error what it means, and let the bearer hear of a refusal of its token."""
    try:
        yield
    except Exception as exc:
        if (known := attempt.meaning(exc)) is None:
            if attempt.ours and isinstance(exc, StaleToken) and exc.token in attempt.bearers:
                # `bind` has made it of the driver's error already, and told the bearers that it knew.
                observe.refuse("postgres", attempt.bearers[exc.token], exc)
            if attempt.committing and sqlstate(exc) is None and not isinstance(exc, SinkfenceError):
                # It answers no COMMIT: a signal's handler has raised it meanwhile, or a listener afterwards.
                watch.doubt(attempt.bearers)
            raise
        watch.hear(known)
        if isinstance(known, StaleToken) and known.token in attempt.bearers:
            observe.refuse("postgres", attempt.bearers[known.token], known)
        else:
            observe.refused("postgres", known)
        raise known from exc
    except BaseException:
        # A task is cancelled while it waits for the answer to its COMMIT: the server may have applied that.
        if attempt.committing:
            watch.doubt(attempt.bearers)
        raise


def guard(tx: AnyTx, *bearers: Bearer, lock: bool = False) -> None:
    """Guard the user's own open transaction: its COMMIT is refused if by then a newer owner has armed.

    Call it before the first write, and not inside a savepoint that may be rolled back: the guard would go
    with it. The user commits, best inside `translated()`. Where the session sets no bounds of its own, the
    transaction gets lock_timeout 5 s and idle_in_transaction_session_timeout 60 s, so that a frozen owner
    doesn't keep its row locks for ever. One that is frozen in mid-statement, as in a COPY, does: its
    successor ends it with arm(evict=True).

    Args:
        tx: a psycopg Connection; a SQLAlchemy Connection, Session or scoped_session.
        bearers: at most 1,000; their tokens are read now.
        lock: also keep a successor from arming until this transaction has ended.

    Raises:
        StaleToken, GenerationConflict: a newer owner was seen; the bearer is told.
        NotArmed: this generation was never armed here.
        NotEnforced: the connection is in autocommit, the session has more than one (each that is opened later
            is refused when it is), or the transaction is a two-phase or read-only one.
        SchemaMismatch: sinkfence is not installed here, or this role may not use it.
    """
    tx_ = connections.expect(tx, *connections.KINDS)
    connections.sync(tx_)
    connections.refuse_unfit(tx_)
    attempt = Attempt(statements.shown(bearers), ours=True)
    with translating(attempt):
        connections.run(tx_, statements.guard(attempt.bearers, lock))
    watch.guarded(attempt.bearers, follow(tx_))


@contextmanager
def transaction(tx: Tx, *bearers: Bearer) -> Generator[Tx]:
    """Begin a transaction, guard it, run the block, commit: refused to all but the newest owner.

    The check stands inside COMMIT, in the same atomic step: a block that was frozen for hours is refused
    there, and never keeps its successor from arming. An exception in the block rolls back and passes.
    Where the session sets no bounds of its own, those of `guard` hold: a wait for a lock fails after 5 s, and
    60 s between two statements are the end of the session (25P03). So compute before the block.

    Args:
        tx: a psycopg Connection; a SQLAlchemy Connection, Session or scoped_session.
        bearers: at most 1,000; their tokens are read now.

    Raises:
        StaleToken, GenerationConflict, NotArmed, SchemaMismatch: as `guard`; nothing was applied.
        JobMismatch, MissingToken: a protected table refused the write.
        NotEnforced: a transaction is open already, the connection is in autocommit, or the guard would not
            reach all of it: a session with several connections, two-phase commit, a transaction that is
            read-only or that the block has ended by itself.
        OutcomeUnknown: the connection was lost after COMMIT was sent. Lost earlier: the driver's error.
    """
    tx_ = connections.expect(tx, *connections.KINDS)
    connections.sync(tx_)
    connections.refuse_open(tx_)
    attempt = Attempt(statements.shown(bearers))
    writing = observe.at("postgres", "write", *attempt.bearers)
    with writing, translating(attempt), watch.block(attempt.bearers) as done:
        with connections.begun(tx_):
            connections.refuse_unfit(tx_)
            attempt.ours = True
            connections.run(tx_, statements.guard(attempt.bearers))
            attempt.ours = False
            yield tx
            # An error that the block has swallowed leaves the transaction aborted, and then COMMIT "succeeds"
            # with the tag ROLLBACK. One that the block has ended behind the driver's back was followed by
            # another, which nothing guards. And a connection that is broken is known before COMMIT is sent.
            connections.sync(tx_)
            connections.flush(tx_)
            attempt.ours = True
            connections.run(tx_, statements.confirm(attempt.bearers))
            attempt.ours = False
            attempt.committing = True
        if attempt.committing:  # else the user has left by psycopg.Rollback
            done()


@contextmanager
def translated() -> Generator[None]:
    """Surround a commit of one's own: errors are raised as what they are, as by `transaction`.

    Let them out: of psycopg's own connection, unlike SQLAlchemy's, no more is known afterwards than that its
    transaction has ended. What ended it inside, if it was no COMMIT, isn't seen.

    Raises:
        StaleToken, GenerationConflict, NotArmed, JobMismatch, MissingToken: nothing was applied.
        OutcomeUnknown: the connection was lost, and COMMIT may have been sent.
        SinkfenceError: an error that was swallowed had aborted the transaction: COMMIT has rolled it back.
            Seen where the transaction was guarded in the same thread or task.
    """
    with watch.commit(), translating(Attempt(committing=True)):
        yield
