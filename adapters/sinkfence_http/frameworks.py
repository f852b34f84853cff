"""A fence before the application of a framework: the door, and the framework's own way to its refusals.

Flask and Django make a 500 of an error before the door can see it, and log a traceback for each stale owner:
so each is taught to answer refusals as the door does. No framework is imported here before its application
is there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from sinkfence.errors import MissingToken, SinkfenceError
from sinkfence_http import aio, asgi, wsgi
from sinkfence_http.answers import TOKEN_REQUIRED, Answer
from sinkfence_http.fence import Fence
from sinkfence_http.passage import PASSAGE, Passage

_REFUSALS: Final = "sinkfence_http.frameworks.DjangoRefusals"


def install(app: Any, fence: Fence | aio.Fence, *, exempt: Callable[[Any], bool] | None = None) -> Any:
    """Put a fence before an application, and return what is to be served.

    Starlette and FastAPI take an `aio.Fence`, Flask a `Fence`; what is returned is the application itself. Of
    Django, pass what get_wsgi_application() returns and a `Fence`, or what get_asgi_application() returns and
    an `aio.Fence`, serve what is returned, and list DjangoRefusals last in MIDDLEWARE.

    `exempt` is given the ASGI scope or the WSGI environ, and says which requests need no token. Middleware
    that is added to Starlette or FastAPI afterwards stands outside the door, as CORSMiddleware should.

    Raises:
        TypeError: an application of another kind, a fence of the other one, or an `exempt` that is async.
        ValueError: Django's MIDDLEWARE lacks DjangoRefusals.
    """
    checked: Any = fence  # by each middleware
    if _is_one(app, "starlette.applications", "Starlette"):
        asgi.FencingMiddleware(app, checked, exempt=exempt)  # Starlette would make one with the first request
        app.add_middleware(asgi.FencingMiddleware, fence=fence, exempt=exempt)
        return app
    if _is_one(app, "flask", "Flask"):
        app.wsgi_app = wsgi.FencingMiddleware(app.wsgi_app, checked, exempt=exempt)
        app.register_error_handler(SinkfenceError, _answer_of_flask)
        app.handle_user_exception = _hearing(app.handle_user_exception)
        return app
    if _is_one(app, "django.core.handlers.wsgi", "WSGIHandler"):
        _expect_refusals()
        return wsgi.FencingMiddleware(app, checked, exempt=exempt)
    if _is_one(app, "django.core.handlers.asgi", "ASGIHandler"):
        _expect_refusals()
        return asgi.FencingMiddleware(app, checked, exempt=exempt)
    raise TypeError(
        "install() knows applications of Starlette, FastAPI, Flask and Django; before any other, put the "
        "FencingMiddleware of sinkfence_http.asgi or sinkfence_http.wsgi yourself"
    )


class DjangoRefusals:
    """Django's middleware that answers what a view refuses; last in MIDDLEWARE, so that it hears it first."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        functions = importlib.import_module("asgiref.sync")
        if functions.iscoroutinefunction(get_response):
            functions.markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        """Return the response, or what is to be awaited for it."""
        return self._get_response(request)

    def process_exception(self, request: Any, exception: Exception) -> Any:
        """Return the answer to a refusal, None to anything else."""
        if not isinstance(exception, SinkfenceError):
            return None
        scope = request.scope if hasattr(request, "scope") else request.environ
        answer = _answer(scope, exception)
        if answer is None:
            return None
        response = importlib.import_module("django.http").HttpResponse
        return response(answer.body, status=answer.status, headers=dict(answer.headers))


def _hearing(handle: Callable[[Exception], Any]) -> Callable[[Exception], Any]:
    # A blueprint's own handler comes before ours, and may make a success of a refusal.
    def hear_and_handle(error: Exception) -> Any:
        passage = importlib.import_module("flask").request.environ.get(PASSAGE)
        if isinstance(passage, Passage):
            passage.hear(error)
        return handle(error)

    return hear_and_handle


def _answer_of_flask(error: SinkfenceError) -> Any:
    flask = importlib.import_module("flask")
    answer = _answer(flask.request.environ, error)
    if answer is None:
        raise error
    return flask.Response(answer.body, answer.status, answer.headers)


def _answer(request: Mapping[str, Any], error: SinkfenceError) -> Answer | None:
    passage = request.get(PASSAGE)
    if isinstance(passage, Passage):
        return passage.refusal(error, started=False)
    return TOKEN_REQUIRED if isinstance(error, MissingToken) else None


def _is_one(app: object, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(app, getattr(loaded, name))


def _expect_refusals() -> None:
    if _REFUSALS not in importlib.import_module("django.conf").settings.MIDDLEWARE:
        raise ValueError(f"list {_REFUSALS!r} last in MIDDLEWARE: Django would make a 500 of every refusal")
