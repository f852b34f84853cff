"""How a service is armed from outside: where, and what its answer means; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sinkfence.errors import NotEnforced, OutcomeUnknown
from sinkfence_http import wire

ARM_TIMEOUT: Final = 10.0
"""Seconds that each attempt of arming may take."""


def arm_url(base_url: str) -> str:
    """Return where a service is armed.

    Raises:
        ValueError: put to the end of a query or a fragment, the path would be none.
    """
    if "?" in base_url or "#" in base_url:
        raise ValueError("a service's base URL has no query (?) and no fragment (#)")
    return base_url.rstrip("/") + wire.ARM_PATH


def check_armed(status: int, headers: Mapping[str, str]) -> None:
    """Take the answer to arming for what it is.

    Raises:
        NotEnforced: any other answer than 204 `armed`.
        OutcomeUnknown: the service can't be asked at present.
    """
    fencing = wire.parse_status(headers.get(wire.STATUS))
    word = fencing.word if fencing else "no Fencing-Status"
    if status == 204 and word == "armed":
        return
    what = f"arming was answered {status} ({word})"
    if status >= 500:
        raise OutcomeUnknown(f"{what}: arm again")
    if word == "unauthentic-token":
        raise NotEnforced(f"{what}: the service does not trust this token: look at key, issuer, audience")
    if word == "token-expired":
        raise NotEnforced(
            f"{what}: the signature is too old for the service's clock: compare it with this one's"
        )
    if word == "malformed-token":
        raise NotEnforced(
            f"{what}: one side signs tokens, and the other one doesn't: look at sign= and its verifier"
        )
    raise NotEnforced(f"{what} and not 204 (armed): nothing there would stop a stale owner")
