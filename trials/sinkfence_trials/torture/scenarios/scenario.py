"""A scenario as it is listed, and what is said of one that was played."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sinkfence_trials.checker import Violation
from sinkfence_trials.demo.process import ProcessFailed
from sinkfence_trials.servers.supervised import ServerError
from sinkfence_trials.torture.observer import DOWN
from sinkfence_trials.torture.run import NotRun, Run
from sinkfence_trials.torture.scenarios.scene import Broken, Inconclusive, Scene, scene
from sinkfence_trials.torture.verdict import About, judge


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault."""

    sentence: str
    """What happens."""
    play: Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one scenario."""

    word: Literal["passed", "violated", "failed", "inconclusive", "not run"]
    why: str = ""
    violations: tuple[Violation, ...] = ()
    """What the checker finds in its history, by name."""


def perform(name: str, scenario: Scenario, run: Run, *, fenced: bool = True) -> Verdict:
    """Play a scenario in a folder of its own within the run's, and have the checker judge its history.

    `fenced=False` plays it with workers that go round the checks: that must not pass.
    """
    own = dataclasses.replace(run, folder=run.folder / name)
    own.folder.mkdir()
    verdict = Verdict("passed")
    try:
        with scene(own, name, fenced=fenced) as opened:
            scenario.play(opened)
    except NotRun as error:
        return Verdict("not run", str(error))
    except (Inconclusive, TimeoutError, ServerError, *DOWN) as error:
        verdict = Verdict("inconclusive", str(error))
    except (Broken, ProcessFailed) as error:
        verdict = Verdict("failed", str(error))
    broken_off = "" if verdict.word == "passed" else verdict.why or verdict.word
    About(run.places.run, run.seed, scenario=name, broken_off=broken_off).write(own.folder)
    judged = judge(own.folder)
    judged.draw(own.folder)
    if judged.violations:
        sentences = "; ".join(f"{found.invariant} {found.sentence}" for found in judged.violations)
        return Verdict("violated", sentences, tuple(judged.violations))
    return verdict
