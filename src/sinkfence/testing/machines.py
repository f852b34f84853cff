"""Random orders of calls against small models, by Hypothesis: the only part that needs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from functools import partial
from typing import Any, Final, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sinkfence.errors import StaleToken
from sinkfence.marks import MemoryMarks
from sinkfence.testing.models import SinkModel, StoreModel
from sinkfence.testing.promises import must
from sinkfence.testing.sink_harness import SinkBench, sink_bench
from sinkfence.testing.store_harness import HOUR, MOMENT, Restorable, StoreBench, store_bench
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
generations: Final = st.integers(1, 3)
owners: Final = st.sampled_from("ab")


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

    Where the harness can, answers are lost after a call took effect, as by a crash between commit and reply;
    and a backup is put back, after which a count by a clock issues no number again, and with a plain one the
    sink that is ahead tells, and a repair brings the owner above it.
    """
    can = bench.harness.capabilities
    unanswered = st.booleans() if can.loses_answers else st.just(False)

    class Store(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.stack = ExitStack()
            self.bench = self.stack.enter_context(store_bench(bench.harness, 0, bench.start))
            self.model = StoreModel(bench.start)
            self.count = 0
            self.newest: Token | None = None
            self.sink = MemoryMarks()
            self.saved: tuple[Callable[[], None], StoreModel] | None = None

        @rule(lapses=st.booleans(), losing=unanswered)
        def acquire(self, lapses: bool, losing: bool) -> None:
            self.count += 1
            owner = f"owner {self.count}"
            wanted = outcome(self.model.acquire, owner)
            # Not both: the repetition may come when the shortest ttl is over, and count once more.
            with self.asked(losing and not lapses) as asked:
                seen = outcome(asked.lapsed if lapses else asked.acquire, owner)
            must(seen[0] == wanted[0], f"acquiring: {seen[0]}, and should be {wanted[0]}")
            if seen[1] is not None:
                self.granted(seen[1], wanted[1])
                self.model.runs = not lapses
                self.arm(seen[1])

        def granted(self, token: Token, wanted: int) -> None:
            if self.bench.store.jumps:
                before = self.newest.generation if self.newest else bench.start
                must(token.generation > before, f"issued was {token} after {self.newest}")
                self.model.granted(token.generation, token.owner)
            else:
                must(token.generation == wanted, f"issued was {token}, not {wanted}")
            self.newest = token

        def arm(self, token: Token) -> None:
            try:
                self.sink.arm(token)
            except StaleToken as stale:
                # What it has seen was issued after the backup that was put back.
                mark = stale.mark or 0
                must(self.saved is not None and not self.bench.store.jumps, f"{token} after {mark}")
                grant = self.bench.store.reacquire_above(token, mark, f"{token.owner}, again", HOUR)
                must(grant is not None, f"the repair above {mark} was refused to {token}")
                assert grant is not None
                self.model.granted(max(token.generation, mark) + 1, grant.token.owner)
                self.granted(grant.token, self.model.generation)
                self.sink.arm(grant.token)

        @rule(
            call=st.sampled_from(["renew", "release", "complete"]),
            back=st.booleans(),
            mine=st.booleans(),
            losing=unanswered,
        )
        def change(self, call: str, back: bool, mine: bool, losing: bool) -> None:
            number = max(self.model.generation - back, 1)
            self.changed(
                call, Token(self.bench.job_id, number, (self.model.owner if mine else "") or "nobody"), losing
            )

        @rule(call=st.sampled_from(["renew", "release", "complete"]))
        @precondition(lambda self: can.goes_back and self.newest)
        def change_by_the_newest(self, call: str) -> None:
            # Perhaps the store has forgotten it, and has issued its number to somebody else.
            assert self.newest is not None
            self.changed(call, self.newest, losing=False)

        def changed(self, call: str, token: Token, losing: bool) -> None:
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
        @precondition(lambda self: can.durable)
        def reopen_store(self) -> None:
            self.bench = self.stack.enter_context(self.bench.elsewhere())

        @rule()
        @precondition(lambda self: can.goes_back)
        def back_up(self) -> None:
            self.saved = cast("Restorable", bench.harness).backup(), copy(self.model)

        @rule()
        @precondition(lambda self: self.saved)
        def put_back(self) -> None:
            assert self.saved is not None
            restore, model = self.saved
            restore()
            self.model = copy(model)
            bench.harness.let_pass(MOMENT)  # a clock is behind none that was read before

        @invariant()
        def record(self) -> None:
            found = self.bench.store.get(self.bench.job_id)
            model = self.model
            wanted = (model.generation, model.owner or None, "done" if model.done else "open", model.runs)
            seen = found and (found.generation, found.owner, found.state, bool(found.remaining))
            must(seen == (wanted if model.generation else None), f"kept is {seen}, and should be {wanted}")

        def asked(self, losing: bool) -> AbstractContextManager[StoreBench]:
            return self.bench.elsewhere(losing=True) if losing else nullcontext(self.bench)

        def teardown(self) -> None:
            self.stack.close()

    run_state_machine_as_test(Store, settings=settings(SETTINGS, max_examples=bench.examples))
