"""How a worker writes down what it asks and what it is told, and what an error says of what was asked."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from sinkfence import LeaseLost, OutcomeUnknown, StaleToken
from sinkfence.errors import SinkfenceError
from sinkfence.tokens import Token
from sinkfence_trials.history import History, Type

NOT_DONE: Final = (SinkfenceError, psycopg.Error, SQLAlchemyError)
"""By these, apart from OutcomeUnknown, the library says that nothing was done: it is taken at its word."""


def outcome(error: Exception) -> Type:
    """What an error says of what was asked."""
    if isinstance(error, (StaleToken, LeaseLost)):
        return "info" if error.earlier_attempt_unknown else "fail"
    return "fail" if isinstance(error, NOT_DONE) and not isinstance(error, OutcomeUnknown) else "info"


@contextmanager
def told(
    history: History, f: str, job: str, token: Token | None = None, key: str | None = None, **value: Any
) -> Generator[None]:
    """Write down that something is asked, and what came of it."""
    generation = None
    if token is not None:
        generation, value["owner"] = token.generation, token.owner
    history.add(f, "invoke", job, generation, key, **value)
    try:
        yield
    except Exception as error:
        history.add(f, outcome(error), job, generation, key, **value, error=type(error).__name__)
        raise
    history.add(f, "ok", job, generation, key, **value)
