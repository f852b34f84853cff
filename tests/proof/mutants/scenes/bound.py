"""Scenes in the sessions and engines that are bound to a bearer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from mutants.scenes import Ground, Scene
from mutants.scenes.tables import Table
from sinkfence.errors import LeaseLost, NotEnforced
from sinkfence.tokens import Token
from sinkfence_postgres import bind

BY_NAME = sa.text("insert into effect (job, generation, owner, id) values (:job, :generation, :owner, :id)")


def late(ground: Ground) -> Scene:
    """A session bound to A is stopped in mid-transaction; B arms and works; A commits."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    engine = sa.create_engine(table.dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    with scene.late(a) as attempt, bind(sessionmaker(engine), a).begin() as session:
        session.execute(BY_NAME, named(a, attempt))
        with scene.arming(b):
            table.sink.arm(b)
        with scene.rightful(b) as other:
            table.write(b, other)
    engine.dispose()
    return scene


def over(ground: Ground) -> Scene:
    """A session is bound to a lease whose term is over, B has armed; A tries again."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    engine = sa.create_engine(table.dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    tried_again(table, a, bind(sessionmaker(engine), Over(a)))
    engine.dispose()
    return scene


def autocommit(ground: Ground) -> Scene:
    """An engine in autocommit is bound to A, B has armed; A tries again."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    engine = sa.create_engine(
        table.dsn.replace("postgresql:", "postgresql+psycopg:", 1), isolation_level="AUTOCOMMIT"
    )
    tried_again(table, a, bind(engine, a).connect)
    engine.dispose()
    return scene


def ended(ground: Ground) -> Scene:
    """The transaction of a session bound to A is committed by its connection; B arms; A writes on."""
    table = Table(ground)
    scene, a, b = table.scene, table.first_tenure(), table.scene.issued(2, "B")
    engine = sa.create_engine(table.dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    with scene.late(a, also=(NotEnforced,)) as attempt, bind(sessionmaker(engine), a)() as session:
        session.execute(sa.text("select 1"))
        session.connection().commit()
        with scene.arming(b):
            table.sink.arm(b)
        session.execute(BY_NAME, named(a, attempt))
        session.connection().commit()
    engine.dispose()
    return scene


def replaced(ground: Ground) -> Scene:
    """The transaction of a session bound to A is rolled back by its driver; B arms; A writes by that."""
    table = Table(ground)
    scene, a, b = table.scene, table.first_tenure(), table.scene.issued(2, "B")
    engine = sa.create_engine(table.dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    with scene.late(a, also=(NotEnforced,)) as attempt, bind(sessionmaker(engine), a)() as session:
        session.execute(sa.text("select 1"))
        driver: Any = session.connection().connection.dbapi_connection
        driver.rollback()
        with scene.arming(b):
            table.sink.arm(b)
        insert = "insert into effect (job, generation, owner, id) values (%s, %s, %s, %s)"
        driver.execute(insert, (a.job_id, a.generation, a.owner, attempt))
        session.commit()
    engine.dispose()
    return scene


def undone(ground: Ground) -> Scene:
    """A session bound to A begins in a savepoint, which is rolled back; B arms; A writes on."""
    table = Table(ground)
    scene, a, b = table.scene, table.first_tenure(), table.scene.issued(2, "B")
    engine = sa.create_engine(table.dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    with scene.late(a, also=(NotEnforced,)) as attempt, engine.begin() as conn:
        savepoint = conn.begin_nested()
        with bind(sessionmaker(conn, join_transaction_mode="rollback_only"), a)() as session:
            session.execute(sa.text("select 1"))
            savepoint.rollback()
            with scene.arming(b):
                table.sink.arm(b)
            session.execute(BY_NAME, named(a, attempt))
            session.commit()
    engine.dispose()
    return scene


def reset(ground: Ground) -> Scene:
    """A listener fails at the BEGIN of an engine bound to A, whose pool commits; B has armed."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    engine = sa.create_engine(
        table.dsn.replace("postgresql:", "postgresql+psycopg:", 1), pool_reset_on_return="commit"
    )

    def failing(conn: sa.Connection) -> None:
        raise NotEnforced

    sa.event.listen(engine, "begin", failing)
    tried_again(table, a, bind(engine, a).connect)
    engine.dispose()
    return scene


class Over:
    """A lease whose term is over."""

    def __init__(self, token: Token) -> None:
        self._token = token

    @property
    def token(self) -> Token:
        raise LeaseLost(self._token, "its term is over")

    def lose(self, reason: Exception) -> None:
        pass


def tried_again(table: Table, a: Token, begin: Callable[[], Any]) -> None:
    """After B has armed, write twice in what A is bound to, whatever is said to the first, and commit."""
    scene, b = table.scene, table.scene.issued(2, "B")
    with scene.arming(b):
        table.sink.arm(b)
    with scene.late(a, also=(sa.exc.InvalidRequestError,)) as attempt, begin() as tx:
        with suppress(LeaseLost, NotEnforced):
            tx.execute(BY_NAME, named(a, attempt))
        tx.execute(BY_NAME, named(a, attempt))
        tx.commit()


def named(a: Token, attempt: str) -> dict[str, Any]:
    """Return the parameters of a write."""
    return {"job": a.job_id, "generation": a.generation, "owner": a.owner, "id": attempt}
