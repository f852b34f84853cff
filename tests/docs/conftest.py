"""What the pages' examples run in: real servers, and the names that the text takes for granted."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import sinkfence_postgres
from sinkfence.stores.sql import SqlStore
from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.supervised import Supervised, supervised

ROOT = Path(__file__).parents[2]
ETCD = shutil.which("etcd")


class Base(DeclarativeBase):
    """The reader's own tables."""


class Entry(Base):
    """A row that must not be a stale owner's."""

    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


class Payment(Base):
    """A row that a service's handler writes."""

    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]


@pytest.fixture
def url(dsn: str) -> str:
    """The database's URL for SQLAlchemy."""
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """An engine on a database that has the reader's tables, the lease store's and the marks."""
    engine = create_engine(url)
    store = SqlStore(engine)
    store.create_schema()
    store.close()
    with engine.begin() as conn:
        Base.metadata.create_all(conn)
        sinkfence_postgres.install(conn)
    yield engine
    engine.dispose()


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Save a file of the page on preparing, and import it as a reader's programs do."""

    def save(name: str) -> ModuleType:
        page = (ROOT / "docs/how-to/prepare.md").read_text()
        [block] = re.findall(rf"^```python\n(# {name}\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
        path = tmp_path / f"{name}.py"
        path.write_text(block)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.chdir(tmp_path)
        spec.loader.exec_module(module)
        return module

    return save


@pytest.fixture
def common(
    prepared: Callable[[str], ModuleType], engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The reader's `common.py`, on a database that has all tables."""
    monkeypatch.setenv("DATABASE_URL", url)
    module = prepared("common")
    yield module
    module.leases.close()
    module.engine.dispose()


@pytest.fixture
def signing(prepared: Callable[[str], ModuleType], tmp_path: Path) -> ModuleType:
    """The reader's `signing.py`, with a pair of keys that was made as its page says."""
    page = (ROOT / "docs/how-to/prepare.md").read_text()
    for command in re.findall(r"^\$ (openssl .*)$", page, re.MULTILINE):
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    return prepared("signing")


@pytest.fixture
def run_page(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Run a page's Python blocks from top to bottom, as one program, in the reader's folder."""

    def run(page: str, *, replace: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
        text = (ROOT / page).read_text()
        files = set(re.findall(r"^ *from (common|signing) import", text, re.MULTILINE))
        modules = {file: request.getfixturevalue(file) for file in files}
        document = Sybil([PythonCodeBlockParser()]).parse(ROOT / page)
        document.namespace.update(names, __name__="page")
        monkeypatch.chdir(tmp_path)
        examples = list(document.examples())
        assert examples, f"{page} has no Python block that runs"
        for example in examples:
            for old, new in (replace or {}).items():
                # A str subclass with line numbers: rebuilt, so that a failure still points into the page.
                source = example.parsed.replace(old, new)
                lexeme = type(example.parsed)
                example.parsed = lexeme(source, example.parsed.offset, example.parsed.line_offset)
            example.evaluate()
        if "common" in modules:
            records = modules["common"].store.list("")
            held = [record.job_id for record in records if (record.remaining or 0) > 60]
            assert held == [], f"{page} leaves these held for minutes, and the next page finds them so"
        return document.namespace

    return run


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serve an ASGI application on a free port of this process, and return its URL."""
    with ExitStack() as stack:

        def start(app: Any) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_level="warning"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join()

            stack.callback(stop)
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start


@contextmanager
def run_server(name: str, start: Callable[[Supervised, int, int], list[object]]) -> Iterator[int]:
    """Run a server, and give its port."""
    port, second = binaries.free_ports(2)
    with supervised(name, binaries.temporary()) as process:
        process.start(start(process, port, second))

        def answers(code: int | None) -> bool:
            with socket.socket() as sock:
                return code is None and sock.connect_ex(("127.0.0.1", port)) == 0

        process.wait(answers)
        yield port


@pytest.fixture
def server() -> Callable[..., AbstractContextManager[int]]:
    """Run a server of the PATH: `with server(name, words) as port`."""
    return run_server


@pytest.fixture
def etcd() -> Iterator[str]:
    """The URL of an etcd server."""
    if ETCD is None:
        pytest.skip("not run: there is no etcd (Debian's etcd-server) on the PATH")

    def words(process: Supervised, port: int, second: int) -> list[object]:
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{second}"
        options = {
            "data-dir": process.folder / "data",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        return [ETCD, *(word for name, value in options.items() for word in (f"--{name}", value))]

    with run_server("etcd", words) as port:
        yield f"http://127.0.0.1:{port}"
