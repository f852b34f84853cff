"""Leases and the Postgres sink as an application has them: a plain role with the grants of the pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from sinkfence import JobCompleted, Leases, SchemaMismatch
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink, install, transaction

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
GRANTS = re.findall(r"^GRANT .+ TO your_application;$", SECURITY.read_text(), re.MULTILINE)


@pytest.fixture
def login(dsn: str) -> Iterator[str]:
    """The libpq URI of a role that has what the page on security grants, and nothing else."""
    server = urlsplit(dsn)
    name = f"app_{server.path[-8:]}"
    store = SqlStore(dsn)
    store.create_schema()
    store.close()
    with psycopg.connect(dsn, autocommit=True) as admin:
        install(admin)
        admin.execute("CREATE TABLE entry (text text)")
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        admin.execute(f"GRANT INSERT ON entry TO {name}")
        for grant in GRANTS:
            admin.execute(grant.replace("your_application", name))
        yield server._replace(netloc=f"{name}:secret@{server.netloc.rpartition('@')[2]}").geturl()
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")


def test_the_granted_role_can_do_all_that_leases_and_the_fence_take(login: str) -> None:
    """A turn with a guarded write, every call of the store, and an operator's calls need no other grant."""
    ledger = PostgresSink(login)
    with Leases(SqlStore(login), ttl=30) as leases:
        with leases.hold("reports/latest", arm=[ledger]) as lease:
            with psycopg.connect(login) as conn, transaction(conn, lease):
                conn.execute("INSERT INTO entry VALUES ('x')")
            lease.complete({"rows": 1})
        with pytest.raises(JobCompleted), leases.hold("reports/latest"):
            pass
        leases.reopen("reports/latest")
        leases.raise_above("reports/latest", 1234)
        assert [record.generation for record in leases.list()] == [1234]
    store = SqlStore(login)
    token = store.acquire("reports/latest", "worker-a:1f0c", 30).token
    store.renew(token, 30)
    again = store.reacquire_above(token, 2000, "worker-a:99ab", 30)
    assert again is not None
    assert store.renew_many([(again.token, 30)]).renewed
    store.release(again.token)
    store.close()


def test_the_granted_role_can_neither_delete_a_record_nor_read_a_mark(login: str) -> None:
    """What the page does not grant is not needed, and is refused."""
    for statement in (
        "DELETE FROM sinkfence_lease",
        "TRUNCATE sinkfence_lease",
        "UPDATE sinkfence_schema SET version = 2",
        "SELECT * FROM sinkfence.mark",
    ):
        with psycopg.connect(login) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement)


@pytest.mark.parametrize("table", ["sinkfence_lease", "sinkfence_schema"])
def test_a_role_that_lacks_a_grant_is_told_which(dsn: str, login: str, table: str) -> None:
    """Nothing is acquired, and the error has the statements to run."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"REVOKE ALL ON {table} FROM {urlsplit(login).username}")
    store = SqlStore(login)
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match=f"{table}.*GRANT SELECT, INSERT, UPDATE ON sinkfence_lease"):
            store.acquire("reports/latest", "worker-a:1f0c", 30)
    store.close()
