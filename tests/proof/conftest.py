"""The proof's own modules are imported by their bare names; what was explored is said at the end."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))

EXPLORED = "explored"


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Add a line to the summary: bounds and numbers, without which a verdict means little."""
    return lambda line: record_property(EXPLORED, line)


@pytest.fixture(scope="module")
def database(postgres_server: Any) -> Iterator[Any]:
    """Ways to a database with marks, leases and a table of effects."""
    import places

    dsn = postgres_server.create_database()
    role, password = f"sweep_{secrets.token_hex(6)}", secrets.token_hex(16)
    with psycopg.connect(dsn, autocommit=True) as conn:
        # Most of a login's time goes into the 4,096 rounds that a password is hashed for, and there are some
        # hundred logins.
        if conn.info.server_version >= 160000:
            conn.execute("set scram_iterations = 1")
        conn.execute(f"create role {role} superuser login password '{password}'")
    parts = urlsplit(dsn)
    dsn = parts._replace(netloc=f"{role}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
    with places.direct(dsn) as direct:
        places.Postgres(direct).install()
        places.Store(direct).install()
        yield direct
    postgres_server.drop_database(dsn)
    with psycopg.connect(postgres_server.dsn, autocommit=True) as conn:
        conn.execute(f"drop role {role}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports: they are what comes back from tests in another process.
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == EXPLORED
    ]
    if lines:
        terminalreporter.section("what was explored")
        for line in lines:
            terminalreporter.write_line(line)
