"""A writer: a file whose content a fenced object gets when the block around it ends."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from sinkfence_s3.put import Put, Written

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Writer(io.BufferedIOBase, BinaryIO):
    """A writable binary file, made by `FencedObject.open`; for one thread.

    Closing it says that nothing more is to come; only the end of the block puts it.
    """

    written: Written | None = None
    """What the put did, once the block has ended."""

    def __init__(self, put: Put) -> None:
        super().__init__()
        self._put = put

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            if self.closed:
                raise ValueError("this file is closed")
            view = memoryview(data)
        except (TypeError, ValueError):
            self._put.broken = True  # the caller may catch this and write on: the piece would be missing
            raise
        self._put.write(view)
        return view.nbytes

    def tell(self) -> int:
        return self._put.size
