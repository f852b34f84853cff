"""One connection through the fault proxy: a client's end and the upstream's, and how to reset both."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Literal

Direction = Literal["request", "reply"]


class Link:
    """One connection: a client's end, and the upstream's."""

    def __init__(self, number: int, client: socket.socket, server: socket.socket) -> None:
        self.number: int = number
        self.client: socket.socket = client
        self.server: socket.socket = server
        self.counts: dict[Direction, int] = {"request": 0, "reply": 0}
        self.direction: Direction | None = None
        self.lost = False
        """The message that is under way was dropped: so is what still comes of it."""
        self.ended = 0
        self.cut: bool = False

    def reset(self) -> None:
        """Send RST both ways."""
        self.cut = True
        reset(self.client)
        reset(self.server)

    def close(self) -> None:
        """Close both ends."""
        self.client.close()
        self.server.close()


def reset(end: socket.socket) -> None:
    """Close with RST instead of FIN: SO_LINGER of 0 s (socket(7)).

    Another thread may sit in recv() on this socket, and then close() alone sends nothing, since the kernel
    keeps the socket until that call returns: SHUT_RD makes it return.
    """
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)
    end.close()
