"""Random orders of calls against small models, by Hypothesis: the only part that needs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sinkfence.testing.models import SinkModel, StoreModel
from sinkfence.testing.promises import must
from sinkfence.testing.sink_harness import SinkBench, sink_bench
from sinkfence.testing.store_harness import HOUR, StoreBench, store_bench
from sinkfence.tokens import Token

# The same examples each time, without a database of earlier ones: a report says what the code is like.
SETTINGS = settings(
    stateful_step_count=15,
    deadline=None,
    database=None,
    derandomize=True,
    print_blob=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
)
generations, owners = st.integers(1, 3), st.sampled_from("ab")


def outcome(call: Callable[..., Any], *args: Any) -> tuple[type[Exception] | None, Any]:
    """Return the class of the error that a call raises, or None and its answer."""
    try:
        return None, call(*args)
    except Exception as error:  # noqa: BLE001 - compared with the model's
        return type(error), None


def try_sink(bench: SinkBench) -> None:
    """Let owners arm and write in many orders, by handles that come and go."""

    class Sink(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.stack = ExitStack()
            self.bench = self.stack.enter_context(sink_bench(bench.harness, 0.0, 0))
            self.model = SinkModel(bench.can)
            self.count = 0

        @rule(generation=generations, owner=owners)
        def arm(self, generation: int, owner: str) -> None:
            token = self.bench.token(generation, owner)
            self.same(f"arming {token}", outcome(self.model.arm, token), outcome(self.bench.arm, token))

        @rule(generation=generations, owner=owners, step=st.sampled_from(["1", "2", None]))
        def write(self, generation: int, owner: str, step: str | None) -> None:
            token = self.bench.token(generation, owner)
            step = step if bench.can.keys else None
            self.count += 1
            args = token, f"step {step}" if step else f"write {self.count}", step
            self.same(
                f"writing as {token}", outcome(self.model.write, *args), outcome(self.bench.write, *args)
            )

        @rule()
        @precondition(lambda self: bench.can.durable)
        def reopen(self) -> None:
            self.bench = self.stack.enter_context(self.bench.elsewhere())

        @invariant()
        def effects(self) -> None:
            self.bench.truth_is(*self.model.effects)

        def same(self, what: str, wanted: tuple[Any, Any], seen: tuple[Any, Any]) -> None:
            must(seen[0] == wanted[0], f"{what}: {seen[0]}, and should be {wanted[0]}")

        def teardown(self) -> None:
            self.stack.close()

    run_state_machine_as_test(Sink, settings=settings(SETTINGS, max_examples=bench.examples))


def try_store(bench: StoreBench) -> None:
    """Let workers acquire, renew, release, complete and lapse in many orders, by handles that come and go.

    Where the harness can, answers are lost after a call took effect, as by a crash between commit and reply.
    """
    unanswered = st.booleans() if bench.harness.capabilities.loses_answers else st.just(False)

    class Store(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.stack = ExitStack()
            self.bench = self.stack.enter_context(store_bench(bench.harness, 0))
            self.model = StoreModel()
            self.count = 0

        @rule(lapses=st.booleans(), losing=unanswered)
        def acquire(self, lapses: bool, losing: bool) -> None:
            self.count += 1
            owner = f"owner {self.count}"
            wanted = outcome(self.model.acquire, owner)
            # Not both: the repetition may come when the shortest ttl is over, and count once more.
            with self.asked(losing and not lapses) as asked:
                seen = outcome(asked.lapsed if lapses else asked.acquire, owner)
            must(seen[0] == wanted[0], f"acquiring: {seen[0]}, and should be {wanted[0]}")
            must(seen[1] is None or seen[1].generation == wanted[1], f"issued was {seen[1]}, not {wanted[1]}")
            self.model.runs = self.model.runs and not (lapses and wanted[0] is None)

        @rule(
            call=st.sampled_from(["renew", "release", "complete"]),
            back=st.booleans(),
            mine=st.booleans(),
            losing=unanswered,
        )
        def change(self, call: str, back: bool, mine: bool, losing: bool) -> None:
            number = max(self.model.generation - back, 1)
            token = Token(self.bench.job_id, number, (self.model.owner if mine else "") or "nobody")
            with self.asked(losing) as asked:
                store = asked.store
                calls: dict[str, Callable[[], object]] = {
                    "renew": partial(store.renew, token, HOUR),
                    "release": partial(store.release, token),
                    "complete": partial(store.complete, token, None),
                }
                seen = outcome(calls[call])
            wanted = outcome(self.model.change, call, token)
            must(seen[0] == wanted[0], f"{call} of {token}: {seen[0]}, and should be {wanted[0]}")

        @rule()
        @precondition(lambda self: self.model.done)
        def reopen_job(self) -> None:
            self.bench.store.reopen(self.bench.job_id)
            self.model.owner, self.model.done = "", False

        @rule()
        @precondition(lambda self: bench.harness.capabilities.durable)
        def reopen_store(self) -> None:
            self.bench = self.stack.enter_context(self.bench.elsewhere())

        @invariant()
        def record(self) -> None:
            found = self.bench.store.get(self.bench.job_id)
            model = self.model
            wanted = (model.generation, model.owner or None, "done" if model.done else "open", model.runs)
            seen = found and (found.generation, found.owner, found.state, found.remaining > 0)
            must(seen == (wanted if model.generation else None), f"kept is {seen}, and should be {wanted}")

        def asked(self, losing: bool) -> AbstractContextManager[StoreBench]:
            return self.bench.elsewhere(losing=True) if losing else nullcontext(self.bench)

        def teardown(self) -> None:
            self.stack.close()

    run_state_machine_as_test(Store, settings=settings(SETTINGS, max_examples=bench.examples))
