"""What leases and sinks tell to logging and to OpenTelemetry's SDK."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from sinkfence import LeaseHeld, LeaseLost, Leases, NotArmed, StaleToken, Token, observe
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore

JOB = "invoice-42"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "observation.md"


def test_the_page_names_what_is_measured(seen: Any, everything: Callable[[], None]) -> None:
    """Each metric of the page is told, with its unit and attributes, by what leases, stores and sinks do."""
    everything()
    assert seen.metrics() == {
        "sinkfence.lease.acquisitions {acquisition}": [({}, 3)],
        "sinkfence.lease.takeover.age s": [({}, 40.0)],
        "sinkfence.lease.renewals {renewal}": [({}, 1)],
        "sinkfence.lease.losses {loss}": [
            ({"error.type": "StaleToken"}, 1),
            ({"error.type": "LeaseLost"}, 1),
        ],
        "sinkfence.sink.refusals {refusal}": [
            ({"sinkfence.sink": "postgres", "error.type": "StaleToken"}, 1)
        ],
        "sinkfence.store.faults {fault}": [
            ({"sinkfence.fault": "went-back"}, 1),
            ({"sinkfence.fault": "ahead-of-clock"}, 1),
        ],
    }
    rows = re.findall(r"^\| `(\S+)` \| \w+, (\S+) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert {f"{name} {unit}": set(re.findall(r"`(\S+?)`", keys)) for name, unit, keys in rows} == {
        name: {key for attributes, _ in points for key in attributes}
        for name, points in seen.metrics().items()
    }


def test_the_heartbeats_renewals_are_counted(seen: Any, leases_of: Callable[..., Leases]) -> None:
    """A batch counts as many renewals as it renewed leases."""
    with leases_of(MemoryStore(), heartbeat=0.01).hold(JOB) as lease:
        first = lease.lease_until
        while lease.lease_until == first:
            pass
    ((_, count),) = seen.metrics()["sinkfence.lease.renewals {renewal}"]
    assert count >= 1


def test_an_act_at_a_sink_is_a_span(seen: Any) -> None:
    """It has the job and the generation; an error marks it, and only a refusal counts as one."""
    token = Token(JOB, 7, "a:1")
    with observe.at("s3", "arm", token):
        pass
    with pytest.raises(ConnectionError), observe.at("s3", "write", token):
        raise ConnectionError
    arm, write = seen.exporter.get_finished_spans()
    assert (arm.name, arm.status.is_ok) == ("arm s3", True)
    assert dict(arm.attributes) == {
        "sinkfence.sink": "s3",
        "sinkfence.job_id": (JOB,),
        "sinkfence.generation": (7,),
    }
    assert (write.name, write.status.is_ok) == ("write s3", False)
    # A driver's text may have the statement's parameters in it.
    assert [dict(each.attributes) for each in write.events] == [
        {"exception.type": "builtins.ConnectionError"}
    ]
    assert "sinkfence.sink.refusals {refusal}" not in seen.metrics()


def test_log_records_carry_their_data(caplog: Any, leases_of: Callable[..., Leases]) -> None:
    """Job, generation and sink are attributes of the record; an owner's random bits are nowhere."""
    caplog.set_level(logging.DEBUG, "sinkfence")
    store = MemoryStore()
    lease = leases_of(store).acquire(JOB)
    token = lease.token
    with pytest.raises(NotArmed), observe.at("postgres", "write", token):
        raise NotArmed(token)
    store.reopen(JOB)
    store.acquire(JOB, "b:2", 30.0)
    with pytest.raises(LeaseLost):
        lease.renew()
    told = [(r.levelname, r.job_id, r.generation, getattr(r, "sink", None)) for r in caplog.records]
    assert told == [
        ("DEBUG", JOB, 1, None),
        ("WARNING", JOB, 1, "postgres"),
        ("WARNING", JOB, 1, None),
    ]
    assert token.owner.rpartition(":")[2] not in "".join(str(vars(record)) for record in caplog.records)


