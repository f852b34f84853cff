"""The caller's half for requests: a token on every write, and an acknowledgement from every service."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, cast

try:
    import requests
    from requests.adapters import HTTPAdapter
    from requests.exceptions import ConnectTimeout, InvalidSchema, InvalidURL
    from requests.utils import rewind_body
    from urllib3.exceptions import HTTPError, NewConnectionError
except ImportError:
    raise ImportError("the adapter for requests needs requests: pip install 'sinkfence[requests]'") from None

from sinkfence.errors import LeaseLost, NotEnforced, OutcomeUnknown, StaleToken
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.calls import Call

Sign = Callable[[Token], str]
_NOWHERE: Final = (InvalidURL, InvalidSchema)  # raised before a connection is looked for


class FencedAdapter(HTTPAdapter):
    """A transport for one bearer, to be mounted on the service's address: one Session per lease.

    The address ends with a slash: `http://host:80` is the beginning of `http://host:8080`, too.

    Each write carries the bearer's token, read and signed as it is sent; a safe method carries none. It is
    put on here and not on the request, so that a redirect to another host doesn't take it along.

    An attempt that never left is repeated, and one that was put off before anything ran (408, 425, 429, 503
    `fence-unavailable`, 409 `request-in-progress`); one that may have been applied (any other 5xx, no answer)
    only with an `Idempotency-Key`. A lease caps all timeouts (given in seconds), and the pauses in between.

    `sign` makes the header of a token, such as a `TokenSigner`; without it the token travels unsigned.

    Sending raises:
        StaleToken, GenerationConflict: the service has seen a newer owner; the bearer was told.
        LeaseLost: the bearer's lease is over.
        NotEnforced: a 2xx or 3xx without `Fencing-Status`, or a redirect that asks for the write again.
        OutcomeUnknown: sent, and what became of it is not known.
    """

    def __init__(self, bearer: Bearer, *, sign: Sign | None = None) -> None:
        super().__init__(max_retries=0)
        self._caller = _Caller(bearer, sign)

    def send(  # noqa: PLR0917  # as requests has it
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send one request, as often as it takes (`requests.adapters.BaseAdapter.send`)."""
        settings = {"stream": stream, "verify": verify, "cert": cert, "proxies": proxies}
        if request.method in wire.SAFE:
            return _final(self.transmit(request, timeout=timeout, **settings))
        key = request.headers.get(wire.IDEMPOTENCY_KEY)
        if key is not None:
            wire.parse_idempotency_key(str(key))
        return self._caller.call(self.transmit, request, timeout, settings, repeatable=key is not None)

    def transmit(self, request: requests.PreparedRequest, **settings: Any) -> requests.Response:
        """Send one request once, as it is."""
        return super().send(request, **settings)


class HttpSink:
    """A service that checks tokens, as something to arm.

    `base_url` is where its middleware stands: arming posts to `/.well-known/fencing-arm` below it, by the
    session's settings and whatever is mounted there, another bearer's adapter excepted.
    """

    durable: bool = True

    def __init__(self, session: requests.Session, base_url: str, *, sign: Sign | None = None) -> None:
        self._session = session
        self._url = base_url.rstrip("/") + wire.ARM_PATH
        self._sign = sign

    def arm(self, bearer: Bearer) -> None:
        """Raise the service's mark to the bearer's generation.

        Raises:
            StaleToken, GenerationConflict: the service has seen a newer owner; the bearer was told.
            LeaseLost: the bearer's lease is over.
            NotEnforced: any other answer than 204 `armed`.
            OutcomeUnknown: no answer, or the service can't be asked at present: arm again.
        """
        session = self._session
        request = session.prepare_request(requests.Request("POST", self._url))
        settings: dict[str, Any] = dict(session.merge_environment_settings(self._url, {}, False, None, None))
        mounted = session.get_adapter(self._url)
        transmit = mounted.transmit if isinstance(mounted, FencedAdapter) else mounted.send
        response = _Caller(bearer, self._sign).call(transmit, request, 10.0, settings, repeatable=True)
        said = wire.parse_status(response.headers.get(wire.STATUS))
        word = said.word if said else "no Fencing-Status"
        if response.status_code == 204 and word == "armed":
            return
        what = f"arming was answered {response.status_code} ({word})"
        if response.status_code >= 500:
            raise OutcomeUnknown(f"{what}: arm again")
        if word == "unauthentic-token":
            raise NotEnforced(f"{what}: the service does not trust this token: look at key, issuer, audience")
        raise NotEnforced(f"{what} and not 204 (armed): nothing there would stop a stale owner")


