"""Who can act as the owner of the marks, on a server whose roles were not made by a superuser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from sinkfence.errors import SchemaMismatch, StaleToken
from sinkfence_postgres import PostgresSink, install, transaction
from sinkfence_trials.servers.postgres import postgres

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A server of its own: roles belong to the whole of it."""
    with postgres() as server:
        yield server


@pytest.fixture
def admin(cluster) -> Iterator[psycopg.Connection[Any]]:
    """A superuser, where sinkfence has not been yet, and two roles that may create roles."""
    with psycopg.connect(cluster.dsn, autocommit=True) as conn:
        conn.execute("create role one login createrole password 'pw'")
        conn.execute("create role two login createrole password 'pw'")
        for role in ("one", "two"):
            conn.execute(f"create database of_{role} owner {role} template template0 encoding 'UTF8'")
        yield conn
        for role in ("one", "two"):
            conn.execute(f"drop database of_{role} with (force)")
        for role in ("sinkfence_owner", "sinkfence_writer", "one", "two"):
            conn.execute(f"drop role if exists {role}")


def login(cluster: Any, database: str, role: str | None = None) -> str:
    """The dsn of a database, for a superuser or a role."""
    parts = urlsplit(cluster.dsn)
    netloc = parts.netloc if role is None else f"{role}:pw@{parts.netloc.rpartition('@')[2]}"
    return parts._replace(netloc=netloc, path=f"/{database}").geturl()


def installed(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        install(conn)


def test_an_ordinary_installer_does_not_stay_a_member(cluster, admin, token):
    """Who installs in its own database acts as the owner of the marks while it does, and not afterwards."""
    dsn = login(cluster, "of_one", "one")
    installed(dsn)
    installed(dsn)
    with psycopg.connect(dsn) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("set role sinkfence_owner")
    with psycopg.connect(dsn) as conn:
        conn.execute("grant sinkfence_writer to one")
    PostgresSink(dsn).arm(token())


def test_a_second_installer_is_told_what_it_lacks(cluster, admin):
    """Where the roles exist, another that may create roles gets one line that says who can help."""
    installed(login(cluster, "of_one"))
    admin.execute("alter role two nocreaterole")
    with pytest.raises(SchemaMismatch, match="let a superuser do it"):
        installed(login(cluster, "of_two", "two"))
    admin.execute("grant sinkfence_owner to two")
    installed(login(cluster, "of_two", "two"))


def test_a_second_installer_where_the_first_has_made_the_roles(cluster, admin):
    """By the recipe of docs/security.md: from the first it is taken, to who installs it is lent."""
    recipe = (
        (ROOT / "docs" / "security.md")
        .read_text()
        .partition("\nREVOKE sinkfence_owner")[2]
        .partition("```")[0]
    )
    take, lend, _, take_back = f"REVOKE sinkfence_owner{recipe}".replace(
        "other_deployment", "two"
    ).splitlines()
    installed(login(cluster, "of_one", "one"))
    if admin.info.server_version >= 160000:  # the first is a member, as it has created the role
        with pytest.raises(SchemaMismatch, match=r"open to one, .* REVOKE sinkfence_owner FROM one CASCADE"):
            installed(login(cluster, "of_two"))  # by a superuser
    admin.execute(lend)
    if admin.info.server_version >= 160000:
        with pytest.raises(SchemaMismatch, match="open to one"):
            installed(login(cluster, "of_two", "two"))
    admin.execute(take.replace("deployment", "one"))
    installed(login(cluster, "of_two", "two"))
    admin.execute(take_back)
    if admin.info.server_version >= 160000:  # before, who may create roles lends itself any role
        for role in ("one", "two"):
            with pytest.raises(SchemaMismatch, match="let a superuser do it"):
                installed(login(cluster, f"of_{role}", role))


@pytest.mark.parametrize("planted", ["member", "member with a schema", "login"])
def test_an_owner_role_that_somebody_else_can_use_is_refused(cluster, admin, planted):
    """Created beforehand by who may create roles: not installed before what the message says is run."""
    with psycopg.connect(login(cluster, "of_two", "two"), autocommit=True) as conn:
        conn.execute(f"create role sinkfence_owner {'login' if planted == 'login' else 'nologin'}")
        if planted != "login":
            conn.execute("grant sinkfence_owner to two")
        if "schema" in planted:
            conn.execute("create schema sinkfence authorization sinkfence_owner")
    told = []
    for _ in range(2):  # from PostgreSQL 16 on who has created a role is its member, too
        try:
            installed(login(cluster, "of_two"))
        except SchemaMismatch as error:
            told.append(str(error))
            admin.execute(re.search("run ([A-Z]+ .+?)(, and|$)", told[-1])[1])
    assert ("can log in" in told[0]) == (planted == "login")
    assert ("open to two" in told[-1]) == (planted != "login" or admin.info.server_version >= 160000)
    installed(login(cluster, "of_two"))


@pytest.mark.parametrize("kind", ["tables", "functions", "schemas"])
def test_an_owner_role_whose_things_are_others_from_the_beginning_is_refused(cluster, admin, kind):
    """Default privileges outlive the membership of who has planted them: they must be taken back."""
    admin.execute("create role sinkfence_owner nologin")
    change = "alter default privileges for role sinkfence_owner"
    with psycopg.connect(login(cluster, "of_two"), autocommit=True) as conn:
        conn.execute(f"{change} grant all on {kind} to two")
        with pytest.raises(SchemaMismatch, match="default privileges"):
            install(conn)
        conn.execute(f"{change} revoke all on {kind} from two")
        install(conn)


def test_a_transaction_may_go_on_as_a_role_that_knows_nothing_of_sinkfence(own_db, token):
    """SET LOCAL ROLE, as row security is used: the commit is confirmed and checked all the same."""
    tenant = f"tenant_{token().job_id.encode().hex()[:20]}"
    own_db.admin.execute(f"create role {tenant}; grant insert on entry to {tenant}")
    own_db.admin.execute(f"grant usage on all sequences in schema public to {tenant}")
    try:
        own_db.arm(token())
        with own_db.connect() as conn, transaction(conn, token()):
            conn.execute(f"set local role {tenant}")
            conn.execute("insert into entry (note) values ('by a tenant')")
        own_db.arm(token(1))
        with own_db.connect() as conn, pytest.raises(StaleToken), transaction(conn, token()):
            raise AssertionError
        with own_db.connect() as conn, pytest.raises(StaleToken), transaction(conn, token(1)):
            conn.execute(f"set local role {tenant}")
            conn.execute("insert into entry (note) values ('late')")
            own_db.arm(token(2))
        assert own_db.notes() == ["by a tenant"]
    finally:
        own_db.admin.execute(f"drop owned by {tenant}; drop role {tenant}")
