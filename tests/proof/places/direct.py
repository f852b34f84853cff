"""Ways past the proxy, over connections that stay open: for the truth, and for successors.

To log in takes longer than a tenure, and there are some hundred successors.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa

from places.addresses import alchemy
from sinkfence.stores.sql import SqlStore


@dataclass(frozen=True)
class Direct:
    """One database's."""

    dsn: str
    observer: psycopg.Connection[Any]
    """Reads the truth; in autocommit."""
    engine: sa.Engine
    store: SqlStore


@contextmanager
def direct(dsn: str) -> Generator[Direct]:
    """Open them; a database needs nothing in it yet."""
    engine = sa.create_engine(alchemy(dsn))
    with psycopg.connect(dsn, autocommit=True) as observer, closing(SqlStore(alchemy(dsn))) as store:
        yield Direct(dsn, observer, engine, store)
        engine.dispose()
