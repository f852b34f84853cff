"""Scenes in the other ways to write to PostgreSQL."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from mutants.scenes import Effect, Ground, Scene, begun
from mutants.scenes.databases import admin, blocked_or_done, one
from mutants.scenes.tables import Table
from sinkfence.errors import IdempotencyMismatch, JobMismatch, MissingToken, NotEnforced
from sinkfence.tokens import Token
from sinkfence_postgres import fenced_execute, once, protect, transaction, translated

DOC = sa.Table(
    "doc",
    sa.MetaData(),
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text),
    sa.Column("id", sa.Text),
    sa.Column("deleted_at", sa.TIMESTAMP(timezone=True)),
    sa.Column("generation", sa.BigInteger),
)


class Protected(Table):
    """A table of effects that refuses whoever comes."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        with psycopg.connect(self.dsn) as conn:
            protect(conn, "effect", job_id="job")


def unguarded(ground: Ground) -> Scene:
    """A late worker that knows nothing of guards writes to a protected table."""
    table = Protected(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with scene.arming(b):
        table.sink.arm(b)
    with scene.rightful(b) as attempt:
        table.write(b, attempt)
    with scene.late(a, also=(MissingToken,)) as attempt, psycopg.connect(table.dsn) as conn, translated():
        table.insert(conn, a, attempt)
    return scene


def replaced(ground: Ground) -> Scene:
    """A protected table's triggers are replaced by some that never ask, and it is protected again."""
    table = Protected(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with psycopg.connect(table.dsn) as conn:
        for name, when in (
            ("statement", "before insert or update or delete on effect for each statement"),
            ("insert", "after insert on effect for each row"),
        ):
            conn.execute(
                f"create or replace trigger sinkfence_{name} {when} when (false)"
                " execute function sinkfence.refuse_write('job')"
            )
        protect(conn, "effect", job_id="job")
    with scene.arming(b):
        table.sink.arm(b)
    with scene.late(a, also=(MissingToken,)) as attempt, psycopg.connect(table.dsn) as conn, translated():
        table.insert(conn, a, attempt)
    return scene


def other_job(ground: Ground) -> Scene:
    """Who is guarded for another job writes a row of this one."""
    table = Protected(ground)
    scene, a = table.scene, table.first_tenure()
    other = Token("another job", a.generation, "C:1")
    table.sink.arm(other)
    stranger = Token(a.job_id, other.generation, other.owner)
    with scene.late(stranger, also=(JobMismatch,)) as attempt, psycopg.connect(table.dsn) as conn:
        with transaction(conn, other):
            table.insert(conn, stranger, attempt)
    return scene


def guarded_before(ground: Ground) -> Scene:
    """A session writes after its guarded transaction has ended, with what that one has left in it."""
    table = Protected(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with psycopg.connect(table.dsn, autocommit=True) as conn:
        with transaction(conn, a):
            held = one(conn, "select current_setting('sinkfence.held')")
        conn.execute("select set_config('sinkfence.held', %s, false)", (held,))
        with scene.arming(b):
            table.sink.arm(b)
        with scene.late(a, also=(MissingToken,)) as attempt, translated():
            table.insert(conn, a, attempt)
    return scene


def step(table: Table, token: Token, attempt: str) -> None:
    """Do the one step of the job."""
    with psycopg.connect(table.dsn) as conn, transaction(conn, token):
        once(conn, token, "step", lambda: table.insert(conn, token, attempt))


def repeated(ground: Ground) -> Scene:
    """A does a step; B, its successor, comes to the same step."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    with scene.rightful(a, "step") as attempt:
        step(table, a, attempt)
    b = scene.issued(2, "B")
    with scene.arming(b):
        table.sink.arm(b)
    with scene.rightful(b, "step") as attempt:
        step(table, b, attempt)
    return scene


def spelled(ground: Ground) -> Scene:
    """A names its job by a member of an Enum, and does a step; B, its successor, names it by a str."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    job = Enum("Job", {"IT": a.job_id}, type=str)["IT"]
    with scene.rightful(a, "step") as attempt:
        step(table, Token(job, a.generation, a.owner), attempt)
    b = scene.issued(2, "B")
    with scene.arming(b):
        table.sink.arm(b)
    with scene.rightful(b, "step") as attempt:
        step(table, b, attempt)
    return scene


def together(ground: Ground) -> Scene:
    """Two transactions of A come to the same step at once: the second waits for the first's COMMIT."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()

    def second() -> None:
        with scene.rightful(a, "step") as attempt:
            step(table, a, attempt)

    with admin(table.dsn) as eye, scene.rightful(a, "step") as attempt:
        with psycopg.connect(table.dsn) as conn, transaction(conn, a):
            once(conn, a, "step", lambda: table.insert(conn, a, attempt))
            doing = begun(second)
            blocked_or_done(eye, doing)
    doing.result(30)
    scene.look()
    return scene


def failed_step(ground: Ground) -> Scene:
    """A step fails in mid-way, which A's code swallows; then it is tried again."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()

    def fail() -> None:
        raise RuntimeError("in mid-step")

    with psycopg.connect(table.dsn) as conn, transaction(conn, a):
        with suppress(RuntimeError):
            once(conn, a, "step", fail)
    with scene.rightful(a, "step") as attempt:
        step(table, a, attempt)
    return scene


def key_of_another(ground: Ground) -> Scene:
    """The key of A's step is in the ledger, for something else than this step."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    with admin(table.dsn) as conn:
        conn.execute(
            "insert into sinkfence.ledger (scope, key, fingerprint, generation, result)"
            " values (%s, %s, %s, %s, '1')",
            (f"once:{a.job_id}", a.key("step"), "something else", a.generation),
        )
    with suppress(IdempotencyMismatch), scene.writing(a, "step") as attempt:
        step(table, a, attempt)
    return scene


def once_unguarded(ground: Ground) -> Scene:
    """B has armed; A does a step in a transaction that nothing guards."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with scene.arming(b):
        table.sink.arm(b)
    with scene.late(a, "step", also=(NotEnforced,)) as attempt, psycopg.connect(table.dsn) as conn:
        once(conn, a, "step", lambda: table.insert(conn, a, attempt))
    return scene


class Rows(Table):
    """A row that keeps its generation. It shows the last effect, or none when it is deleted."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.engine = sa.create_engine(self.dsn.replace("postgresql:", "postgresql+psycopg:", 1))
        DOC.create(self.engine)

    def truth(self) -> list[Effect]:
        query = "select generation, owner, id from doc where job = %s and deleted_at is null"
        with psycopg.connect(self.dsn) as conn:
            return [Effect(*row) for row in conn.execute(query, (self.scene.job,))]

    def write(self, token: Token, attempt: str) -> None:
        new = {"owner": token.owner, "id": attempt}
        upsert = insert(DOC).values(job=token.job_id, **new)
        with self.engine.begin() as conn:
            fenced_execute(conn, upsert.on_conflict_do_update(index_elements=["job"], set_=new), token)

    def change(self, token: Token, attempt: str) -> int:
        with self.engine.begin() as conn:
            update = sa.update(DOC).where(DOC.c.job == token.job_id)
            return fenced_execute(conn, update.values(owner=token.owner, id=attempt), token)

    def delete(self, token: Token) -> None:
        with self.engine.begin() as conn:
            fenced_execute(conn, sa.delete(DOC).where(DOC.c.job == token.job_id), token)


def rows(ground: Ground) -> Scene:
    """A writes a row twice, B overwrites it, A comes late with an upsert and with an update."""
    table = Rows(ground)
    scene, a = table.scene, table.scene.issued(1, "A")
    for _ in range(2):
        with scene.rightful(a) as attempt:
            table.write(a, attempt)
    b = scene.issued(2, "B")
    with scene.rightful(b) as attempt:
        table.write(b, attempt)
    for write in (table.write, table.change):
        with scene.late(a) as attempt:
            write(a, attempt)
    table.engine.dispose()
    return scene


def deleted_row(ground: Ground) -> Scene:
    """B deletes the row that A has written; A comes late, with an upsert and with an update."""
    table = Rows(ground)
    scene, a = table.scene, table.scene.issued(1, "A")
    with scene.rightful(a) as attempt:
        table.write(a, attempt)
    b = scene.issued(2, "B")
    with scene.rightful(b) as attempt:
        table.write(b, attempt)
    table.delete(b)
    for write in (table.write, table.change):
        with scene.late(a) as attempt:
            write(a, attempt)
    table.engine.dispose()
    return scene
