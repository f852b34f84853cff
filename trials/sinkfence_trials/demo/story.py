"""The plot: worker A is stopped in the middle of its effects, worker B takes over, and worker A goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import psycopg

from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
from sinkfence_trials.demo.effects import ACCEPTED, EFFECTS, NEW, OLD, REFUSED
from sinkfence_trials.demo.narrator import Narrator
from sinkfence_trials.demo.places import BILLS, JOB
from sinkfence_trials.demo.process import PATIENCE, Process, ProcessFailed
from sinkfence_trials.demo.stage import Stage
from sinkfence_trials.demo.state import READ, store_clock
from sinkfence_trials.demo.telling import Telling
from sinkfence_trials.demo.verdict import Verdict

OPEN: Final = """
    SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"""


@dataclass(frozen=True, slots=True)
class Story:
    """One telling of the story, with the checks on or off as the stage has it."""

    stage: Stage
    narrator: Narrator
    telling: Telling
    verdict: Verdict = field(default_factory=Verdict)

    def play(self) -> Verdict:
        """Play it, and return what was expected and whether it came.

        Raises:
            ProcessFailed: a process could not play its part.
        """
        self.narrator.start()
        self.earlier_owners()
        self.stop_in_the_middle(self.stage.a)
        self.take_over(self.stage.b)
        self.go_on(self.stage.a)
        self.look()
        return self.verdict

    def earlier_owners(self) -> None:
        """Let the job be acquired and released, so that its generations have counted up."""
        with Leases(SqlStore(self.stage.places.leases)) as leases:
            for _ in range(1, OLD):
                leases.acquire(JOB).release()
        self.narrator.tell("lease store", f"{JOB} has had {OLD - 1} owners: generations 1 to {OLD - 1}")

    def acquire(self, worker: Process, generation: int) -> None:
        """Hear that a worker has acquired the job."""
        heard = worker.hear("acquired")
        self.telling.acquired(worker.name, heard, armed=self.stage.fenced)
        got = heard["generation"]
        self.verdict.check(f"{worker.name} acquires {JOB} as generation {generation}", got == generation, got)
        arms = ", arms its three sinks" if self.stage.fenced else ""
        self.narrator.tell(worker.name, f"acquires {JOB} as generation {got}{arms}")

    def stop_in_the_middle(self, a: Process) -> None:
        """Stop worker A once its three effects are under way."""
        self.stage.begin(a, stopped=True)
        a.hear("asks")
        self.acquire(a, OLD)
        self.telling.granted(a.name, "renew", a.hear("renewed"))
        under_way = {a.hear("under way")["effect"], a.hear("under way")["effect"]}
        with psycopg.connect(self.stage.places.ledger) as conn:
            (transactions,) = conn.execute(OPEN, (a.name,)).fetchone() or (0,)
        self.verdict.check(f"{a.name}'s transaction is open in PostgreSQL", transactions == 1, transactions)
        self.narrator.tell(a.name, "has inserted its row, and not yet sent COMMIT")
        self.verdict.check(f"{a.name}'s upload is between read and PUT", "upload" in under_way, under_way)
        self.narrator.tell(a.name, "has read the object, and not yet sent its PUT")
        if not self.stage.network.held.wait(PATIENCE):
            raise ProcessFailed(f"{a.name} has sent no request")
        self.narrator.tell("network", f"holds {a.name}'s request to the service")
        self.telling.stop("invoke")
        a.stop()
        self.narrator.tell(a.name, "is STOPPED (SIGSTOP); its lease runs out", "bold")

    def take_over(self, b: Process) -> None:
        """Let worker B wait until the store gives it the job, and do all of the work."""
        with psycopg.connect(self.stage.places.leases, autocommit=True) as conn:
            # Before worker B begins: on a busy machine it has the job as soon as it asks.
            (until,) = conn.execute("SELECT lease_until FROM sinkfence_lease").fetchone() or (None,)
            self.stage.begin(b)
            b.hear("asks")
            self.narrator.tell(b.name, f"waits for {JOB}: the lease store's clock decides")
            self.acquire(b, NEW)
            (over,) = conn.execute("SELECT clock_timestamp() >= %s", (until,)).fetchone() or (None,)
        self.verdict.check("worker A's lease has run out by then, by the store's clock", over is True, over)
        self.hear_outcomes(b)
        left = b.hear("left")["error"]
        self.verdict.check(f"{b.name} leaves its lease without an error", left is None, left)

    def go_on(self, a: Process) -> None:
        """Continue worker A, whose effects arrive late."""
        self.telling.stop("ok")
        a.go_on()
        self.narrator.tell(a.name, "is CONTINUED (SIGCONT), and knows of nothing", "bold")
        self.stage.network.release()
        self.narrator.tell("network", f"delivers {a.name}'s request")
        self.hear_outcomes(a, late=True)
        left = a.hear("left")["error"]
        self.verdict.check(f"{a.name} is told in the end that its lease was lost", left is not None, left)

    def hear_outcomes(self, worker: Process, *, late: bool = False) -> None:
        """Hear what becomes of a worker's effects, as it comes; with checks, late ones are to be refused."""
        stale = late and self.stage.fenced
        for _ in EFFECTS:
            heard = worker.hear("outcome")
            name, outcome = heard["effect"], heard["outcome"]
            if name == "completion":
                self.telling.completed(worker.name, heard, store_clock(self.stage))
            else:
                there = str(BILLS[worker.name].amount) in READ[name](self.stage)
                self.telling.wrote(worker.name, heard, there=there)
            refused = outcome.startswith(REFUSED)
            if refused and name == "request":
                # The answer as it was on the wire: that shows better than the sender who refused.
                outcome += f" ({self.stage.network.answer.removeprefix('status ')})"
            effect = EFFECTS[name]
            style = "" if not late else "green" if refused else "red"
            between = ": " if outcome == ACCEPTED else "\n"
            self.narrator.tell(worker.name, f"{effect.sent} to {effect.to}{between}{outcome}", style)
            expected, so = (effect.refusal, "refused") if stale else (ACCEPTED, "accepted")
            what = f"late {effect.sent}" if late else effect.sent
            self.verdict.check(f"{worker.name}'s {what} is {so} by {effect.to}", outcome == expected, outcome)

    def look(self) -> None:
        """Read what the destinations hold, and compare it with what has to be there."""
        self.narrator.title("What is there now, read from the destinations:")
        so = "worker B's, untouched" if self.stage.fenced else "damaged by worker A"
        for name, effect in EFFECTS.items():
            found, expected = (
                READ[name](self.stage),
                effect.untouched if self.stage.fenced else effect.damaged,
            )
            self.narrator.fact(effect.place, found)
            self.verdict.check(f"{effect.place}: {so}", found == expected, found)
