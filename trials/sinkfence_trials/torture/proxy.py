"""A TCP proxy that can stop the world at one message: it counts bursts, and knows nothing of what is in them.

A *message* is what goes one way over a connection until the direction changes: a request or a reply, whatever
the protocol. A `Stop` waits for the k-th one and holds it: written by its sender, not delivered. The test
waits for `frozen`, lets others run, and releases the message, drops it or cuts the connection. Nothing here
sleeps, so that a test which uses it is decided by the order of events alone.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from sinkfence_trials.torture.links import Direction, Link, reset
from sinkfence_trials.torture.stops import Place, Stop

SEEN = 100_000
"""How many messages are remembered."""

INTERIM = b"HTTP/1.1 100 "
"""An interim answer is let through and not counted: without it boto3 keeps its body back."""


class FaultProxy:
    """Forwards connections to one upstream, and counts and stops messages on the way.

    Messages are counted per connection, and connections in the order in which they are taken: with a client
    that does one thing at a time the numbers are the same in every run.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self._upstream = (upstream_host, upstream_port)
        self._lock = threading.Lock()
        self._seen: deque[Place] = deque(maxlen=SEEN)
        self._stops: list[Stop] = []
        self._links: set[Link] = set()
        self._taken = 0
        self._threads: list[threading.Thread] = []
        self._delay = 0.0
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self._door: threading.Thread | None = None
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        """Where clients connect to."""
        self.accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stop(self, direction: Direction, message: int, connection: int = 1) -> Stop:
        """Hold this message when it comes: nothing behind it on its connection overtakes it."""
        stop = Stop(Place(connection, direction, message))
        with self._lock:
            self._stops.append(stop)
        return stop

    def next(self, direction: Direction, beginning: bytes = b"") -> Stop:
        """Hold the next message that begins so, on whatever connection."""
        stop = Stop(Place(0, direction, 0), beginning)
        with self._lock:  # what is over is dropped: a soak has thousands of them
            self._stops = [each for each in self._stops if not each.over.is_set()] + [stop]
        return stop

    def forget(self) -> None:
        """Hold nothing more, let go of what is held, and forget what was seen."""
        with self._lock:
            stops, self._stops = self._stops, []
            self._seen.clear()
        for stop in stops:
            stop.release()

    def seen(self) -> list[Place]:
        """The messages that have begun to pass so far."""
        with self._lock:
            return list(self._seen)

    def drained(self) -> list[Place]:
        """All messages, once both ends of all connections have been closed by those who use them."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(10)
        return self.seen()

    def lead_to(self, host: str, port: int) -> None:
        """Have new connections lead to another upstream; those that have been taken stay."""
        self._upstream = (host, port)

    def delay(self, seconds: float) -> None:
        """Let each burst of bytes take this much longer from now on."""
        self._delay = seconds

    def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED) until `accept`; those that have been taken stay."""
        if self._listener is not None and self._door is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # accept() in the other thread returns
            self._door.join()
            self._listener.close()
            self._listener = self._door = None

    def accept(self) -> None:
        """Take new connections, at the same address as before."""
        if self._listener is None:
            self._listener = socket.create_server(self.address)
            self.address = self._listener.getsockname()
            self._door = self._start(self._listen, self._listener)

    def cut(self) -> None:
        """Reset all open connections, on both sides."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.reset()

    def close(self) -> None:
        """End it all: what is held is lost, and no thread is left."""
        self._closing.set()
        self.refuse()
        with self._lock:
            stops, threads = list(self._stops), list(self._threads)
        for stop in stops:
            if not stop.over.is_set():
                stop.cut()
        self.cut()
        for thread in threads:
            thread.join(10)

    # What the threads do

    def _start(self, work: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, name="fault proxy", daemon=True)
        thread.start()
        return thread

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed by refuse()
            try:
                server = socket.create_connection(self._upstream, timeout=10)
            except OSError:
                reset(client)
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._taken += 1
                link = Link(self._taken, client, server)
                self._links.add(link)
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                self._threads += (
                    self._start(self._carry, link, client, server, "request"),
                    self._start(self._carry, link, server, client, "reply"),
                )

    def _carry(self, link: Link, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        with suppress(OSError):  # one side has gone: the other is told below
            while data := source.recv(65536):
                if direction == "reply" and data.startswith(INTERIM):
                    interim, end, data = data.partition(b"\r\n\r\n")
                    target.sendall(interim + end)
                    if not data:
                        continue
                verdict = self._pass(link, direction, data)
                if verdict in ("release", "tear"):
                    target.sendall(data)
                if verdict in ("cut", "tear"):
                    link.reset()
        self._finish(link, target)

    def _pass(self, link: Link, direction: Direction, data: bytes) -> str:
        """Count, and wait where there is a stop; return what is to become of these bytes."""
        with self._lock:
            stop = None
            if link.direction != direction:  # a new message begins
                link.direction, link.lost = direction, False
                link.counts[direction] += 1
                here = Place(link.number, direction, link.counts[direction])
                self._seen.append(here)
                stop = next((stop for stop in self._stops if stop.is_at(here, data)), None)
                if stop is not None:
                    stop.frozen.set()  # before anybody else looks: it holds one message
        if self._delay:
            self._closing.wait(self._delay)
        if stop is not None:
            stop.over.wait()
            link.lost = stop.verdict == "drop"
            return stop.verdict
        return "drop" if link.lost else "release"

    def _finish(self, link: Link, target: socket.socket) -> None:
        """Pass the end of one direction on; the link is gone when both have ended."""
        if not link.cut:  # else a FIN could overtake the RST, and the cut look like a clean end
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)
        with self._lock:
            link.ended += 1
            over = link.ended == 2
        if over:
            link.close()
            with self._lock:
                self._links.discard(link)