class _Caller:
    def __init__(self, bearer: Bearer, sign: Sign | None) -> None:
        self._bearer = bearer
        self._sign = sign
        self._signed: tuple[Token, str] | None = None

    def call(
        self,
        transmit: Callable[..., requests.Response],
        request: requests.PreparedRequest,
        timeout: Any,
        settings: dict[str, Any],
        *,
        repeatable: bool,
    ) -> requests.Response:
        call = Call(self._bearer.token, repeatable, _rewindable(request), random.random)
        while True:
            call.attempts += 1
            attempt = self._prepare(call, request)
            capped = _capped(timeout, self._left())
            heard = False
            try:
                with ExitStack() as unread:
                    response = transmit(attempt, timeout=capped, **settings)
                    unread.callback(response.close)
                    heard = True
                    response.request = request
                    call.redirected(request.method, _final(response).status_code)
                    pause = self._judge(call, response)
                    if pause is None:
                        if not settings["stream"]:
                            _ = response.content
                        unread.pop_all()
                        return response
            except (requests.RequestException, HTTPError) as error:
                if isinstance(error, requests.RequestException):
                    error.request = request  # the caller's, which carries no token
                if isinstance(error, _NOWHERE) or _unverified(error):
                    raise
                pause = call.failed(error, self._left(), sent=heard or not _unsent(error))
            time.sleep(pause)

    def _prepare(self, call: Call, request: requests.PreparedRequest) -> requests.PreparedRequest:
        try:
            token = self._bearer.token
        except LeaseLost as lost:
            if call.unknown:
                raise OutcomeUnknown(f"{call}: sent without an answer, and its lease is over") from lost
            raise
        attempt = request.copy()
        if call.attempts > 1 and isinstance(getattr(request, "_body_position", None), int):
            rewind_body(attempt)
        attempt.headers[wire.TOKEN] = self._value(token, anew=call.expired or not call.rewindable)
        return attempt

    def _value(self, token: Token, *, anew: bool) -> str:
        if self._sign is None:
            return wire.format_token(token)
        # A header is kept until it is refused as expired: so the service can remember it as verified. A body
        # that can't be sent again leaves no second try, and gets a new one.
        if anew or self._signed is None or self._signed[0] != token:
            self._signed = token, self._sign(token)
        return self._signed[1]

    def _judge(self, call: Call, response: requests.Response) -> float | None:
        headers = response.headers
        try:
            return call.answered(
                response.status_code, headers.get(wire.STATUS), headers.get("Retry-After"), self._left()
            )
        except StaleToken as stale:
            self._bearer.lose(stale)
            raise

    def _left(self) -> float | None:
        remaining: Callable[[], float] | None = getattr(self._bearer, "remaining", None)
        return None if remaining is None else remaining()


def _final(response: requests.Response) -> requests.Response:
    """Return the response if it is one.

    http.client takes an interim one (RFC 9110, section 15.2), such as 103 Early Hints, for the last, and
    leaves the last to whatever is asked next on the connection: so that is closed.

    Raises:
        requests.ConnectionError: its status says nothing of what became of the request.
    """
    if 200 <= response.status_code <= 599:
        return response
    response.close()
    raise requests.ConnectionError(f"{response.status_code} is no answer", request=response.request)


def _rewindable(request: requests.PreparedRequest) -> bool:
    body: Any = request.body  # a file or a generator too
    at_start: object = getattr(request, "_body_position", None)  # where requests found a file standing
    return body is None or isinstance(body, (bytes, str)) or isinstance(at_start, int)


def _capped(timeout: Any, left: float | None) -> Any:
    if left is None:
        return timeout
    left = max(left, 0.001)
    pair = cast(
        "tuple[float | None, float | None]", timeout if isinstance(timeout, tuple) else (timeout,) * 2
    )
    return tuple(left if seconds is None else min(seconds, left) for seconds in pair)


def _unsent(error: Exception) -> bool:
    """Whether not one byte of the request can have left: no connection came about."""
    reason = _reason(error)
    reasons = (reason, getattr(reason, "original_error", None))  # the latter of a proxy that can't be reached
    return isinstance(error, ConnectTimeout) or any(
        isinstance(found, NewConnectionError) for found in reasons
    )


def _unverified(error: Exception) -> bool:
    """Whether the service could not prove who it is, and so was sent nothing."""
    reason = _reason(error)
    return any(
        isinstance(found, ssl.SSLCertVerificationError) for found in (reason, *getattr(reason, "args", ()))
    )


def _reason(error: Exception) -> Any:
    """Return urllib3's own error behind one of requests, without its account of retries."""
    cause: Any = error.args[0] if error.args else None
    return getattr(cause, "reason", cause)
