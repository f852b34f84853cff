"""What a WSGI application answers, kept while it goes out."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from sinkfence.sinks import Claim, Replay
from sinkfence_http.door import log_unkept
from sinkfence_http.passage import Passage
from sinkfence_http.records import Recording

Headers = list[tuple[str, str]]


class Recorder:
    """Keeps a response while it goes out, for the repetitions of its request."""

    def __init__(self, passage: Passage, claim: Claim, replay: Replay) -> None:
        self._passage = passage
        self._claim: Claim | None = claim
        self._recording = Recording(replay.max_body)

    def start(self, status: int, headers: Headers) -> None:
        """Note the head."""
        self._recording.start(status, headers)
        self._report_whole()

    def add(self, data: bytes) -> None:
        """Note a part of the body."""
        self._recording.add(data)
        self._report_whole()

    def recorded(self, body: Iterable[bytes]) -> Generator[bytes]:
        """Yield the body, each part noted."""
        for data in body:
            self.add(data)
            yield data
        self._recording.end()

    def _report_whole(self) -> None:
        # Before the last of it is sent: who has it all may ask again at once.
        if self._recording.whole:
            self.report(ended=False)

    def report(self, *, ended: bool) -> None:
        """Say what has become of the request, once: that nothing has, not before its handler has ended."""
        claim = self._claim
        if claim is None:
            return
        kept, undone = self._passage.ending(self._recording)
        if undone and kept is None and not ended:
            return
        self._claim = None
        try:
            if kept is not None:
                claim.keep(kept)
            else:
                claim.leave(undone=undone)
        except Exception:  # noqa: BLE001  # what was done is done, and its caller is told
            log_unkept(self._passage.token)
