"""The command line as it is typed, and what it is pointed at."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sinkfence import Leases
from sinkfence.cli import run
from sinkfence.stores.sql import SqlStore

sys.path.append(str(Path(__file__).parent))
from command_line import COMMAND, PLAIN, Ran, Sinkfence


@pytest.fixture
def sinkfence(capsys: pytest.CaptureFixture[str]) -> Sinkfence:
    """Run the command line, here: all but the process."""

    def command(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(arguments)
        return Ran(code, *capsys.readouterr())

    return command


@pytest.fixture
def process() -> Sinkfence:
    """Run the command line in a process of its own, its output piped."""

    def command(*arguments: str | bytes, **environment: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**PLAIN, **environment},
            check=False,
            timeout=60,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return command


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A lease store with its tables, in either database."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/leases.db"
    else:
        url = request.getfixturevalue("dsn").replace("postgresql://", "postgresql+psycopg://", 1)
    store = SqlStore(url)
    store.create_schema()
    store.close()
    return url


@pytest.fixture
def leases(store_url: str) -> Iterator[Leases]:
    """The workers' leases in that store."""
    with Leases(SqlStore(store_url), ttl=60, owner="worker-a") as opened:
        yield opened


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serve an ASGI or WSGI application by uvicorn on a free port, and return its URL."""
    with ExitStack() as stack:

        def start(app: Any, **options: Any) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            config = uvicorn.Config(app, lifespan="off", ws="none", log_level="warning", **options)
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join()

            stack.callback(stop)
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start
