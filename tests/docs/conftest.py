"""What the pages' examples run in: real servers, and the names that the text takes for granted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import sinkfence_postgres
from sinkfence.stores.sql import SqlStore

ROOT = Path(__file__).parents[2]


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
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run a page's Python blocks from top to bottom, as one program, in an empty folder."""

    def run(page: str, *, replace: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
        document = Sybil([PythonCodeBlockParser()]).parse(ROOT / page)
        document.namespace.update(names, __name__="page", Entry=Entry, Payment=Payment)
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
