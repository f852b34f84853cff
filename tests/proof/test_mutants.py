"""Each broken variant of the shipped source is caught by the invariant that is named for it."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import psycopg
import pytest
from mutants import HOSTS, HTTP, LEASES, MANAGERS, MODES, MUTANTS, POSTGRES, S3
from mutants.mutant import ROOT, Copy, Edit

from sinkfence_trials.servers.postgres import postgres

SCENES = sorted({mutant.scene for mutant in MUTANTS})
INVARIANTS = [f"S{n}" for n in range(1, 8)] + [f"D{n}" for n in range(1, 10)] + ["L1", "L2", "L3", "L4", "L5"]
PAGE = (ROOT / "docs" / "explanation" / "mutants.md").read_text()


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the source, to be broken."""
    return Copy(tmp_path_factory.mktemp("mutants"))


@pytest.fixture(scope="module")
def database(postgres_server):
    """A database for one scene after the other: to make one for each would cost more than the scenes."""
    dsn = postgres_server.create_database()
    yield dsn, None
    postgres_server.drop_database(dsn)


@pytest.fixture(scope="module")
def victim():
    """A database on a server of its own, which is killed."""
    with postgres() as server:
        yield server.dsn, server.cluster


@pytest.fixture(scope="module")
def bucket(s3_server):
    """Two clients, each without repetitions of its own, and their bucket."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(contextlib.closing(s3_server.client(retries={"total_max_attempts": 1})))
            for _ in range(2)
        ]
        yield clients, s3_server.bucket


@pytest.fixture
def emptied(request):
    """Find the database for a scene and empty it."""

    def emptied(scene):
        module, _, name = scene.partition(".")
        if module in ("s3", "hosts", "managers"):
            return "", None
        dsn, cluster = request.getfixturevalue("victim" if name == "crash" else "database")
        with psycopg.connect(dsn) as conn:
            conn.execute("drop schema if exists sinkfence cascade; drop schema public cascade")
            conn.execute("create schema public")
        return dsn, cluster

    return emptied


@pytest.fixture
def play(request, emptied, prefix, copy):
    """Play a scene against real servers, with the library as these edits make it."""

    def play(scene, edits=()):
        module, name = scene.split(".")
        clients, bucket = request.getfixturevalue("bucket") if module == "s3" else ((), "")
        ground = *emptied(scene), clients, bucket, prefix
        with copy.changed(edits):
            scenes = importlib.import_module("mutants.scenes")
            played = getattr(importlib.import_module(f"mutants.scenes.{module}"), name)(
                scenes.Ground(*ground)
            )
            return played.broken, played.notes

    return play


@pytest.mark.parametrize("scene", SCENES)
def test_the_shipped_code_keeps_every_invariant(scene, play):
    """What the mutants are put through breaks nothing in the code as it is shipped."""
    broken, notes = play(scene)
    assert not broken, notes


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught_by_name(mutant, play, say):
    """A mutant breaks the invariant that is named for it."""
    broken, notes = play(mutant.scene, mutant.edits)
    assert mutant.invariant in broken, (broken, notes)
    # Only that: what else is broken may hang on a millisecond between two readings of a clock.
    say(f"mutant, {mutant}: {mutant.invariant}")


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.promise], ids=str)
def test_a_mutant_breaks_its_promise(mutant, request, emptied, prefix, copy, monkeypatch):
    """The contract kit catches it as well, which knows nothing of the destination's inside."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "contract"))
    module = mutant.scene.partition(".")[0]
    s3 = request.getfixturevalue("s3_server") if module == "s3" else None
    dsn, _ = emptied(module)
    with copy.changed(mutant.edits):
        kit = importlib.import_module("mutants.scenes.kit")
        assert kit.broken(module, mutant.promise, dsn, s3, prefix) == [mutant.promise]


def test_every_invariant_has_a_mutant():
    """None is watched without proof that something would trip it."""
    assert {mutant.invariant for mutant in MUTANTS} == set(INVARIANTS)


@pytest.mark.parametrize("old", ["no such text", "def "])
def test_a_mutant_keeps_up_with_the_code(old, copy):
    """A text that is not there any more, or not only once, is an error and no survivor."""
    with pytest.raises(ValueError, match="times, not once"):
        with copy.changed((Edit("src/sinkfence/marks.py", old, ""),)):
            pass


def test_what_was_imported_is_there_again(copy):
    """A mutant is gone with its test."""
    before = importlib.import_module("sinkfence.marks")
    with copy.changed((Edit("src/sinkfence/marks.py", "token.owner != mark.owner", "False"),)):
        assert importlib.import_module("sinkfence.marks") is not before
    assert importlib.import_module("sinkfence.marks") is before
    assert (copy.folder / "src/sinkfence/marks.py").read_text() == Path(before.__file__).read_text()


def table(heading):
    """The cells of the table under a heading of the page, without its head."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows[2:]]


@pytest.mark.parametrize(
    ("heading", "mutants"),
    [
        ("In the lease store and its manager", LEASES),
        ("In what holds leases", MANAGERS),
        ("In PostgreSQL", POSTGRES),
        ("In the other ways to write to PostgreSQL", MODES),
        ("In S3, and in the rule that it applies", S3),
        ("At an HTTP service's door, and in its caller", HTTP),
        ("At a host's gate, and in the answers that it keeps", HOSTS),
    ],
)
def test_the_page_has_every_mutant(heading, mutants):
    """The page's tables are the mutants that are tried, in order."""
    assert table(heading) == [
        [mutant.name, mutant.invariant, mutant.promise, mutant.harm] for mutant in mutants
    ]


def test_the_page_explains_every_invariant():
    """A reader need not look elsewhere for what a name stands for."""
    assert [name for name, _ in table("The invariants")] == INVARIANTS
