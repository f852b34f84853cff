"""What happens to leases and at sinks, told to logging and to OpenTelemetry.

OpenTelemetry's API is loaded at the first event, where it is installed (`sinkfence[otel]`), and does nothing
until the program sets up its SDK. Neither a log record nor a measurement holds a signature, a password or an
owner value; measurements have no job_id either, as there may be millions.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Final

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

log = logging.getLogger("sinkfence")
log.addHandler(logging.NullHandler())  # else Python prints warnings where a program has set up no logging

REFUSALS: Final = (
    *(StaleToken, NotArmed, JobMismatch, MissingToken),
    *(NotEnforced, Conflict, IdempotencyMismatch),
)


class _Telemetry:
    def __init__(self) -> None:
        from opentelemetry import metrics, trace

        counter = metrics.get_meter("sinkfence").create_counter
        self.acquisitions = counter("sinkfence.lease.acquisitions", "{acquisition}", "Leases acquired")
        self.renewals = counter("sinkfence.lease.renewals", "{renewal}", "Renewals that the store confirmed")
        self.losses = counter("sinkfence.lease.losses", "{loss}", "Leases lost")
        self.refusals = counter("sinkfence.sink.refusals", "{refusal}", "What a sink refused")
        self.takeovers = metrics.get_meter("sinkfence").create_histogram(
            "sinkfence.lease.takeover.age", "s", "How long another owner kept an acquisition waiting"
        )
        self.tracer = trace.get_tracer("sinkfence")


@cache
def _telemetry() -> _Telemetry | None:
    try:
        return _Telemetry()
    except ImportError:
        return None


def acquired(token: Token, took_over: float | None) -> None:
    """Tell that a lease was acquired, and for how many seconds somebody else had kept it meanwhile."""
    log.debug("job %r: acquired, generation %d", token.job_id, token.generation, extra=_extra(token))
    if telemetry := _telemetry():
        telemetry.acquisitions.add(1)
        if took_over is not None:
            telemetry.takeovers.record(took_over)


def renewed(count: int) -> None:
    """Tell that the store has confirmed so many renewals."""
    if telemetry := _telemetry():
        telemetry.renewals.add(count)


def lost(token: Token, error: SinkfenceError) -> None:
    """Tell that a lease was lost: to time or a later owner, or because a sink has seen one."""
    log.warning("%s", error, extra=_extra(token))
    if telemetry := _telemetry():
        telemetry.losses.add(1, {"error.type": type(error).__name__})


def refused(sink: str, error: Exception) -> None:
    """Tell that a sink has refused something: once of each error, and of none that is no refusal."""
    if not isinstance(error, REFUSALS) or vars(error).get("_told") == sink:
        return
    vars(error)["_told"] = sink
    token: Token | None = getattr(error, "token", None)
    log.warning("%s refused: %s", sink, error, extra={**(_extra(token) if token else {}), "sink": sink})
    if telemetry := _telemetry():
        telemetry.refusals.add(1, {"sinkfence.sink": sink, "error.type": type(error).__name__})


def refuse(sink: str, bearer: Bearer, stale: StaleToken) -> None:
    """Tell everybody, the bearer too, that a sink has refused its token, or has seen a newer one since."""
    refused(sink, stale)
    bearer.lose(stale)


@contextmanager
def at(sink: str, act: str, *tokens: Token) -> Generator[None]:
    """Surround an act at a sink (`arm`, `write`) by a span, and tell if it is refused."""
    telemetry = _telemetry()
    try:
        if telemetry is None:
            yield
            return
        with telemetry.tracer.start_as_current_span(f"{act} {sink}") as span:
            span.set_attribute("sinkfence.sink", sink)
            span.set_attribute("sinkfence.job_id", [token.job_id for token in tokens])
            span.set_attribute("sinkfence.generation", [token.generation for token in tokens])
            yield
    except REFUSALS as error:
        refused(sink, error)
        raise


def _extra(token: Token) -> dict[str, str | int]:
    return {"job_id": token.job_id, "generation": token.generation}
