"""One request's passage through the door, and what its answer may say; no I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

from sinkfence.errors import JobMismatch, MissingToken, SinkfenceError, StaleToken
from sinkfence.sinks import Watch
from sinkfence.tokens import Token, check_job_id
from sinkfence_http.answers import KEY_REQUIRED, NOT_GUARDED, OUTCOME_UNKNOWN, Answer, Refused, refusal_of
from sinkfence_http.records import TRANSIENT, Recording

PASSAGE: Final = "sinkfence.passage"
"""Where a request's passage stands in an ASGI scope or a WSGI environ: no header can get there."""

log: Final = logging.getLogger("sinkfence.http")


@dataclass(frozen=True, slots=True)
class Unwatched:
    """The watch of a gate that sees nothing of what a handler does: it can be held to admit, and no more."""

    committed: bool = True
    applied: bool | None = None
    refused: SinkfenceError | None = None


UNWATCHED: Final = Unwatched()
OPEN: Final = nullcontext[Watch](UNWATCHED)
"""What `enter` returns where a gate locks nothing, as DoorOnly does."""


class Door(Protocol):
    """A fence of either kind."""

    strict: bool


class Passage:
    """One request that the door has let in, from there to its answer."""

    _admitted = False
    _mismatch: JobMismatch | Refused | None = None
    _refusal: Answer | None = None
    _heard: StaleToken | None = None
    _forgotten = False
    _stepped = False

    def __init__(self, token: Token, door: Door, watch: Watch, record: str | None) -> None:
        self.token = token
        self._record = record
        self.door = door
        """Whose door it was: a request passes each door once, however often that is mounted."""
        self._strict = door.strict
        self._watch = watch

    def admit(self, job_id: str) -> Token:
        """Note that the handler named its job, and return the token if it is for that job."""
        if job_id != self.token.job_id:  # which was checked when the token was made
            self._mismatch = JobMismatch(self.token, check_job_id(job_id))
            raise self._mismatch
        self._admitted, self._mismatch = True, None
        return self.token

    def step(self, name: str) -> str:
        """Return the name of a step of this request under its key, as `Fence.step`."""
        if self._record is None:
            self._mismatch = Refused(KEY_REQUIRED)  # a framework may make a 500 of it
            raise self._mismatch
        self._stepped = True
        return " ".join((name, self._record))  # not by format(), which writes an Enum's name

    def judge(self, status: int) -> Answer | None:
        """Return what must be answered instead when the handler's response starts, None if it may go out.

        A framework turns a refusal into a 500 of its own, and a handler may put it into a list of errors: the
        caller must hear it, and its lease. A handler that forgot the check, or that commits after it has
        answered, would tell its caller of a success that nothing has checked: its COMMIT may yet be refused.
        """
        if self._refusal is not None:  # of an error that the framework answers, see frameworks.install
            return self._refusal
        error: Exception | None = self._watch.refused or self._heard or self._mismatch
        if isinstance(error, StaleToken) or (error is not None and status >= 500):
            return self._answer(error)
        # A redirect vouches for an effect as a 200 does, but for one that asks for the write once more.
        if not (self._strict and 200 <= status < 400 and status not in (307, 308)):
            return None
        if not self._admitted:
            problem = "its handler never called fence.admit"
            if status >= 300:
                problem += " (or its framework redirects before, as to an address with a slash at its end)"
        elif not self._watch.committed:
            problem = "nothing guarded was committed before the response started"
        else:
            return None
        log.error("a fenced request of job %r was answered %d, but %s", self.token.job_id, status, problem)
        self._forgotten = True
        return NOT_GUARDED

    def hear(self, error: Exception) -> None:
        """Remember a refusal of this token that a handler has raised: its framework may hide it."""
        for each in _flat(error):
            if isinstance(each, StaleToken) and each.token == self.token:
                self._heard = each

    def refusal(self, error: Exception, *, started: bool) -> Answer | None:
        """Return the answer that a handler's error stands for, None if it must be raised on.

        An error about another token than the request's, say of a service that this one calls, is none of the
        caller's, which would take its own lease for lost.
        """
        of_request = [each for each in _flat(error) if getattr(each, "token", self.token) == self.token]
        of_request.sort(key=lambda each: not isinstance(each, StaleToken))
        answer = next((answer for each in of_request if (answer := self._answer(each))), None)
        if answer is None:
            # A KeyError, say, that an except clause raised in place of a StaleToken, which the gate has seen.
            answer = self.judge(500)
        if answer is not None and started:
            log.error("%s came after the response had started: its sender reads a success", answer.slug)
            return None
        self._refusal = answer
        return answer

    def _answer(self, error: Exception) -> Answer | None:
        # Once a part of the request was committed, no answer may say that nothing ran.
        answer = refusal_of(error)
        if answer is None or not self._applied:
            return answer
        if isinstance(error, StaleToken) or answer is KEY_REQUIRED:
            # No repetition could help: the owner stays stale, and the key stays missing.
            return replace(answer, applied=True)
        return OUTCOME_UNKNOWN

    @property
    def _applied(self) -> bool:
        # A HostGate doesn't see what a handler writes: it may have written from its `admit` on, and where the
        # fence isn't strict, without one.
        begun = self._admitted or not self._strict
        return begun if self._watch.applied is None else self._watch.applied

    def ending(self, recording: Recording) -> tuple[str | None, bool]:
        """Return the answer as text if it is to be kept, and whether the request can be run like a first one.

        Only the handler's own answer is kept, no login page before it. A handler that called `admit` was
        reached; without strict, a 2xx counts as reached.
        """
        status = recording.status
        handled = self._admitted or (not self._strict and status is not None and 200 <= status < 300)
        return recording.kept() if handled else None, self._may_run_again(status)

    def _may_run_again(self, status: int | None) -> bool:
        if not (self._forgotten or self._watch.applied):
            # Nothing was committed that the gate has seen. One that sees nothing, such as a HostGate, goes by
            # the handler: it has not called `admit`, or a 429 of its own says that it did nothing.
            return status in TRANSIENT or not self._applied
        # The handler has committed, or may have, as one that forgot the check may. A step that it asked for
        # is in the ledger of a gate that sees commits: `once` gives its first result to the second run.
        # Without one the customer would pay twice.
        return self._stepped and self._watch.applied is not None


def passage_of(scope: Mapping[str, Any]) -> Passage:
    """Return the passage of a request.

    Raises:
        MissingToken: it came in without one.
    """
    passage = scope.get(PASSAGE)
    if not isinstance(passage, Passage):
        raise MissingToken(
            "this request carries no fencing token: its route is exempt, or no middleware stands before it"
        )
    return passage


def _flat(error: Exception) -> Iterator[Exception]:
    """Yield the error, or those in it where it is a group, as a TaskGroup raises one."""
    if isinstance(error, ExceptionGroup):
        for each in cast("ExceptionGroup[Exception]", error).exceptions:
            yield from _flat(each)
    else:
        yield error
