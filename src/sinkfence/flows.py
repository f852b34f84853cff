"""An operation as a generator of the calls that it makes: decided once, for threads and for event loops.

A flow yields each call that it wants made. Whoever drives it sends back the answer, or throws in the error:

    def acquiring(store, pause) -> Flow[Grant]:
        while True:
            try:
                grant = yield partial(store.acquire, "invoice-42", "a:1", 30.0)
            except LeaseHeld as held:
                yield partial(pause, held.retry_after)
            else:
                return grant

    grant = drive(acquiring(store, time.sleep))
    grant = await drive_async(acquiring(asynchronous_store, asyncio.sleep))
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Call = Callable[[], Any]
"""A request that is about to be made. For an event loop it returns what is to be awaited."""
Flow = Generator[Call, Any, T]
"""Yields each call, is sent its answer or thrown its error, and returns what came of it all."""


class Interruption(BaseException):
    """What a signal's handler raised while a call was waited for: it is not the call that has failed.

    A flow that goes on after an error of the call's does not go on after this one.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause: Exception = cause


def drive(flow: Flow[T]) -> T:
    """Make the calls on this thread. An interruption comes out as what it was."""
    try:
        call = next(flow)
        while True:
            try:
                answer = call()
            except BaseException as error:  # noqa: BLE001 - the flow decides
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
    except Interruption as interruption:
        raise interruption.cause from interruption.cause.__cause__


def returned_error(flow: Flow[None]) -> Flow[Exception | None]:
    """Return the error that a call of this flow has returned and the flow has raised; let all others pass.

    A signal's handler may raise an Exception at any line, which nobody may take for an answer.
    """
    answer: Exception | None = None
    try:
        call = next(flow)
        while True:
            try:
                answer = yield call
            except BaseException as error:  # noqa: BLE001 - the flow decides
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration:
        return None
    except Exception as error:
        if error is not answer:
            raise
        return error


async def drive_async(flow: Flow[T]) -> T:
    """Make the calls in this task. A cancellation is an error of the call that it interrupts."""
    try:
        call = next(flow)
        while True:
            try:
                answer = await call()
            except BaseException as error:  # noqa: BLE001 - the flow decides
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
