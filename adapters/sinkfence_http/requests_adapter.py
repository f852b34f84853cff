"""The caller's half for requests: a token on every write, and an acknowledgement from every service."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NoReturn

try:
    import requests
    from requests.adapters import HTTPAdapter
    from requests.exceptions import ConnectTimeout, InvalidSchema, InvalidURL
    from requests.utils import rewind_body
    from urllib3.exceptions import HTTPError, NewConnectionError
    from urllib3.util import Timeout
except ImportError:
    raise ImportError("the adapter for requests needs requests: pip install 'sinkfence[requests]'") from None

from sinkfence.sinks import Bearer
from sinkfence_http import wire
from sinkfence_http.arming import ARM_TIMEOUT, arm_url, check_armed
from sinkfence_http.calls import Call, Caller, Sign, carried, check_sign

_NOWHERE: Final = (InvalidURL, InvalidSchema)  # raised before a connection is looked for


class FencedAdapter(HTTPAdapter):
    """A transport for one bearer, to be mounted on the service's address: one Session per lease.

    The address ends with a slash: `http://host:80` is the beginning of `http://host:8080`, too.

    Each write carries the bearer's token, read and signed as it is sent; a safe method carries none. It is
    put on here and not on the request, so that a redirect to another host doesn't take it along.

    An attempt that never left is repeated, and one that was put off before anything ran (408, 425, 429, 503
    `fence-unavailable`, 409 `request-in-progress`); one that may have been applied (any other 5xx, no answer)
    only with an `Idempotency-Key`. A lease caps all timeouts, in seconds or of urllib3, and the pauses
    in between.

    `sign` makes the header of a token, such as a `TokenSigner`; without it the token travels unsigned.

    Sending raises:
        StaleToken, GenerationConflict: the service has seen a newer owner; the bearer was told.
        LeaseLost: the bearer's lease is over.
        NotEnforced: a 2xx or 3xx without `Fencing-Status`, or a redirect that asks for the write again.
        OutcomeUnknown: sent, and what became of it is not known.
    """

    def __init__(self, bearer: Bearer, *, sign: Sign | None = None) -> None:
        super().__init__(max_retries=0)
        self._caller = Caller(bearer, sign)

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
        return _call(self._caller, self.transmit, request, timeout, settings)

    def __getstate__(self) -> NoReturn:
        """Refuse to be copied, or sent to another process: a lease stays where it is."""
        raise TypeError("a FencedAdapter can't be pickled or copied, nor its Session: mount a new one there")

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
        self._url = arm_url(base_url)
        self._sign = check_sign(sign)

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
        caller = Caller(bearer, self._sign)
        try:
            answer = _call(caller, transmit, request, ARM_TIMEOUT, settings, repeatable=True)
        except Exception as error:
            refusal = carried(error, requests.Response, request)
            if refusal is not None:  # of an adapter that raises for statuses
                refusal.close()
                check_armed(refusal.status_code, refusal.headers)
            raise
        check_armed(answer.status_code, answer.headers)


def _call(
    caller: Caller,
    transmit: Callable[..., requests.Response],
    request: requests.PreparedRequest,
    timeout: Any,
    settings: dict[str, Any],
    *,
    repeatable: bool = False,
) -> requests.Response:
    key: Any = request.headers.get(wire.IDEMPOTENCY_KEY)
    key = None if key is None else str(key)
    method = request.method or ""
    call = caller.begin(method, key, repeatable=repeatable, rewindable=_rewindable(request))
    while True:
        attempt = _attempt(call, request)
        heard = False
        try:
            with ExitStack() as unread:
                response = transmit(attempt, timeout=_capped(call, timeout), **settings)
                unread.callback(response.close)
                heard = True
                response.request = request
                pause = call.answered(response.status_code, response.headers)
                if pause is None:
                    if not settings["stream"]:
                        _ = response.content
                    unread.pop_all()
                    return response
        except Exception as error:  # noqa: BLE001  # raised again there, but for those of the library
            pause = _failed(call, request, error, heard)
        time.sleep(pause)


def _failed(call: Call, request: requests.PreparedRequest, error: Exception, heard: bool) -> float:
    answer = None if heard else carried(error, requests.Response, request)
    if isinstance(error, requests.RequestException):
        error.request = request  # the caller's, which carries no token
    if answer is not None:
        answer.request = request
        with ExitStack() as unread:
            unread.callback(answer.close)
            pause = call.answered(answer.status_code, answer.headers)
            if pause is not None:
                return pause
            unread.pop_all()  # the error's reader may want it
    if answer is not None or not isinstance(error, (requests.RequestException, HTTPError)):
        raise error
    hopeless = isinstance(error, _NOWHERE) or _unverified(error)
    return call.failed(error, sent=heard or not (hopeless or _unsent(error)), hopeless=hopeless)


def _attempt(call: Call, request: requests.PreparedRequest) -> requests.PreparedRequest:
    attempt = request.copy()
    attempt.headers[wire.TOKEN] = call.attempt()
    if call.attempts > 1 and isinstance(getattr(request, "_body_position", None), int):
        try:
            rewind_body(attempt)
        except (requests.RequestException, ValueError) as error:  # the file was closed, or can't go back
            raise call.stopped(error)  # noqa: B904  # which has its cause
    return attempt


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


def _capped(call: Call, timeout: float | tuple[float | None, float | None] | Timeout | None) -> Any:
    if call.caller.left() is None:
        return timeout
    if isinstance(timeout, Timeout):
        capped, total = timeout.clone(), timeout.total
        capped.total = call.capped(float(total) if isinstance(total, (int, float)) else None)
        return capped
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    return call.capped(connect), call.capped(read)


def _unsent(error: Exception) -> bool:
    """Whether not one byte of the request can have left: no connection came about."""
    reason = _reason(error)
    behind = getattr(reason, "original_error", None)  # of a proxy: not each says that nothing was sent
    if isinstance(error, ConnectTimeout) or isinstance(reason, NewConnectionError):
        return True
    # http.client has no error of its own for a proxy that refuses CONNECT, nor for one that asks for a login.
    return isinstance(behind, NewConnectionError) or str(behind).startswith("Tunnel connection failed")


def _unverified(error: Exception) -> bool:
    """Whether the service could not prove who it is, and so was sent nothing."""
    reason = _reason(error)
    return any(
        isinstance(each, ssl.SSLCertVerificationError) for each in (reason, *getattr(reason, "args", ()))
    )


def _reason(error: Exception) -> Any:
    """Return urllib3's own error behind one of requests, without its account of retries."""
    cause: Any = error.args[0] if error.args else None
    return getattr(cause, "reason", cause)
