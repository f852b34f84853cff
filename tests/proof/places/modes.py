"""The other ways to write to PostgreSQL that keep a stale owner out, each a place of its own."""

from __future__ import annotations

from abc import abstractmethod

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import sessionmaker
from sweep import Diary, Effect

from places.addresses import by_way_of
from places.postgres import BY_NAME, Alchemy, engine_for, named
from sinkfence.tokens import Token
from sinkfence_postgres import (
    PostgresSink,
    bind,
    fenced_execute,
    guard,
    once,
    protect,
    transaction,
    translated,
)

DOC = sa.Table(
    "doc",
    sa.MetaData(),
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text),
    sa.Column("id", sa.Text),
    sa.Column("generation", sa.BigInteger),
)


class Mode(Alchemy):
    """A way to write through SQLAlchemy; a successor's is the same, past the proxy."""

    evicts = False
    """Whether a successor ends the sessions that keep it waiting."""

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        if address == self.upstream:
            self.at_work(self.direct.engine, token, diary, evict=self.evicts)
            return
        with engine_for(by_way_of(self.direct.dsn, address)) as engine:
            self.at_work(engine, token, diary, *self.lost)

    def at_work(
        self, engine: sa.Engine, token: Token, diary: Diary, *lost: type[Exception], evict: bool = False
    ) -> None:
        """One tenure."""

        def arm() -> None:
            with diary.arming(token):
                PostgresSink(engine).arm(token, evict=evict)

        def write() -> None:
            with diary.writing(token, *lost) as attempt:
                self.by(engine, token, attempt, diary.step)

        diary.answered(arm, *lost)
        diary.answered(write, *lost)

    @abstractmethod
    def by(self, engine: sa.Engine, token: Token, attempt: str, step: str | None) -> None:
        """Write one effect."""


class Locked(Mode):
    """guard(lock=True), and a commit of one's own."""

    evicts = True

    def by(self, engine: sa.Engine, token: Token, attempt: str, step: str | None) -> None:
        with engine.connect() as conn:
            guard(conn, token, lock=True)
            conn.execute(BY_NAME, named(token, attempt, step))
            with translated():
                conn.commit()


class Once(Mode):
    """`once`: a repetition is told from a new write by the ledger alone, the table doesn't know of steps."""

    def by(self, engine: sa.Engine, token: Token, attempt: str, step: str | None) -> None:
        with engine.connect() as conn, transaction(conn, token):

            def call() -> None:
                conn.execute(BY_NAME, named(token, attempt, None))

            once(conn, token, step or attempt, call)


class Bound(Mode):
    """A sessionmaker that is bound to the owner: every transaction of its sessions is guarded."""

    def by(self, engine: sa.Engine, token: Token, attempt: str, step: str | None) -> None:
        with bind(sessionmaker(engine), token).begin() as session:
            session.execute(BY_NAME, named(token, attempt, step))


class Protected(Mode):
    """A table that refuses who has no guard."""

    def install(self) -> None:
        self.direct.observer.execute("create table guarded (like effect including all)")
        protect(self.direct.observer, "guarded", job_id="job")

    def by(self, engine: sa.Engine, token: Token, attempt: str, step: str | None) -> None:
        into = sa.text(BY_NAME.text.replace("effect", "guarded"))
        with engine.connect() as conn, transaction(conn, token):
            conn.execute(into, named(token, attempt, step))

    def truth(self, job: str) -> list[Effect]:
        query = "select generation, owner, id from guarded where job = %s order by seq"
        return [Effect(*found) for found in self.direct.observer.execute(query, (job,))]


class Row(Mode):
    """fenced_execute on a row that keeps its generation: no mark, nothing to arm, one statement."""

    def install(self) -> None:
        DOC.create(self.direct.engine)

    def at_work(
        self, engine: sa.Engine, token: Token, diary: Diary, *lost: type[Exception], evict: bool = False
    ) -> None:
        def write() -> None:
            with diary.writing(token, *lost) as attempt:
                self.by(engine, token, attempt, diary.step)

        diary.answered(write, *lost)

    def by(self, engine: sa.Engine, token: Token, attempt: str, step: str | None) -> None:
        new = {"owner": token.owner, "id": attempt}
        upsert = (
            insert(DOC)
            .values(job=token.job_id, **new)
            .on_conflict_do_update(index_elements=["job"], set_=new)
        )
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            fenced_execute(conn, upsert, token)

    def truth(self, job: str) -> list[Effect]:
        query = "select generation, owner, id from doc where job = %s"
        return [Effect(*found) for found in self.direct.observer.execute(query, (job,))]
