"""The lease store itself, where completing the job is the effect; and the same with completions by hand."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sweep import Diary, Effect

from places.addresses import alchemy, by_way_of, upstream_of
from places.direct import Direct
from sinkfence.errors import JobCompleted, LeaseLost
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql.sessions import begin
from sinkfence.tokens import Token

MINUTE = 60.0


def engine_for(dsn: str) -> sa.Engine:
    """An engine whose connections begin with the same messages as those of a store."""
    engine = sa.create_engine(alchemy(dsn), isolation_level="AUTOCOMMIT")
    sa.event.listen(engine, "connect", begin)
    return engine


@dataclass
class Store:
    """Acquire, renew, complete. What gets no answer is sent again by the store itself."""

    direct: Direct

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.direct.dsn)

    def install(self) -> None:
        """Make the table."""
        self.direct.store.create_schema()

    def greet(self, address: tuple[str, int]) -> None:
        engine = engine_for(by_way_of(self.direct.dsn, address))
        with engine.connect():
            pass
        engine.dispose()

    def before(self, token: Token, diary: Diary) -> None:
        """Return when the first owner's lease has run out by the store's clock, if there is one."""
        query = (
            "select pg_sleep_until(lease_until) from sinkfence_lease where job_id = %s and owner is not null"
        )
        self.direct.observer.execute(query, (token.job_id,))

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        dsn = by_way_of(self.direct.dsn, address)
        if address == self.upstream:
            self.work(dsn, self.direct.store, token, diary)
            return
        with closing(SqlStore(alchemy(dsn))) as store:
            self.work(dsn, store, token, diary)

    def work(self, dsn: str, store: SqlStore, token: Token, diary: Diary) -> None:
        ttl = diary.ttl if token.generation == 1 else MINUTE
        try:
            grant = store.acquire(token.job_id, token.owner, ttl)
        except JobCompleted:
            if token.generation == 1:
                diary.told.append("JobCompleted")
            return  # the other one has done it
        mine, end = grant.token, grant.lease_until.timestamp()
        diary.add("acquire", "ok", mine, now=end - ttl, until=end, ttl=ttl)
        end = store.renew(mine, ttl).timestamp()
        diary.add("renew", "ok", mine, now=end - ttl, until=end, ttl=ttl)
        with diary.writing(mine) as attempt:
            self.complete(dsn, store, mine, json.dumps({"id": attempt}))
        diary.add("complete", "ok", mine, now=self.now())

    def complete(self, dsn: str, store: SqlStore, token: Token, result: str) -> None:
        store.complete(token, result)

    def now(self) -> float:
        """The store's clock."""
        found = self.direct.observer.execute(
            "select extract(epoch from clock_timestamp())::float8"
        ).fetchone()
        assert found is not None
        return float(found[0])

    def truth(self, job: str) -> list[Effect]:
        query = "select generation, owner, result from sinkfence_lease where job_id = %s and state = 'done'"
        rows = self.direct.observer.execute(query, (job,))
        return [Effect(generation, owner, _id(result)) for generation, owner, result in rows]


def _id(result: Any) -> str:
    found: str = (json.loads(result) if isinstance(result, str) else result)["id"]
    return found


class Kept(Store):
    """Acquire, renew by a batch as the heartbeat does, renew, release; the successor keeps the job."""

    def __init__(self, direct: Direct) -> None:
        super().__init__(direct)
        self.records: dict[str, tuple[int, str | None, float | None]] = {}

    def work(self, dsn: str, store: SqlStore, token: Token, diary: Diary) -> None:
        ttl = diary.ttl if token.generation == 1 else MINUTE
        grant = store.acquire(token.job_id, token.owner, ttl)
        mine, end = grant.token, grant.lease_until.timestamp()
        self.told("acquire", diary, mine, end, ttl)
        answer = store.renew_many([(mine, ttl)])
        if mine not in answer.renewed:
            raise LeaseLost(mine, answer.lost.get(mine, "settled"))
        self.told("renew", diary, mine, answer.renewed[mine].timestamp(), ttl)
        self.told("renew", diary, mine, store.renew(mine, ttl).timestamp(), ttl)
        if token.generation == 1:
            since = self.now()  # its answer may be held, and the successor come before it
            try:
                self.release(dsn, store, mine)
            except LeaseLost as lost:
                if lost.earlier_attempt_unknown:  # by its first sending the successor may have been let in
                    diary.add("release", "ok", mine, now=since)
                raise
            diary.add("release", "ok", mine, now=since)
            self.keeps(diary.job, mine.generation, None, None)

    def release(self, dsn: str, store: SqlStore, token: Token) -> None:
        store.release(token)

    def told(self, f: str, diary: Diary, token: Token, end: float, ttl: float) -> None:
        diary.add(f, "ok", token, now=end - ttl, until=end, ttl=ttl)
        self.keeps(diary.job, token.generation, token.owner, end)

    def keeps(self, job: str, generation: int, owner: str | None, end: float | None) -> None:
        """Note what the record must be now, unless a later owner was told something already."""
        if generation >= self.records.get(job, (0, None, None))[0]:
            self.records[job] = generation, owner, end

    def disturbed(self) -> list[str]:
        """The jobs whose record is not what its newest owner was told."""
        query = (
            "select job_id, generation, owner, case when owner is not null "
            "then extract(epoch from lease_until)::float8 end from sinkfence_lease where job_id = any(%s)"
        )
        found = {job: record for job, *record in self.direct.observer.execute(query, (list(self.records),))}
        return [job for job, record in self.records.items() if found[job] != list(record)]

    def truth(self, job: str) -> list[Effect]:
        return []


class ReleasedByAnybody(Kept):
    """A release does not ask who holds the job."""

    def release(self, dsn: str, store: SqlStore, token: Token) -> None:
        engine = engine_for(dsn)
        with suppress(sa.exc.OperationalError), engine.connect() as conn:
            statement = (
                "update sinkfence_lease set owner = null, lease_until = '-infinity' where job_id = :job"
            )
            conn.execute(sa.text(statement), {"job": token.job_id})
        engine.dispose()


class CompletedByAnybody(Store):
    """Completion does not ask who holds the job."""

    mine = "job_id = :job_id"

    def complete(self, dsn: str, store: SqlStore, token: Token, result: str) -> None:
        statement = f"update sinkfence_lease set state = 'done', result = :result where {self.mine}"
        params = {**dataclasses.asdict(token), "result": result}
        engine = engine_for(dsn)
        try:
            for _ in range(2):  # once more, where the connection was lost
                with suppress(sa.exc.OperationalError), engine.connect() as conn:
                    if conn.execute(sa.text(statement), params).rowcount:
                        return
            raise LeaseLost(token, "the record says that it is not open")
        finally:
            engine.dispose()


class NotDoneTwice(CompletedByAnybody):
    """Only its owner completes an open job, but does not know its own completion when it comes again."""

    mine = "job_id = :job_id and generation = :generation and owner = :owner and state = 'open'"
