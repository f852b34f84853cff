"""One promise of a contract: a sentence, and a check that finds it broken or kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from threading import Barrier
from traceback import extract_tb
from typing import Any, Generic, TypeVar

from sinkfence.testing.report import Report, Result

Bench = TypeVar("Bench")
E = TypeVar("E", bound=Exception)
Start = Callable[[], AbstractContextManager[Bench]]


class Broken(AssertionError):
    """A promise was broken. No `assert`: Python leaves those out under -O."""


class NotRun(Exception):
    """A promise could not be tried, and says why."""


def claim(without: str) -> Any:
    """A field of capabilities, not claimed by default; `without` is what the report then says of it."""
    return field(default=False, metadata={"without": without})


@dataclass(frozen=True, slots=True)
class Promise(Generic[Bench]):
    """Made by `promise`."""

    id: str
    says: str
    needs: tuple[str, ...]
    check: Callable[[Bench], None]

    def __str__(self) -> str:
        return self.id

    def judge(self, capabilities: Any, start: Start[Bench]) -> Result:
        """Try it on a new bench, if what it needs is claimed."""
        lacking = [name for name in self.needs if not getattr(capabilities, name)]
        if lacking:
            return Result(self.id, self.says, "not run", f"not claimed: {', '.join(lacking)}")
        try:
            with start() as bench:
                self.check(bench)
        except NotRun as reason:
            return Result(self.id, self.says, "not run", str(reason))
        except Exception as error:  # noqa: BLE001 - whatever it is, the promise was not kept
            last = extract_tb(error.__traceback__)[-1]
            raised = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            why = str(error) if isinstance(error, Broken) else raised
            notes = getattr(error, "__notes__", [])  # the calls that led there, by Hypothesis
            return Result(self.id, self.says, "failed", "\n".join([why, *notes]))
        return Result(self.id, self.says, "passed")


def promise(id: str, *needs: str) -> Callable[[Callable[[Bench], None]], Promise[Bench]]:
    """Make a promise of a check whose docstring is the sentence; `needs` are capabilities."""

    def make(check: Callable[[Bench], None]) -> Promise[Bench]:
        return Promise(id, " ".join((check.__doc__ or "").split()), needs, check)

    return make


def promises_in(module: dict[str, Any]) -> tuple[Promise[Any], ...]:
    """Return the promises that are made in a module, in their order there."""
    made: list[Any] = [each for each in module.values() if isinstance(each, Promise)]
    return tuple(made)


def report(
    subject: str,
    capabilities: Any,
    contract: Sequence[Promise[Bench]],
    start: Start[Bench],
    only: Collection[str],
) -> Report:
    """Judge the promises of a contract, all or only some."""
    if unknown := sorted({*only} - {each.id for each in contract}):
        raise ValueError(f"there is no promise {unknown[0]!r}")
    without = tuple(
        f"{claimable.name}: {claimable.metadata['without']}"
        for claimable in fields(capabilities)
        if not getattr(capabilities, claimable.name)
    )
    wanted = [each for each in contract if not only or each.id in only]
    return Report(subject, without, tuple(each.judge(capabilities, start) for each in wanted))


def must(condition: bool, otherwise: str) -> None:
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(otherwise)


def refused(kind: type[E], what: str, call: Callable[..., object], *args: object) -> E:
    """Return the error of exactly this kind that the call raises; Broken if it raises none, or another."""
    try:
        call(*args)
    except Exception as error:
        if type(error) is kind:
            return error
        raise Broken(f"{what} raised {type(error).__name__} ({error}), not {kind.__name__}") from error
    raise Broken(f"{what} was accepted, and should raise {kind.__name__}")


def race(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls at once, from behind a barrier; return their answers and errors, in the calls' order."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - judged by who asked
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))
