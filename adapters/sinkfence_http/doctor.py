"""What a deployed service does with tokens that it must refuse, tried out from outside, harmlessly."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sinkfence.findings import Finding, Grade, Report
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.arming import arm_url
from sinkfence_http.calls import Sign
from sinkfence_http.forgery import altered, forged
from sinkfence_http.replies import Reply, meaning

if TYPE_CHECKING:
    import requests

JOB: Final = "sinkfence-doctor/probe"
"""The job of all tokens that the doctor makes, but for one."""
INVENTED: Final = "sinkfence-doctor/invented"
"""The job of a token whose number nobody has issued."""
SINCE: Final = 1_577_836_800
"""2020-01-01 in seconds, as `floor="clock"` counts: milliseconds since then are a generation."""
METHOD: Final = "PROPFIND"
"""Safe by definition (RFC 4918, section 9.1), known to servers, served by few; and a door fences it, as it
does all methods but the four that it knows to be safe."""
WAVES: Final = 6
"""How often a stale token is sent over several connections at once: another worker may not know the mark."""
WIDTH: Final = 8
"""How many at once: of those that come one after the other, one worker may well take all."""
PAUSE: Final = 0.05
"""Seconds between two waves: what keeps a worker from its turn on a busy host is over by the next one."""
TIMEOUT: Final = 10.0
"""Seconds for each request."""

_REFUSED: Final[Mapping[str, int]] = {"unauthentic-token": 403, "malformed-token": 400}
_MISSING: Final[Mapping[str, int]] = {"token-required": 428}
_MALFORMED: Final[Mapping[str, int]] = {"malformed-token": 400}
_STALE: Final[Mapping[str, int]] = {"stale-token": 412}
_CONFLICT: Final[Mapping[str, int]] = {"generation-conflict": 412, "stale-token": 412}
_EXPIRED: Final[Mapping[str, int]] = {"token-expired": 412, **_REFUSED}
_SIGN: Final = "sign as the workers do: key, kid, alg, issuer and audience"
_LEASE: Final = "if it looks numbers up, show it a lease (bearer=, --store)"


def doctor(
    session: requests.Session,
    base_url: str,
    *,
    sign: Sign | None = None,
    bearer: Bearer | None = None,
    path: str | None = None,
    method: str = METHOD,
) -> Report:
    """Send a deployed service tokens that it must refuse, and report what became of them.

    Harmless: all requests are without a body, and for a job of the doctor's own, of which a mark stays at the
    service. They are POSTs to `/.well-known/fencing-arm` below `base_url`, which a door answers itself. A
    `path` below it, a route that is to be fenced, is asked as well, by a method that is safe; and only with a
    token once a request without one was turned away there. Where no door stands before it, that one request
    reaches the handler, and is all that does.

    `sign` is what the workers sign with; without it the tokens are unsigned. A service that looks up who the
    newest owner is (AuthorityLookup) believes a real one only: so let `bearer` be a lease of a job that is
    there for the doctor, of generation 2 or above, in the store that the service asks.

    The session's settings and headers are used, a `FencedAdapter` that is mounted is not.

    Raises:
        requests.RequestException: the first request got no answer.
        ValueError: `sign` makes no compact JWS, the URL is none, or has a query or a fragment, nothing is
            below the bearer's generation, `path` is a URL itself, or a door asks no token of `method`.
        LeaseLost: the bearer's lease is over.
    """
    door = _Place("POST", arm_url(base_url), "")
    route = None
    if path is not None:
        if method.upper() in wire.SAFE:
            raise ValueError(f"a door lets {method.upper()} pass without a token: choose another method")
        if re.match(r"\w+://", path):
            raise ValueError("the path of a route is below the URL, and no URL itself")
        route = _Place(method, f"{base_url.rstrip('/')}/{path.lstrip('/')}", f"{method} {path}: ")
    parts = urlsplit(base_url)
    if "@" in parts.path:
        # Of a login whose password has a slash: its rest would be told as a path.
        raise ValueError("that URL can't be read: write %40 for @, and %2F for / in a password")
    where = f"service at {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    examination = _Examination(session, sign, bearer)
    examination.ask(door, route)
    return Report(where, tuple(examination.findings))


class _Examination:
    """One visit of the doctor's."""

    def __init__(self, session: requests.Session, sign: Sign | None, bearer: Bearer | None) -> None:
        self._session = session
        self._sign = sign or wire.format_token
        self._signed = sign is not None
        # Above what an earlier visit has left, which no mark goes below. A clock, so that nobody has to look
        # a mark up to go beyond it; one job for all visits, as marks stay for ever.
        generation = int((time.time() - SINCE) * 1000)
        self._invented = Token(INVENTED, generation, f"doctor:{secrets.token_hex(16)}")
        self._issued = bearer is not None
        self._newest = newest = bearer.token if bearer else replace(self._invented, job_id=JOB)
        self._other = replace(newest, owner=f"another:{secrets.token_hex(16)}")
        self._stale = replace(self._other, generation=newest.generation - 1)
        # As text it may be the higher one: "99" is above "100".
        fewer = 10 ** (len(str(newest.generation)) - 1) - 1
        self._shorter = replace(self._stale, generation=fewer) if fewer else None
        self.findings: list[Finding] = []

    def ask(self, door: _Place, route: _Place | None) -> None:
        """Ask the door itself, and then a route behind it."""
        first = self._send(door, ())
        if not self._judge(door, "no token", first, _MISSING):
            return
        self._authenticity(door)
        if not self._arm(door):
            return
        met = self._staleness(door)
        self._try(door, "the same owner again", [self._sign(self._newest)], {"armed": 204})
        if route is None:
            says = "none was asked: whether each of yours is behind this door is not known"
            self._tell("routes", "note", says, "name one (path=, --path)")
        # First of all without a token: whatever is behind the route, nothing more is sent to it if that runs.
        elif self._try(route, "no token", (), _MISSING):
            self._authenticity(route)
            self._staleness(route)
        says = (
            f"the stale token was refused over {met} connections. Not seen: who was not met, and whether the "
            "marks outlive a restart (those of a DoorOnly do not)"
        )
        self._tell("workers", "note", says, "see that all of them keep their marks in one place, on a disk")
        says = "not asked: a door sees to it that they check, unless it was made with strict=False"
        self._tell("handlers", "note", says, "look for `not-guarded` in the service's log")

    def _authenticity(self, place: _Place) -> None:
        newest = self._sign(self._newest)
        self._try(place, "malformed token", ['"half a token'], _MALFORMED)
        self._try(place, "two tokens", [newest, newest], _MALFORMED)
        self._try(place, "two tokens in one field", [f"{newest}, {newest}"], _MALFORMED)
        if not self._signed:
            return
        for name, value in forged(self._sign, self._newest).items():
            self._try(place, f"forged: {name}", [value], _REFUSED)
        for name, value in altered(self._sign, self._newest).items():
            self._try(place, f"signed: {name}", [value], _EXPIRED if name == "expired" else _REFUSED)

    def _arm(self, place: _Place) -> bool:
        """Arm the service for the newest owner, and return whether it is armed now."""
        name = "arming"
        # Once: a balancer may send the next to another host, which then would know the mark for that.
        reply = self._answer(place, [self._sign(self._newest)])
        word = reply.fencing.word if reply.fencing else None
        if word in _REFUSED:
            says = f"answered {reply.status} {word}: this service does not believe the doctor's tokens"
            advice = _SIGN if self._signed else f"if it takes signed tokens, {_SIGN}; {_LEASE}"
            self._tell(name, "unknown", f"{says}, and so can't be asked about stale ones", advice)
            return False
        if word in ("stale-token", "generation-conflict"):
            says = f"answered {word}: another doctor was here, by a clock that is ahead of this one"
            self._tell(name, "unknown", says, "ask again")
            return False
        if not self._judge(place, name, reply, {"armed": 204}):
            return False
        if self._issued:
            self._try(place, "invented number", [self._sign(self._invented)], _REFUSED)
        elif not self._signed:
            says = "believed as it comes: whoever reaches this service can lock the owner of any job out"
            self._tell("unsigned token", "weak", says, "SignedTokens, AuthorityLookup, or a closed network")
        return True

    def _staleness(self, place: _Place) -> int:
        """Send what a newer owner makes stale, and return over how many connections that was refused."""
        replies = self._spread(place, self._sign(self._stale))
        grades = [meaning(each, _STALE)[0] for each in replies]
        worst = next(grade for grade in ("broken", "unknown", "weak", "ok") if grade in grades)
        self._judge(place, "stale token", replies[grades.index(worst)], _STALE)
        if self._shorter is not None:
            self._try(place, "stale token of fewer digits", [self._sign(self._shorter)], _STALE)
        self._try(place, "another owner", [self._sign(self._other)], _CONFLICT)
        return grades.count("ok") + grades.count("weak")

    def _try(self, place: _Place, name: str, tokens: Sequence[str], expected: Mapping[str, int]) -> bool:
        return self._judge(place, name, self._answer(place, tokens), expected)

    def _spread(self, place: _Place, token: str) -> list[Reply]:
        """Send a token over many connections, all of them open at once, so that they reach all who serve."""
        replies: list[Reply] = []
        with ExitStack() as connections, ThreadPoolExecutor(WIDTH) as threads:
            for turn in range(WAVES):
                time.sleep(PAUSE if turn else 0)
                sent = [threads.submit(self._answer, place, [token], connections) for _ in range(WIDTH)]
                wave = [each.result() for each in sent]
                replies += [each for each in wave if not each.problem]
                if any(each.problem for each in wave):  # of one thread, which waits for a connection's end
                    break
            else:
                return replies
        return [*replies, *(self._answer(place, [token]) for _ in range(WIDTH))]

    def _judge(self, place: _Place, name: str, reply: Reply, expected: Mapping[str, int]) -> bool:
        """Tell what an answer means, and return whether it is the one that a fenced service gives."""
        grade, says, advice = meaning(reply, expected)
        self._tell(place.name + name, grade, says, advice)
        return grade in ("ok", "weak")

    def _tell(self, name: str, grade: Grade, says: str, advice: str) -> None:
        self.findings.append(Finding(name, grade, says, advice))

    def _answer(self, place: _Place, tokens: Sequence[str], kept_open: ExitStack | None = None) -> Reply:
        """As `_send`, where there need not be an answer."""
        try:
            return self._send(place, tokens, kept_open)
        except OSError as error:  # as all of requests are
            return Reply(0, None, type(error).__name__)

    def _send(self, place: _Place, tokens: Sequence[str], kept_open: ExitStack | None = None) -> Reply:
        """Send one request, over a connection of its own, by the session's settings.

        With `kept_open` that connection stays open until this is left: its answer is not read to the end.
        """
        import requests
        from urllib3 import HTTPHeaderDict

        session = self._session
        request = session.prepare_request(requests.Request(place.method, place.url))
        headers = HTTPHeaderDict(request.headers)
        headers.pop(wire.TOKEN, None)
        headers["Connection"] = "close" if kept_open is None else "keep-alive"
        for token in tokens:
            headers.add(wire.TOKEN, token)  # a line for each
        request.headers = headers  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
        settings: dict[str, Any] = dict(session.merge_environment_settings(place.url, {}, True, None, None))
        adapter = session.get_adapter(place.url)
        transmit = getattr(adapter, "transmit", adapter.send)  # a FencedAdapter would put its own token on
        if kept_open is not None:
            settings["stream"] = True
        response = transmit(request, timeout=TIMEOUT, **settings)
        if kept_open is None:
            response.close()
        else:
            kept_open.callback(response.raw.close)  # and not given back to a pool, which is too small for all
        return Reply(response.status_code, wire.parse_status(response.headers.get(wire.STATUS)))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where requests go, and how they are named in the report."""

    method: str
    url: str
    name: str
