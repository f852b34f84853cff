"""What a service's answer to a token that it must refuse says of the service; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sinkfence.findings import Grade
from sinkfence_http.wire import Status

_UNAVAILABLE: Final = frozenset({"fence-unavailable", "previous-owner-in-flight"})


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    fencing: Status | None
    """Its Fencing-Status, where it has a readable one."""
    problem: str = ""
    """The name of the error, where there is no answer."""


def meaning(reply: Reply, expected: Mapping[str, int]) -> tuple[Grade, str, str]:
    """Return what an answer says of the service: a grade, why, and what to do."""
    if reply.problem:
        return "unknown", f"could not be tried: {reply.problem}", "mend that, and ask again"
    status, word = reply.status, reply.fencing.word if reply.fencing else None
    wanted = " or ".join(f"{code} {name}" for name, code in expected.items())
    if word is not None and word in expected:
        if reply.fencing is not None and reply.fencing.applied and expected[word] >= 400:  # not of `armed`
            says = f"answered {status} {word};applied: it had taken effect before it was refused"
            return "broken", says, "have the handler check the token before it does anything, or in one step"
        if status == expected[word]:
            return "ok", f"{status} {word}", ""
        says = f"answered {status}, and {word} in Fencing-Status: something on the way changes the status"
        return "weak", says, "have the proxy pass statuses on: callers of other makers may decide by them"
    if word in ("accepted", "armed", "not-guarded"):
        advice = "look at the Fence's verifier, and whether all hosts share their marks"
        return "broken", f"LET IN: answered {status} {word}, and not {wanted}", advice
    if word in _UNAVAILABLE:
        return "unknown", f"answered {status} {word}", "see why its gate can't be asked, and ask again"
    if word is not None:
        return "unknown", f"answered {status} {word}, and not {wanted}", "see why, and ask again"
    bare = f"answered {status} without Fencing-Status, and not {wanted}"
    if status in expected.values():
        advice = "have the proxy pass Fencing-Status on: callers take each success for one of no fence"
        return "broken", bare, advice
    if status in (401, 407, 429) or status >= 500 or not 200 <= status <= 599:
        return "unknown", bare, "have the doctor let in (a header, a session), or ask again"
    if 300 <= status < 400:
        return "unknown", f"{bare}: it leads elsewhere", "give the address that it leads to"
    return "broken", f"{bare}: no door stands there", "mount the middleware there, or give its address"
