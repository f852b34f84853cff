"""A table of effects in a database with marks."""

from __future__ import annotations

from typing import Any

import psycopg

import sinkfence_postgres
from mutants.scenes import Effect, Ground, Scene
from mutants.scenes.databases import with_settings
from sinkfence.tokens import Token
from sinkfence_postgres import PostgresSink, transaction

TABLE = "create table effect (seq bigserial, job text, generation bigint, owner text, id text)"
TRUTH = "select generation, owner, id, seq from effect where job = %s order by seq"
INSERT = "insert into effect (job, generation, owner, id) values (%s, %s, %s, %s)"


class Table:
    """A table of effects in a database with marks."""

    def __init__(self, ground: Ground) -> None:
        self.dsn = ground.dsn
        with psycopg.connect(self.dsn) as conn:
            sinkfence_postgres.install(conn)
            conn.execute(TABLE)
        self.scene = Scene(self.truth)
        # A successor that is kept waiting says so soon.
        self.sink = PostgresSink(with_settings(self.dsn, lock_timeout="200ms"))

    def truth(self) -> list[Effect]:
        with psycopg.connect(self.dsn) as conn:
            return [Effect(*row) for row in conn.execute(TRUTH, (self.scene.job,))]

    def insert(self, conn: Any, token: Token, attempt: str) -> None:
        conn.execute(INSERT, (token.job_id, token.generation, token.owner, attempt))

    def write(self, token: Token, attempt: str) -> None:
        with psycopg.connect(self.dsn) as conn, transaction(conn, token):
            self.insert(conn, token, attempt)

    def first_tenure(self) -> Token:
        token = self.scene.issued(1, "A")
        with self.scene.arming(token):
            self.sink.arm(token)
        with self.scene.rightful(token) as attempt:
            self.write(token, attempt)
        return token

    def linger(self, conn: psycopg.Connection[Any]) -> None:
        """Have transactions that write to `slow` wait in mid-COMMIT, after the seal, for lock 77."""
        conn.execute(
            "create table slow (n int);"
            "create function linger() returns trigger language plpgsql as "
            "$$ begin perform pg_advisory_xact_lock(77); return null; end $$;"
            "create constraint trigger linger after insert on slow deferrable initially deferred "
            "for each row execute function linger()"
        )
