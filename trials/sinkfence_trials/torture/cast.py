"""The workers of a run, each with its nemesis and its networks: started together, ended together."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Self
from urllib.parse import urlsplit

from sinkfence_trials.torture.clocks import environment
from sinkfence_trials.torture.nemesis import KINDS, Nemesis
from sinkfence_trials.torture.run import TTL, NotRun, Run
from sinkfence_trials.torture.sabotage import SABOTAGES, Conduct
from sinkfence_trials.torture.victim import Victim

WORKERS: Final = 3

SABOTAGE_KINDS: Final = ("pause", "hold")


@dataclass(frozen=True, slots=True)
class Cast:
    """Those who take part."""

    kinds: tuple[str, ...]
    """The faults that are done to them."""
    not_run: tuple[str, ...]
    """Which are not, and why."""
    nemeses: list[Nemesis]

    @classmethod
    def start(cls, run: Run, jobs: list[str], service: str, sabotage: str | None, floor: str | None) -> Self:
        """Start them; `floor` is their lease store's. With a sabotage, it is worker 1 who commits it."""
        places, saboteur = run.places, SABOTAGES.get(sabotage or "", Conduct)
        kinds: tuple[str, ...] = SABOTAGE_KINDS if sabotage else KINDS
        not_run: tuple[str, ...] = ()
        try:
            run.nursery.warm(environment(run.folder / "clock-1"))
        except NotRun as why:
            not_run = (f"clock jumps: {why}",)
            run.nursery.warm({})
        has_clocks = not not_run
        if not has_clocks:
            kinds = tuple(kind for kind in kinds if kind != "clock jump")
        postgres = address(places.postgres, 5432)
        upstreams = {
            "postgres": postgres,
            "store": postgres,
            "http": address(service),
            "s3": address(places.bucket.endpoint),
        }
        brief = {
            "run": places.run,
            "sinks": saboteur.sinks_of_all,
            "ttl": TTL,
            "jobs": jobs,
            "floor": floor,
            "postgres": places.postgres,
            "bucket": asdict(places.bucket),
            "service": service,
            "foreign": bool(places.service),
            "upstreams": {sink: list(to) for sink, to in upstreams.items()},
        }
        late: dict[str, Any] = {}
        if sabotage:
            late = {"networks": saboteur.networks, "moments": (saboteur.until,), "gaps": (0.1, 0.5)}
        others = threading.Semaphore(WORKERS - 1)
        nemeses: list[Nemesis] = []
        for number in range(1, WORKERS + 1):
            name = f"worker {number}"
            own = brief | {
                "name": name,
                "history": str(run.folder / f"worker-{number}.jsonl"),
                "sabotage": sabotage if number == 1 else None,
            }
            clock = run.folder / f"clock-{number}" if has_clocks else None
            nemesis = Nemesis(
                name,
                partial(Victim, name, own, upstreams, places.postgres, clock=clock, nursery=run.nursery),
                kinds=kinds if not sabotage or saboteur.is_late == (number == 1) else (),
                seed=f"{run.seed} {name}",
                ttl=TTL,
                **late,
                others=others,
                diary=run.history(f"nemesis {number}"),
            )
            nemeses.append(nemesis)
        for nemesis in nemeses:
            nemesis.ready.wait()
        return cls(kinds, not_run, nemeses)

    def heal(self) -> None:
        """Do nothing more to them; return when the last fault is over."""
        for nemesis in self.nemeses:
            nemesis.heal()
        for nemesis in self.nemeses:
            nemesis.healed.wait()

    def end(self) -> None:
        """Have all workers killed, and wait for it."""
        for nemesis in self.nemeses:
            nemesis.heal()
            nemesis.end()
        for nemesis in self.nemeses:
            nemesis.join()


def address(url: str, port: int | None = None) -> tuple[str, int]:
    """Return where a URL leads to.

    Raises:
        ValueError: nowhere that a network leads to.
    """
    parts = urlsplit(url)
    port = parts.port or port or {"https": 443, "http": 80}.get(parts.scheme)
    if not parts.hostname or not port:
        raise ValueError(f"{parts.scheme}://{parts.hostname}: a network has to lead there, to be disturbed")
    return parts.hostname, port
