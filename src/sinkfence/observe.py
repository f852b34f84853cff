"""What happens to leases and at sinks, told to logging and to OpenTelemetry.

OpenTelemetry's API is loaded at the first event, where it is installed (`sinkfence[otel]`), and does nothing
until the program sets up its SDK. No log record, span or measurement holds a signature, a password or the
random bits of an owner; measurements have no job_id either, as there may be millions.

Logging and telemetry may fail. The write or the loss that they report has happened all the same, so their
errors are swallowed.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, Literal

from sinkfence.errors import (
    Conflict,
    IdempotencyMismatch,
    JobMismatch,
    MissingToken,
    NotArmed,
    NotEnforced,
    SinkfenceError,
    StaleToken,
)
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token


class _Log(logging.LoggerAdapter[logging.Logger]):
    """Loses a record rather than raise what a filter or handler of the program's raises."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave a record its own `extra`."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log it, as of the line that called."""
        with suppress(Exception):
            kwargs.setdefault("stacklevel", 2)
            super().log(level, msg, *args, **kwargs)


log: Final = _Log(logging.getLogger("sinkfence"), {})
# Without a handler Python prints warnings where a program has set up no logging.
log.logger.addHandler(logging.NullHandler())

REFUSALS: Final = (
    *(StaleToken, NotArmed, JobMismatch, MissingToken),
    *(NotEnforced, Conflict, IdempotencyMismatch),
)


_AGES: Final = (0.5, 1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600)
"""Bounds of takeover ages, in seconds, around ttls. OpenTelemetry's own have nothing between 25 and 50."""


class _Telemetry:
    def __init__(self) -> None:
        from opentelemetry import metrics, trace

        counter = metrics.get_meter("sinkfence").create_counter
        self.acquisitions = counter("sinkfence.lease.acquisitions", "{acquisition}", "Leases acquired")
        self.renewals = counter("sinkfence.lease.renewals", "{renewal}", "Renewals that the store confirmed")
        self.losses = counter("sinkfence.lease.losses", "{loss}", "Leases lost")
        self.refusals = counter("sinkfence.sink.refusals", "{refusal}", "What a sink refused")
        self.faults = counter(
            "sinkfence.store.faults", "{fault}", "What put a lease store's numbers in doubt"
        )
        self.takeovers = metrics.get_meter("sinkfence").create_histogram(
            "sinkfence.lease.takeover.age",
            "s",
            "How long another owner kept an acquisition waiting",
            explicit_bucket_boundaries_advisory=_AGES,
        )
        self.tracer = trace.get_tracer("sinkfence")


@cache
def _telemetry() -> _Telemetry | None:
    try:
        return _Telemetry()
    except ImportError:
        return None
    except Exception:  # whatever a provider of the environment's raises
        log.exception("OpenTelemetry is not told of leases and sinks")
        return None


def acquired(token: Token, took_over: float | None) -> None:
    """Tell that a lease was acquired, and for how many seconds somebody else had kept it meanwhile."""
    log.debug("job %r: acquired, generation %d", token.job_id, token.generation, extra=_extra(token))
    if telemetry := _telemetry():
        with suppress(Exception):
            telemetry.acquisitions.add(1)
            if took_over is not None:
                telemetry.takeovers.record(took_over)


def renewed(count: int) -> None:
    """Tell that the store has confirmed so many renewals."""
    if telemetry := _telemetry():
        with suppress(Exception):
            telemetry.renewals.add(count)


def lost(token: Token, error: SinkfenceError) -> None:
    """Tell that a lease was lost: to time or a later owner, or because a sink has seen one."""
    log.warning("%s", error, extra=_extra(token))
    if telemetry := _telemetry():
        with suppress(Exception):
            telemetry.losses.add(1, {"error.type": type(error).__name__})


def fault(kind: Literal["went-back", "ahead-of-clock"]) -> None:
    """Tell that a lease store's numbers are in doubt; its finder logs which."""
    if telemetry := _telemetry():
        with suppress(Exception):
            telemetry.faults.add(1, {"sinkfence.fault": kind})


def refused(sink: str, error: BaseException) -> None:
    """Tell that a sink has refused something: once of each error, and of none that is no refusal."""
    if not isinstance(error, REFUSALS) or vars(error).get("_told") == sink:
        return
    vars(error)["_told"] = sink
    token: Token | None = getattr(error, "token", None)
    log.warning("%s refused: %s", sink, error, extra={**(_extra(token) if token else {}), "sink": sink})
    if telemetry := _telemetry():
        with suppress(Exception):
            telemetry.refusals.add(1, {"sinkfence.sink": sink, "error.type": type(error).__name__})


def refuse(sink: str, bearer: Bearer, stale: StaleToken) -> None:
    """Tell everybody, the bearer too, that a sink has refused its token, or has seen a newer one since."""
    refused(sink, stale)
    bearer.lose(stale)


@contextmanager
def at(sink: str, act: str, *tokens: Token) -> Generator[None]:
    """Surround an act at a sink (`arm`, `write`) by a span, and tell if it is refused."""
    span = _Span(sink, act, tokens)
    try:
        yield
    except BaseException as error:
        span.end(error)
        refused(sink, error)
        raise
    span.end(None)


class _Span:
    """The current span during one act, if there is somebody to be told of it."""

    def __init__(self, sink: str, act: str, tokens: tuple[Token, ...]) -> None:
        self._block: Any = None
        if telemetry := _telemetry():
            with suppress(Exception):
                block = telemetry.tracer.start_as_current_span(
                    f"{act} {sink}",
                    attributes={
                        "sinkfence.sink": sink,
                        "sinkfence.job_id": [token.job_id for token in tokens],
                        "sinkfence.generation": [token.generation for token in tokens],
                    },
                    record_exception=False,
                    set_status_on_exception=False,
                )
                self._span, self._block = block.__enter__(), block

    def end(self, error: BaseException | None) -> None:
        if self._block is None:
            return
        with suppress(Exception):
            if isinstance(error, Exception):
                self._tell(error)
        with suppress(Exception):
            self._block.__exit__(None, None, None)

    def _tell(self, error: Exception) -> None:
        from opentelemetry.trace import StatusCode

        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        # No text of others: a driver's has the statement's parameters in it, the owner among them; and so has
        # the trace of ours, whose cause it is.
        said = {"exception.message": str(error)} if isinstance(error, SinkfenceError) else {}
        self._span.add_event("exception", {"exception.type": kind, **said})
        self._span.set_status(StatusCode.ERROR, kind)


def _extra(token: Token) -> dict[str, str | int]:
    return {"job_id": token.job_id, "generation": token.generation}
