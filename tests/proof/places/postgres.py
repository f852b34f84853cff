"""A table whose transactions are guarded, through each client; and the same without what keeps it right."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from sweep import Diary, Effect

import sinkfence_postgres
from places.addresses import alchemy, by_way_of, upstream_of
from places.direct import Direct
from sinkfence.errors import OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_postgres import PostgresSink, aio, transaction

TABLE = (
    "create table effect (seq bigserial, job text, generation bigint, owner text, id text, step text, "
    "unique (job, step))"
)
INSERT = (
    "insert into effect (job, generation, owner, id, step) values (%s, %s, %s, %s, %s) "
    "on conflict (job, step) do nothing"
)
BY_NAME = sa.text(
    "insert into effect (job, generation, owner, id, step) values (:job, :generation, :owner, :id, :step) "
    "on conflict (job, step) do nothing"
)


def row(token: Token, attempt: str, step: str | None) -> tuple[Any, ...]:
    """One effect, as INSERT takes it."""
    return token.job_id, token.generation, token.owner, attempt, step


def named(token: Token, attempt: str, step: str | None) -> dict[str, Any]:
    """One effect, as BY_NAME takes it."""
    names = ("job", "generation", "owner", "id", "step")
    return dict(zip(names, row(token, attempt, step), strict=True))


@contextmanager
def engine_for(dsn: str) -> Generator[sa.Engine]:
    """An engine for one tenure."""
    engine = sa.create_engine(alchemy(dsn))
    try:
        yield engine
    finally:
        engine.dispose()


def work(engine: sa.Engine, token: Token, diary: Diary, *lost: type[Exception]) -> None:
    """One tenure through SQLAlchemy."""

    def arm() -> None:
        with diary.arming(token):
            PostgresSink(engine).arm(token)

    def write() -> None:
        with diary.writing(token, *lost) as attempt, engine.connect() as conn, transaction(conn, token):
            conn.execute(BY_NAME, named(token, attempt, diary.step))

    diary.answered(arm, *lost)
    diary.answered(write, *lost)


@dataclass
class Postgres:
    """Through psycopg: a connection for each call."""

    direct: Direct
    lost = (psycopg.OperationalError,)
    """By what the client says that its connection was lost before anything was done."""

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.direct.dsn)

    def install(self) -> None:
        """Make the marks and the table."""
        sinkfence_postgres.install(self.direct.observer)
        self.direct.observer.execute(TABLE)

    def greet(self, address: tuple[str, int]) -> None:
        psycopg.connect(by_way_of(self.direct.dsn, address)).close()

    def before(self, token: Token, diary: Diary) -> None:
        diary.issued(token)

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        if address == self.upstream:
            work(self.direct.engine, token, diary)
        else:
            self.work(by_way_of(self.direct.dsn, address), token, diary)

    def work(self, dsn: str, token: Token, diary: Diary) -> None:
        def arm() -> None:
            with diary.arming(token):
                PostgresSink(dsn).arm(token)

        def write() -> None:
            with diary.writing(token, *self.lost) as attempt, psycopg.connect(dsn) as conn:
                self.write(conn, token, attempt, diary.step)

        diary.answered(arm, *self.lost)
        diary.answered(write, *self.lost)

    def write(self, conn: psycopg.Connection[Any], token: Token, attempt: str, step: str | None) -> None:
        with transaction(conn, token):
            conn.execute(INSERT, row(token, attempt, step))

    def truth(self, job: str) -> list[Effect]:
        query = "select generation, owner, id from effect where job = %s order by seq"
        return [Effect(*found) for found in self.direct.observer.execute(query, (job,))]


class Alchemy(Postgres):
    """Through SQLAlchemy: an engine for the tenure, with its pool."""

    lost = (sa.exc.OperationalError,)

    def greet(self, address: tuple[str, int]) -> None:
        with engine_for(by_way_of(self.direct.dsn, address)) as engine, engine.connect():
            pass

    def work(self, dsn: str, token: Token, diary: Diary) -> None:
        with engine_for(dsn) as engine:
            work(engine, token, diary, *self.lost)


class Asynchronous(Postgres):
    """Through psycopg's AsyncConnection: an event loop and a connection for each call."""

    def work(self, dsn: str, token: Token, diary: Diary) -> None:
        async def arm() -> None:
            with diary.arming(token):
                await aio.PostgresSink(dsn).arm(token)

        async def write() -> None:
            with diary.writing(token, *self.lost) as attempt:
                async with await psycopg.AsyncConnection.connect(dsn) as conn:
                    async with aio.transaction(conn, token):
                        await conn.execute(INSERT, row(token, attempt, diary.step))

        diary.answered(lambda: asyncio.run(arm()), *self.lost)
        diary.answered(lambda: asyncio.run(write()), *self.lost)


class SelectCompareWrite(Postgres):
    """With the check that suggests itself: read the mark, compare, write."""

    def write(self, conn: psycopg.Connection[Any], token: Token, attempt: str, step: str | None) -> None:
        with conn.transaction():
            query = "select max_generation from sinkfence.mark where job_id = %s"
            [highest] = conn.execute(query, (token.job_id,)).fetchone() or [0]
            if token.generation < highest:
                raise StaleToken(token, highest)
            conn.execute(INSERT, row(token, attempt, step))


class WithoutKey(Postgres):
    """A repetition is not told from a new write."""

    def write(self, conn: psycopg.Connection[Any], token: Token, attempt: str, step: str | None) -> None:
        super().write(conn, token, attempt, None)


class TakenForFailure(Postgres):
    """What became of a COMMIT is not known, and is taken to have failed."""

    lost = (psycopg.OperationalError, OutcomeUnknown)


class TakenForSuccess(Postgres):
    """What became of a COMMIT is not known, and is taken to have worked."""

    def write(self, conn: psycopg.Connection[Any], token: Token, attempt: str, step: str | None) -> None:
        with suppress(OutcomeUnknown):
            super().write(conn, token, attempt, step)
