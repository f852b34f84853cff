"""Scenes in a database that is a destination."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg
from psycopg.errors import SerializationFailure

from mutants.scenes import Ground, Scene, begun
from mutants.scenes.databases import admin, blocked_or_done, killed, one, with_settings
from mutants.scenes.tables import INSERT, Table
from sinkfence.errors import NotEnforced, OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_postgres import PostgresSink, aio, guard, transaction, translated


def takeover(ground: Ground) -> Scene:
    """A is stopped in mid-transaction; B arms and works; A commits, and tries once more."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with scene.late(a) as attempt, psycopg.connect(table.dsn) as conn, transaction(conn, a):
        table.insert(conn, a, attempt)
        with scene.arming(b, "L2"):
            table.sink.arm(b)
        with scene.rightful(b) as other:
            table.write(b, other)
    with scene.late(a) as attempt:
        table.write(a, attempt)
    with scene.rightful(b) as other:
        table.write(b, other)
    return scene


def asynchronous(ground: Ground) -> Scene:
    """The same with an event loop's connection."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")

    async def late(attempt: str) -> None:
        async with await psycopg.AsyncConnection.connect(table.dsn) as conn, aio.transaction(conn, a):
            await conn.execute(INSERT, (a.job_id, a.generation, a.owner, attempt))
            with scene.arming(b):
                await aio.PostgresSink(table.dsn).arm(b)
            with scene.rightful(b) as other:
                table.write(b, other)

    with scene.late(a) as attempt:
        asyncio.run(late(attempt))
    return scene


def old_snapshot(ground: Ground) -> Scene:
    """A reads under REPEATABLE READ, B arms and works, A commits: its snapshot is older than B's mark."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with scene.late(a, also=(SerializationFailure,)) as attempt, psycopg.connect(table.dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with transaction(conn, a):
            table.insert(conn, a, attempt)
            with scene.arming(b):
                table.sink.arm(b)
            with scene.rightful(b) as other:
                table.write(b, other)
    return scene


def commit_behind_arm(ground: Ground) -> Scene:
    """A's COMMIT queues behind B's arming, and goes on once that is done."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with psycopg.connect(table.dsn) as old, psycopg.connect(table.dsn) as new, admin(table.dsn) as eye:
        guard(old, a)

        def commit() -> None:
            with scene.late(a) as attempt, translated():
                table.insert(old, a, attempt)
                old.commit()

        new.execute("select sinkfence.arm(%s, %s, %s)", (b.job_id, b.generation, b.owner))
        committing = begun(commit)
        blocked_or_done(eye, committing)
        scene.look()  # while B's lock keeps A waiting: what comes now comes after the arming
        new.commit()
        scene.armed(b)
        committing.result(30)
    return scene


def arm_behind_commit(ground: Ground) -> Scene:
    """A is in mid-COMMIT, its check passed; B arms."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with psycopg.connect(table.dsn) as old, psycopg.connect(table.dsn) as gate, admin(table.dsn) as eye:
        table.linger(eye)
        gate.execute("select pg_advisory_xact_lock(77)")
        guard(old, a)

        def commit() -> None:
            with scene.writing(a) as attempt, translated():
                table.insert(old, a, attempt)
                old.execute("insert into slow values (1)")
                old.commit()

        committing = begun(commit)
        assert blocked_or_done(eye, committing)
        arming = begun(PostgresSink(table.dsn).arm, b)
        if not blocked_or_done(eye, arming, 2):
            arming.result()
            scene.look()
            scene.armed(b)
        gate.commit()
        committing.result(30)
        arming.result(30)
        scene.look()
        scene.armed(b)
    return scene


def lost_answer(ground: Ground) -> Scene:
    """A's server process is ended in mid-COMMIT."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    with psycopg.connect(table.dsn) as gate, admin(table.dsn) as eye:
        table.linger(eye)
        gate.execute("select pg_advisory_xact_lock(77)")
        process: list[int] = []

        def write() -> None:
            with suppress(OutcomeUnknown), scene.writing(a) as attempt:
                with psycopg.connect(table.dsn) as conn, transaction(conn, a):
                    process.append(conn.info.backend_pid)
                    table.insert(conn, a, attempt)
                    conn.execute("insert into slow values (1)")

        writing = begun(write)
        assert blocked_or_done(eye, writing)
        one(eye, "select pg_terminate_backend(%s)", process[0])
        writing.result(30)
    return scene


def swallowed_error(ground: Ground) -> Scene:
    """A's code swallows an error of the database, and leaves the block as if nothing had been."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    with suppress(psycopg.Error), scene.writing(a) as attempt:
        with psycopg.connect(table.dsn) as conn, transaction(conn, a):
            table.insert(conn, a, attempt)
            with suppress(psycopg.Error):
                conn.execute("select 1 / 0")
    return scene


def replaced(ground: Ground) -> Scene:
    """A's code ends its transaction by itself in mid-block, and goes on; B arms and works."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with scene.late(a, also=(NotEnforced,)) as attempt, psycopg.connect(table.dsn) as conn:
        with transaction(conn, a):
            conn.execute("commit")
            with scene.arming(b):
                table.sink.arm(b)
            with scene.rightful(b) as other:
                table.write(b, other)
            table.insert(conn, a, attempt)
    return scene


def same_number(ground: Ground) -> Scene:
    """A store that went back gives A's number to B as well: of the two only A's counts."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = Token(a.job_id, a.generation, "B:1")
    with suppress(StaleToken):
        table.sink.arm(b)
    with scene.late(b) as attempt:
        table.write(b, attempt)
    return scene


def mark_lowered(ground: Ground) -> Scene:
    """Somebody lowers a mark by hand."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    with admin(table.dsn) as conn:
        with suppress(psycopg.Error):
            conn.execute("update sinkfence.mark set max_generation = 1")
        mark = one(conn, "select max_generation from sinkfence.mark")
    scene.add("mark", "ok", Token(a.job_id, mark, a.owner))
    return scene


def told(ground: Ground) -> Scene:
    """A lease's token is refused: the lease must hear of it."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    heard: list[StaleToken] = []

    class Listening:
        token = a

        def lose(self, reason: StaleToken) -> None:
            heard.append(reason)

    with scene.late(a) as attempt, psycopg.connect(table.dsn) as conn, transaction(conn, Listening()):
        table.insert(conn, a, attempt)
        with scene.arming(b):
            table.sink.arm(b)
    if not heard:
        scene.break_("L3", "the lease was not told")
    return scene


def crash(ground: Ground) -> Scene:
    """B arms from a session that does not wait for the disk; the server is killed, and A tries again."""
    table = Table(ground)
    scene, a = table.scene, table.first_tenure()
    b = scene.issued(2, "B")
    with killed(ground):
        with scene.arming(b):
            PostgresSink(with_settings(table.dsn, synchronous_commit="off")).arm(b)
    with scene.late(a) as attempt:
        table.write(a, attempt)
    with scene.rightful(b) as attempt:
        table.write(b, attempt)
    return scene