def test_without_opentelemetry_nothing_is_missed() -> None:
    """The API is loaded at the first event, and where it isn't installed everything else works."""
    script = (
        "import sys\n"
        "from sinkfence import Leases, observe\nfrom sinkfence.stores.memory import MemoryStore\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "sys.modules['opentelemetry'] = None\n"
        "with Leases(MemoryStore()).hold('job') as lease, observe.at('s3', 'write', lease.token):\n"
        "    print('held', lease.generation)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "held 1\n"


def test_no_text_has_an_owners_random_bits(
    pg: SqlStore, leases_of: Callable[..., Leases], losses: Any, caplog: Any
) -> None:
    """Who lost a job, or finds it held, is told the label of whose it is, and no more."""
    with suppress(LeaseLost), leases_of(pg, heartbeat=0.01, on_lost=losses).hold(JOB):
        pg.reopen(JOB)
        successor = leases_of(pg, owner="worker:b").acquire(JOB)
        assert losses.event.wait(10)
        with pytest.raises(LeaseHeld, match="by 'worker:b'") as held:
            leases_of(pg).acquire(JOB)
    assert "owner 'worker:b'" in caplog.text
    assert held.value.owner == successor.token.owner
    texts = caplog.text + str(held.value) + "".join(str(error) for _, error in losses.heard)
    assert successor.token.owner.rpartition(":")[2] not in texts


class Broken(logging.Handler):
    """A handler for requests only, as many a filter is: elsewhere there is none, and it raises."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(logging.DEBUG)
        self.error = error

    def handle(self, record: logging.LogRecord) -> bool:
        """Raise, as logging lets a filter's error pass."""
        raise self.error(record.getMessage())


@pytest.fixture
def deaf(monkeypatch: Any) -> Iterator[None]:
    """Logging and OpenTelemetry that raise whatever they are told."""

    class Meter:
        def create_counter(self, *args: object, **advice: object) -> Any:
            return self

        create_histogram = create_counter

        def add(self, *args: object) -> None:
            raise RuntimeError("a reader of mine is broken")

        record = add

    class Processor(SpanProcessor):
        def on_end(self, span: object) -> None:
            raise RuntimeError("a processor of mine is broken")

    tracers = TracerProvider()
    tracers.add_span_processor(Processor())
    monkeypatch.setattr("opentelemetry.metrics.get_meter", lambda name: Meter())
    monkeypatch.setattr("opentelemetry.trace.get_tracer", tracers.get_tracer)
    observe._telemetry.cache_clear()
    handler, logger = Broken(LookupError), logging.getLogger("sinkfence")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(before)
    logger.removeHandler(handler)
    observe._telemetry.cache_clear()
    tracers.shutdown()


@pytest.mark.usefixtures("deaf")
def test_what_is_told_about_stands_though_nobody_can_be_told(
    leases_of: Callable[..., Leases], losses: Any
) -> None:
    """Leases are granted, renewed, lost and released, and acts at sinks end as they did."""
    store = MemoryStore()
    leases = leases_of(store, heartbeat=0.01, on_lost=losses)
    with leases.hold(JOB) as lease:
        first = lease.lease_until
        while lease.lease_until == first:
            pass
        with observe.at("postgres", "write", lease.token):
            pass
    assert store.get(JOB).owner is None
    with pytest.raises(LeaseLost), leases.hold(JOB) as lease:
        stale = StaleToken(lease.token, 9)
        with pytest.raises(StaleToken) as refused, observe.at("postgres", "write", lease.token):
            raise stale
        assert refused.value is stale
        store.reopen(JOB)
        store.acquire(JOB, "b:2", 30.0)
        assert losses.event.wait(10)
        assert lease.lost.is_set()
    with leases.hold("another") as lease:
        first = lease.lease_until
        while lease.lease_until == first:
            pass
        observe.refuse("s3", lease, StaleToken(lease.token, 9))
        assert lease.lost.is_set()


def test_a_provider_that_cannot_be_loaded_is_done_without(monkeypatch: Any, caplog: Any) -> None:
    """An environment names one that isn't there, for which OpenTelemetry raises StopIteration: said once."""

    def get_meter(name: str) -> None:
        raise StopIteration

    monkeypatch.setattr("opentelemetry.metrics.get_meter", get_meter)
    observe._telemetry.cache_clear()
    for _ in range(2):
        observe.renewed(1)
    observe._telemetry.cache_clear()
    (record,) = caplog.records
    assert (record.levelname, record.module) == ("ERROR", "observe")


def test_a_grant_that_a_handler_exits_from_is_given_back(caplog: Any) -> None:
    """Nobody would have it: the exit comes between the store's answer and the caller."""
    store = MemoryStore()
    handler, logger = Broken(SystemExit), logging.getLogger("sinkfence")
    caplog.set_level(logging.DEBUG, "sinkfence")
    logger.addHandler(handler)
    try:
        with pytest.raises(SystemExit):
            Leases(store).acquire(JOB)
    finally:
        logger.removeHandler(handler)
    assert (store.get(JOB).generation, store.get(JOB).owner) == (1, None)


def test_the_heartbeat_goes_on_after_any_error(
    leases_of: Callable[..., Leases], monkeypatch: Any, caplog: Any
) -> None:
    """Were its threads to end, all leases of the process would: it logs the error and renews."""

    def once(call: Callable[..., None]) -> Callable[..., None]:
        failed: list[bool] = []

        def run(*args: Any) -> None:
            if not failed:
                failed.append(True)
                raise MemoryError
            call(*args)

        return run

    monkeypatch.setattr(observe, "renewed", once(observe.renewed))
    with leases_of(MemoryStore(), heartbeat=0.01).hold(JOB) as lease:
        first = lease.lease_until
        while lease.lease_until == first:
            pass
    assert "the heartbeat goes on" in caplog.text
