"""An operation as the calls that it makes, one by one: decided once, for threads and for event loops."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Call = Callable[[], Any]
"""A request that is about to be made. For an event loop it returns what is to be awaited."""
Steps = Generator[Call, Any, T]
"""Yields each call, is sent its answer or thrown its error, and returns what came of it all."""


class Interruption(BaseException):
    """What a signal's handler raised while a call was waited for: it is not the call that has failed.

    Steps that go on after an error of the call's do not go on after this one.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause: Exception = cause


def drive(steps: Steps[T]) -> T:
    """Make the calls on this thread. An interruption comes out as what it was."""
    try:
        call = next(steps)
        while True:
            try:
                answer = call()
            except BaseException as error:  # noqa: BLE001 - the steps decide
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
    except Interruption as interruption:
        raise interruption.cause from interruption.cause.__cause__


def answered(steps: Steps[None]) -> Steps[Exception | None]:
    """Return the error that a call of these steps has returned and they have raised; let all others pass.

    A signal's handler may raise an Exception at any line, which nobody may take for an answer.
    """
    failed: Exception | None = None
    try:
        call = next(steps)
        while True:
            try:
                failed = yield call
            except BaseException as error:  # noqa: BLE001 - the steps decide
                call = steps.throw(error)
            else:
                call = steps.send(failed)
    except StopIteration:
        return None
    except Exception as error:
        if error is not failed:
            raise
        return error


async def drive_async(steps: Steps[T]) -> T:
    """Make the calls in this task. A cancellation is an error of the call that it interrupts."""
    try:
        call = next(steps)
        while True:
            try:
                answer = await call()
            except BaseException as error:  # noqa: BLE001 - the steps decide
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
