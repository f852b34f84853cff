"""How a thread is started while a signal's handler may raise."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start(thread: threading.Thread, otherwise: Callable[[], object] | None = None) -> None:
    """Start a thread, once. What a signal's handler raises meanwhile comes out as what it is.

    `otherwise`: what is done here where there are too many threads, or this is an exit handler, where Python
    3.12 starts no more.

    An Exception then tells nothing of the thread: Python takes it for a failure of the start and strikes the
    thread off, which runs all the same if it has done that itself before, and dies if it comes to it later.

    Raises:
        RuntimeError: there are too many, or Python is about to end, and there is nothing to do otherwise.
    """
    try:
        thread.start()
    except RuntimeError:
        if otherwise is None or thread.ident is not None:
            raise  # it runs: that was a handler's
        otherwise()
    except KeyError as struck_off:
        raised = struck_off.__context__
        if struck_off.args != (thread,) or raised is None:
            raise
        raise raised from raised.__cause__
