"""How to use each real store."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from functools import partial
from urllib.parse import urlsplit

import psycopg

from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore, aio
from sinkfence.testing import HandClock, StoreCapabilities


class Memory:
    """One store: there are no other handles on what is in a process's memory."""

    capabilities = StoreCapabilities(concurrent=True, own_clock=True)

    def __init__(self):
        self.clock = HandClock()
        self.store = MemoryStore(clock=self.clock)

    def open(self, *, losing=False):
        return self.store

    def let_pass(self, seconds):
        self.clock.advance(seconds)


class Sqlite:
    """A file, by the host's wall clock as SQLite reads it."""

    capabilities = StoreCapabilities(durable=True, concurrent=True, own_clock=True, goes_back=True)

    def __init__(self, folder, floor=None):
        self.file, self.floor = folder / "leases.db", floor
        store = self.open()
        store.create_schema()
        store.close()

    def open(self, *, losing=False):
        return SqlStore(f"sqlite:///{self.file}", floor=self.floor)

    def let_pass(self, seconds):
        time.sleep(seconds)

    def backup(self):
        saved = self.file.with_name(f"saved-{secrets.token_hex(8)}.db")

        def copied(source, target):
            with closing(sqlite3.connect(source)) as a, closing(sqlite3.connect(target)) as b:
                a.backup(b)

        copied(self.file, saved)
        return partial(copied, saved, self.file)


class Postgres:
    """A server, by its own clock; it can be reached by a wire that loses an answer."""

    capabilities = StoreCapabilities(
        durable=True, concurrent=True, own_clock=True, loses_answers=True, goes_back=True
    )

    def __init__(self, dsn, floor=None):
        self.dsn, self.floor = dsn, floor
        store = SqlStore(dsn)
        store.create_schema()
        store.close()

    def open(self, *, losing=False):
        if not losing:
            return SqlStore(self.dsn, floor=self.floor)
        wire = Wire(urlsplit(self.dsn).hostname, urlsplit(self.dsn).port)
        at = urlsplit(self.dsn)
        login = at.netloc.rpartition("@")[0]
        far = at._replace(netloc=f"{login}@127.0.0.1:{wire.port}", query="sslmode=disable")
        store = Wired(far.geturl(), floor=self.floor)
        store.wire = wire
        store.get("a first call, so that the next one is the first on a connection that is there")
        wire.lose_an_answer = True
        return store

    def let_pass(self, seconds):
        with psycopg.connect(self.dsn) as conn:
            conn.execute("select pg_sleep(%s)", (seconds,))

    def backup(self):
        """A logical one, in the server itself; putting it back goes past the table's triggers."""
        with psycopg.connect(self.dsn) as conn:
            name = f"saved_{secrets.token_hex(8)}"
            conn.execute(f"create table {name} as table sinkfence_lease")

        def restore():
            with psycopg.connect(self.dsn) as conn:
                conn.execute("set local session_replication_role = replica")
                conn.execute("delete from sinkfence_lease")
                conn.execute(f"insert into sinkfence_lease table {name}")

        return restore


class Wired(SqlStore):
    """A store that takes its wire with it."""

    def close(self):
        super().close()
        assert not self.wire.lose_an_answer, "no answer was lost"
        self.wire.close()


class AsyncPostgres(Postgres):
    """The same server, asked by an event loop."""

    def open(self, *, losing=False):
        at = urlsplit(self.dsn)._replace(scheme="postgresql+psycopg", query="sslmode=disable")
        if not losing:
            return Looped(aio.SqlStore(at.geturl(), floor=self.floor))
        wire = Wire(at.hostname, at.port)
        login = at.netloc.rpartition("@")[0]
        far = at._replace(netloc=f"{login}@127.0.0.1:{wire.port}")
        store = Looped(aio.SqlStore(far.geturl(), floor=self.floor, sync=self.dsn), wire)
        store.get("a first call, so that the next one is the first on a connection that is there")
        wire.lose_an_answer = True
        return store


class Looped:
    """An asynchronous store as one for threads, each call in its loop; the heartbeat's call is its own."""

    def __init__(self, store, wire=None):
        self.store, self.wire = store, wire
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        if name == "renew_many":
            return self.store.sync.renew_many
        call = getattr(self.store, name)
        return partial(self.wait_for, call) if callable(call) else call

    def wait_for(self, call, *args):
        return self.loop.run_until_complete(call(*args))

    def close(self):
        self.wait_for(self.store.close)
        self.wait_for(self.loop.shutdown_default_executor)
        self.loop.close()
        if self.wire:
            assert not self.wire.lose_an_answer, "no answer was lost"
            self.wire.close()


class Wire:
    """A way to a server that cuts a connection in place of its next answer."""

    def __init__(self, host, port):
        self.server = host, port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lose_an_answer = False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.server)
            for source, target, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.pump, args=(source, target, answers), daemon=True).start()

    def pump(self, source, target, answers):
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and self.lose_an_answer:
                    self.lose_an_answer = False
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self):
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
