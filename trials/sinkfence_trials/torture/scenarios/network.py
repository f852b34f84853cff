"""The network in one worker's way: addresses that lead through it, and the one message that is held."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from sinkfence_trials.torture.links import Direction
from sinkfence_trials.torture.proxy import FaultProxy
from sinkfence_trials.torture.stops import Place, Stop


def by_way_of(dsn: str, network: FaultProxy) -> str:
    """The same libpq URI, through the network; without the encryptions that would be tried first."""
    parts = urlsplit(dsn)
    login = parts.netloc.rpartition("@")[0]
    more = "sslmode=disable&gssencmode=disable"
    return parts._replace(
        netloc=f"{login}@127.0.0.1:{network.address[1]}",
        query=f"{parts.query}&{more}" if parts.query else more,
    ).geturl()


def address(network: FaultProxy) -> str:
    """The network's own URL."""
    return f"http://127.0.0.1:{network.address[1]}"


def hold_next(network: FaultProxy, act: Callable[[], object], direction: Direction) -> Stop:
    """Have a client act twice, and hold the last message of the third time: its effect's request or answer.

    The network cannot read. But whoever does the same thing again sends as many messages, over the same
    connection or a new one as before, and what is answered last is what has the effect.
    """
    act()
    before = network.seen()
    act()
    after = network.seen()
    new = after[len(before) :]
    last = {place.connection: place for place in new}
    # A farewell is answered by nobody, and may come late.
    answered = [place for place in new if place.direction == "reply" or last[place.connection] != place]
    at = [place for place in answered if place.direction == direction][-1]
    newest = max(place.connection for place in before)
    if at.connection > newest:
        opened = max(place.connection for place in after) - newest
        return network.stop(direction, at.message, at.connection + opened)
    sent = sum((place.connection, place.direction) == (at.connection, direction) for place in new)
    return network.stop(direction, at.message + sent, at.connection)


def was_answered(network: FaultProxy, request: Place) -> bool:
    """Whether the server has answered a request, once all connections through the network are over."""
    return request._replace(direction="reply") in network.drained()
