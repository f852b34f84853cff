"""Workers that go round the check in one way each, so that one sees that a run can fail."""

from __future__ import annotations

import time
from typing import Final

from sinkfence.errors import LeaseHeld
from sinkfence.grants import Grant
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql.dialects import Query
from sinkfence.tokens import Token
from sinkfence_trials.torture.destinations import SINKS, Destination
from sinkfence_trials.torture.victim import Moment


class Conduct:
    """How a worker conducts itself, which is honestly: each sabotage overrides something of it."""

    caught_by = ""
    """The invariant that has to catch it."""
    is_late: bool = True
    """Whether it is the saboteur who is made late, or all others."""
    networks: tuple[str, ...] = ("postgres",)
    """Where requests are held, to be late."""
    sinks_of_all: tuple[str, ...] = SINKS
    """Where all workers write: they have to meet there."""
    until: Moment = "written"
    """Until when whatever is late is late."""
    goes_round: str = ""
    """At which destination there is no check."""
    store: type[SqlStore] = SqlStore
    """Where leases come from."""
    loses: bool = False
    """Whether a standby is promoted that has not heard of what was acknowledged."""

    def sinks(self, sinks: dict[str, Destination]) -> dict[str, Destination]:
        """Return the destinations; only the one that is gone round, if there is one."""
        if not self.goes_round:
            return sinks
        sinks[self.goes_round].fenced = False
        return {self.goes_round: sinks[self.goes_round]}

    def token(self, token: Token) -> Token:
        """Return what is shown to the destinations."""
        return token

    def arms(self, sink: str) -> bool:
        """Whether a destination is armed."""
        return True

    def ponder(self) -> None:
        """Think, between reading and writing."""

    def name(self, step: str) -> str:
        """Return what a step is called."""
        return step


class NoCheck(Conduct):
    """Writes its rows in a transaction that nothing guards."""

    caught_by = "D9"
    goes_round = "postgres"


class ForgedGeneration(Conduct):
    """Shows a number that nobody has given it."""

    caught_by = "D2"

    def token(self, token: Token) -> Token:
        return Token(token.job_id, token.generation + 1, token.owner)


class NoArm(Conduct):
    """Reads before the destination knows of it, so that what the owner before still writes is overwritten."""

    caught_by = "D3"
    is_late = False
    networks: tuple[str, ...] = ("s3",)
    sinks_of_all: tuple[str, ...] = ("s3",)
    until: Moment = "taken over"

    def arms(self, sink: str) -> bool:
        return False

    def ponder(self) -> None:
        time.sleep(0.7)

    def name(self, step: str) -> str:
        return f"{step}, again"  # under the name that all use, the step of the owner before would be seen


class _ByClientClock(SqlStore):
    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        sql = """
            UPDATE sinkfence_lease SET generation = generation + 1, owner = :owner,
                   lease_until = to_timestamp(:now + :ttl)
             WHERE job_id = :job_id AND state = 'open' AND lease_until <= to_timestamp(:now)
            RETURNING generation, lease_until"""
        now = time.time() + 10
        rows = self.fetch(Query(sql, {"job_id": job_id, "owner": owner, "ttl": ttl, "now": now}))
        if not rows:
            raise LeaseHeld(job_id, None, 0.1)
        return Grant(Token(job_id, rows[0][0], owner), rows[0][1])


class ClientClockStore(Conduct):
    """Judges by its own clock, which is ten seconds ahead, whose lease has run out."""

    caught_by = "S2"
    store = _ByClientClock


class UnfencedS3(Conduct):
    """Its PUTs carry no condition."""

    caught_by = "D9"
    networks: tuple[str, ...] = ("s3",)
    goes_round = "s3"


class LossyFailover(Conduct):
    """Works on after a failover that has lost acquisitions, with a store that counts on from what is left."""

    caught_by = "S7"
    loses: bool = True


SABOTAGES: Final[dict[str, type[Conduct]]] = {
    "no-check": NoCheck,
    "forged-generation": ForgedGeneration,
    "no-arm": NoArm,
    "client-clock-store": ClientClockStore,
    "unfenced-s3": UnfencedS3,
    "lossy-failover": LossyFailover,
}
