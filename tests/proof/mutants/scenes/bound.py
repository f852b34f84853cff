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
        session.execute(
            BY_NAME, {"job": a.job_id, "generation": a.generation, "owner": a.owner, "id": attempt}
        )
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
        values = {"job": a.job_id, "generation": a.generation, "owner": a.owner, "id": attempt}
        with suppress(LeaseLost, NotEnforced):
            tx.execute(BY_NAME, values)
        tx.execute(BY_NAME, values)
        tx.commit()
