"""What tests of code that uses sinkfence need, and the contract for whoever writes a store or a sink."""

from sinkfence.testing.bearers import FakeLease, fake_lease
from sinkfence.testing.clock import HandClock
from sinkfence.testing.exercise import exercise_sink, exercise_store, sink_contract, store_contract
from sinkfence.testing.promises import Promise
from sinkfence.testing.report import Report, Result
from sinkfence.testing.sink_harness import SinkCapabilities, SinkHarness
from sinkfence.testing.store_harness import StoreCapabilities, StoreHarness

__all__ = [
    "FakeLease",
    "HandClock",
    "Promise",
    "Report",
    "Result",
    "SinkCapabilities",
    "SinkHarness",
    "StoreCapabilities",
    "StoreHarness",
    "exercise_sink",
    "exercise_store",
    "fake_lease",
    "sink_contract",
    "store_contract",
]
