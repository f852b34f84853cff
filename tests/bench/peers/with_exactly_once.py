"""exactly-once: a claim in PostgreSQL with a lease, and a prober that finds no effect yet."""

from __future__ import annotations

import time
from typing import Any

from bench.peers.stage import PATIENCE, TTL, Stage

DISTRIBUTION, MODULES, REDIS = "exactly-once", ("exactly_once",), False
KEY = "doc-1"


def _store(stage: Stage) -> Any:
    from exactly_once import Store

    return Store.postgres(stage.dsn)


def prepare(stage: Stage) -> None:
    _store(stage).close()


def work(stage: Stage) -> None:
    from exactly_once import ProbeResult, QuarantinedError, Verdict, check_then_decide, once

    def prober(key: str) -> ProbeResult:
        return ProbeResult(Verdict.NOT_COMMITTED)  # as is true whenever it is asked here

    @once(_store(stage), key=lambda: KEY, policy=check_then_decide(prober), lease_ttl=TTL)
    def effect() -> str:
        stage.inside()
        with stage.trying("effect"):
            stage.write()
        return stage.role

    end = time.monotonic() + PATIENCE
    while True:
        try:
            answer = effect()
        except QuarantinedError:  # the lease of the other one stands
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            if answer != stage.role:
                stage.heard.append(f"completion: was given the result of the {answer}")
            return


def record(stage: Stage) -> str:
    known = _store(stage).get(KEY)
    return "nobody" if known is None or known.result is None else known.result.decode().strip('"')
