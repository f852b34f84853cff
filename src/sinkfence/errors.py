"""What can go wrong, told apart by what to do next.

    SinkfenceError
    ├── StaleToken             stop: no retry with this token can succeed
    │   └── GenerationConflict the same number under another owner: page an operator
    ├── LeaseHeld              somebody else holds it: try later
    ├── LeaseLost              ours once, no longer: stop what it protected
    ├── NotArmed               arm this destination first
    ├── Conflict               what was read is not what stands now: read again
    ├── SchemaMismatch         install, upgrade, or use the matching version
    ├── JobCompleted           it is done: nothing to acquire
    ├── JobMismatch            this destination belongs to another job
    ├── OutcomeUnknown         sent, no answer: repeat with the same key, or read back
    ├── NotEnforced            this destination ignores the check: mend it
    ├── MissingToken           a write arrived without a token
    ├── IdempotencyMismatch    this key was used for other content
    └── GenerationExhausted    the counter's end

Malformed input is a ValueError or a TypeError. Errors of drivers and clients pass through untouched,
apart from those that *are* one of the above. Every error can be pickled, and carries its data as
attributes. Each class has a page of its own, `help_url`, with which its traceback ends.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sinkfence.tokens import Token, label

REFERENCE: Final = "https://sinkfence.readthedocs.io/en/stable/reference/"
"""Where each error, and each problem type of the wire, is explained."""


class SinkfenceError(Exception):
    """sinkfence refused something, or could not find out what became of it."""

    help_url: ClassVar[str] = REFERENCE + "errors.html"
    """The page on this error: what has happened, and what to do next."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__ == __name__:  # a class of somebody else's keeps the page of the one that it extends
            cls.help_url = f"{REFERENCE}errors/{cls.__name__}.html"

    def __init__(self, message: str | None = None) -> None:
        # Without docstrings (`python -OO`) it says what it is called, and the page says the rest.
        super().__init__(message or (type(self).__doc__ or type(self).__name__).partition("\n")[0])
        self.add_note(f"See {self.help_url}")  # for tracebacks: a line of a log has str(), which stays short

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds by cls(*args), and args holds the message alone.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[SinkfenceError], args: tuple[Any, ...], data: dict[str, Any]) -> SinkfenceError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(data)
    return error


class StaleToken(SinkfenceError):
    """This token is stale here: stop, no retry with it can succeed.

    Nothing was changed by *this* attempt. HTTP 412, SQLSTATE SF001.
    """

    _says: ClassVar[str] = (
        "generation {token.generation} of job {token.job_id!r} is stale: {seen} has been seen here. "
        "Stop: no retry with this token can succeed"
    )

    def __init__(
        self, token: Token, mark: int | None = None, *, earlier_attempt_unknown: bool = False
    ) -> None:
        text = self._says.format(token=token, seen="a newer one" if mark is None else f"generation {mark}")
        if earlier_attempt_unknown:
            text += " (a part or an earlier attempt of this call may have been applied)"
        super().__init__(text)
        self.token = token
        """The token that was refused."""
        self.mark = mark
        """The highest generation that the destination has seen, or None where it did not say."""
        self.earlier_attempt_unknown = earlier_attempt_unknown
        """Whether an earlier attempt of the same call got no answer, or a service has committed a part."""


class GenerationConflict(StaleToken):
    """This generation was issued twice: the destination knows it under another owner.

    The store that counts has gone back (a lossy failover, a restored backup): page an operator.
    """

    _says = (
        "generation {token.generation} of job {token.job_id!r} is known here under another owner: "
        "its store has issued a number twice. Stop, and raise the store above it"
    )


class LeaseHeld(SinkfenceError):
    """Somebody else holds the job's lease: try again later."""

    def __init__(self, job_id: str, owner: str | None, retry_after: float) -> None:
        by = f" by {label(owner)!r}" if owner else ""
        super().__init__(f"job {job_id!r} is held{by}: try again in {max(retry_after, 0.0):.3g} s")
        self.job_id = job_id
        self.owner = owner
        """Who holds it, where the store could say."""
        self.retry_after = retry_after
        """Seconds until the present lease runs out, if it isn't renewed."""


class LeaseLost(SinkfenceError):
    """The lease was ours once and no longer is: stop what it protected."""

    def __init__(
        self, token: Token, reason: str, *, result: Any = None, earlier_attempt_unknown: bool = False
    ) -> None:
        super().__init__(
            f"the lease of job {token.job_id!r}, generation {token.generation}, is lost: {reason}. "
            "Stop what it protected"
        )
        self.token = token
        self.reason = reason
        self.result = result
        """What `complete(result)` was to record, so that it isn't dropped in silence."""
        self.earlier_attempt_unknown = earlier_attempt_unknown
        """Whether an earlier attempt of the same call got no answer, and may have been applied."""


class NotArmed(SinkfenceError):
    """This generation was never armed here: arm the destination before writing to it."""

    def __init__(self, token: Token, mark: int | None = None) -> None:
        super().__init__(
            f"generation {token.generation} of job {token.job_id!r} was never armed here "
            f"(highest seen: {'none' if mark is None else mark}): arm this destination first, "
            "before reading what the write depends on"
        )
        self.token = token
        self.mark = mark
        """The highest generation that the destination has seen, None if it has seen none."""


class Conflict(SinkfenceError):
    """What this builds on is not what stands now: read again, then decide."""


class SchemaMismatch(SinkfenceError):
    """What sinkfence needs here is missing, or of another version."""


class JobCompleted(SinkfenceError):
    """The job is done: there is nothing to acquire."""

    def __init__(self, job_id: str, result: Any = None) -> None:
        super().__init__(
            f"job {job_id!r} is completed: its result is on this error; reopen it to run it again"
        )
        self.job_id = job_id
        self.result = result
        """What `complete(result)` recorded."""


class JobMismatch(SinkfenceError):
    """This destination belongs to another job: lease what must have one writer under one job_id.

    HTTP 403, SQLSTATE SF004.
    """

    def __init__(self, token: Token, job_id: str | None = None, message: str | None = None) -> None:
        belongs = "another job" if job_id is None else f"job {job_id!r}"
        super().__init__(
            message
            or (
                f"this destination belongs to {belongs}, and the token is for job {token.job_id!r}. "
                "Generations order the owners of one job only: "
                "lease what must have one writer under one job_id"
            )
        )
        self.token = token
        self.job_id = job_id
        """The job that the destination belongs to, where it could say."""


class OutcomeUnknown(SinkfenceError):
    """Sent, and no answer came: repeat with the same idempotency key, or read back; never guess."""


class NotEnforced(SinkfenceError):
    """This destination does not enforce the check as it is used: nothing here would stop a stale owner.

    SQLSTATE SF005, where the transaction that was guarded is no longer the one to be committed.
    """


class MissingToken(SinkfenceError):
    """A write arrived without a fencing token. HTTP 428, SQLSTATE SF002."""


class IdempotencyMismatch(SinkfenceError):
    """This idempotency key was used before, for other content. HTTP 422."""


class GenerationExhausted(SinkfenceError):
    """The counter has reached its end, 10^15 - 1, and never wraps: go on under another job_id."""
