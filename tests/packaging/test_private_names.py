"""The private names of others that the library uses: each is there, and means what it is taken for.

Where one of these fails, the dependency has dropped or changed it, and so must what uses it.
"""

from __future__ import annotations

import asyncio
import io
from typing import Any

import asyncpg
import psycopg
import pytest
import requests
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

TABLE = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("n", sa.Integer))
OTHER = sa.Table("u", sa.MetaData(), sa.Column("id", sa.Integer))


@pytest.fixture
def conn(postgres_server: Any) -> Any:
    """A connection of psycopg."""
    with psycopg.connect(postgres_server.dsn) as conn:
        yield conn


def test_psycopg_counts_what_it_prepares(conn: psycopg.Connection) -> None:
    """`_prepared._prepared_idx` is a part of a statement's name: set, it tells two clients' names apart."""
    conn._prepared._prepared_idx = 123456789
    conn.execute("select 1", prepare=True)
    (name,) = conn.execute("select name from pg_prepared_statements", prepare=False).fetchone()
    assert "123456789" in name


def test_psycopg_knows_that_it_will_prepare_the_transaction(conn: psycopg.Connection) -> None:
    """`_tpc` is set between `tpc_begin` and its end, and then alone."""
    assert not conn._tpc
    conn.tpc_begin("sinkfence")
    assert conn._tpc
    conn.tpc_rollback()
    assert not conn._tpc


def test_asyncpg_leads_to_its_socket(postgres_server: Any) -> None:
    """`_transport` is asyncio's, of the connection to the server."""

    async def socket_of() -> int:
        conn = await asyncpg.connect(postgres_server.dsn)
        try:
            return conn._transport.get_extra_info("socket").fileno()
        finally:
            await conn.close()

    assert asyncio.run(socket_of()) >= 0


def test_requests_knows_where_a_file_stood() -> None:
    """`_body_position` is a number where the body can be sent again from there, and none for a generator."""
    body = io.BytesIO(b"abcdef")
    body.seek(2)
    assert requests.Request("POST", "http://localhost", data=body).prepare()._body_position == 2
    assert requests.Request("POST", "http://localhost", data=iter([b"a"])).prepare()._body_position is None


def test_sqlalchemy_knows_a_session_s_connections() -> None:
    """`SessionTransaction._connections`: the connection, what it began, and whether it is to commit that."""
    engine = sa.create_engine("sqlite://")
    with Session(engine) as session:
        connection = session.connection()
        values = set(session.get_transaction()._connections.values())
        assert [(conn, root, commits) for conn, root, commits, _ in values] == [
            (connection, connection.get_transaction(), True)
        ]
    engine.dispose()


def test_sqlalchemy_keeps_an_insert_s_values_in_two_ways() -> None:
    """`_multi_values` where there are several rows, `_values` where there is one; `_generate` copies."""
    rows = [{"id": 1}, {"id": 2}]
    many = insert(TABLE).values(rows)
    assert many._multi_values == (rows,)
    assert many._generate() is not many
    one = insert(TABLE).values(id=1)
    assert (one._multi_values, list(one._values)) == ((), ["id"])


def test_sqlalchemy_keeps_what_an_insert_does_about_a_conflict() -> None:
    """`_post_values_clause` has that, and is put into the statement when it is replaced."""
    statement = insert(TABLE).values(id=1).on_conflict_do_update(index_elements=["id"], set_={"n": 2})
    other = insert(TABLE).values(id=1).on_conflict_do_update(index_elements=["id"], set_={"n": 3})
    assert list(dict(statement._post_values_clause.update_values_to_set)) == ["n"]
    statement._post_values_clause = other._post_values_clause
    assert statement.compile().params == other.compile().params


def test_sqlalchemy_tells_which_tables_a_delete_uses() -> None:
    """`_extra_froms`, in the versions that have DELETE USING."""
    if hasattr(sa.delete(TABLE), "using"):
        assert sa.delete(TABLE).using(OTHER)._extra_froms == (OTHER,)
