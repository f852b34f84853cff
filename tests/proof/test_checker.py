"""The checker finds in a history what was planted in it, by its name and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sinkfence_trials import checker
from sinkfence_trials.history import Event, History, read

TTL = 10.0


class Script:
    """A history made by hand: each line comes one second after the one before."""

    def __init__(self):
        self.events, self.t = [], 0.0

    def __call__(self, p, f, type, generation=None, key=None, *, job="j", **value):
        self.t += 1
        self.events.append(Event(self.t, p, f, type, job, generation, key, value))
        return self

    def acquire(self, p, generation, now, ttl=TTL, owner=None):
        owner = owner or f"{p}:{generation}"
        self(p, "acquire", "invoke", owner=owner)
        return self(p, "acquire", "ok", generation, owner=owner, now=now, until=now + ttl, ttl=TTL)

    def renew(self, p, generation, now, **value):
        self(p, "renew", "invoke", generation, owner=f"{p}:{generation}")
        return self(
            p,
            "renew",
            "ok",
            generation,
            owner=f"{p}:{generation}",
            now=now,
            until=now + TTL,
            ttl=TTL,
            **value,
        )

    def complete(self, p, generation, now):
        return self(p, "complete", "ok", generation, owner=f"{p}:{generation}", now=now)

    def arm(self, p, generation):
        return self(p, "arm", "ok", generation, owner=f"{p}:{generation}")

    def write(self, p, generation, id, type="ok", key=None, **value):
        self(p, "write", "invoke", generation, key, owner=f"{p}:{generation}", id=id, **value)
        return self(p, "write", type, generation, key, owner=f"{p}:{generation}", id=id)

    def effect(self, p, generation, id, key=None, **value):
        return self("observer", "effect", "ok", generation, key, owner=f"{p}:{generation}", id=id, **value)

    def mark(self, generation):
        return self("observer", "mark", "ok", generation)

    def failover(self):
        return self("store", "failover", "invoke", job="")("store", "failover", "ok", job="")


def two_owners():
    """A is late and B takes over: everything is asked for, refused, repeated and answered as it should be."""
    s = Script()
    s.acquire("A", 1, now=0).renew("A", 1, now=5).arm("A", 1).mark(1)
    s.write("A", 1, "a1", key="pay", base=None).effect("A", 1, "a1", key="pay", base=None)
    s.write("A", 1, "a2", "info", key="mail")
    s.acquire("B", 2, now=15).arm("B", 2).mark(2)
    s.write("A", 1, "a3", "fail", key="mail")
    s.write("B", 2, "b1", key="pay", base="a1")  # done by A: nothing is done again
    s.write("B", 2, "b2", key="mail", base="a1").effect("B", 2, "b2", key="mail", base="a1").mark(2)
    return s.complete("B", 2, now=20).complete("B", 2, now=21)


def names(script):
    return [violation.invariant for violation in checker.check(script.events)]


def test_a_good_history_has_no_violations():
    """Late owners that are refused, repetitions and unknown outcomes are no violations."""
    assert names(two_owners()) == []


def test_a_released_job_may_be_acquired_before_its_lease_ends():
    """A release ends the lease by the store's clock."""
    s = Script().acquire("A", 1, now=0)
    s("A", "release", "ok", 1, owner="A:1", now=3)
    assert names(s.acquire("B", 2, now=4)) == []


def test_an_answer_from_the_time_of_a_failover_accuses_nobody():
    """What was asked before a failover and answered after it may be of either store."""
    s = Script()
    s("A", "acquire", "invoke", owner="A:2").failover()
    s("A", "acquire", "ok", 2, owner="A:2", now=0, until=TTL, ttl=TTL)
    assert names(s.acquire("B", 1, now=1)) == []


def asked_after(between):
    """A client asks after another one had been let in with 5, and `between`, and is let in with 4."""
    s = Script()("A", "acquire", "invoke")("A", "acquire", "ok", 5, owner="A:5")
    between(s)("B", "acquire", "invoke")
    return s("B", "acquire", "ok", 4, owner="B:4")


def test_a_failover_that_loses_something_lets_owners_before_it_renew():
    """The record names an owner again who had lost the job: destinations refuse it, and the store can't."""

    def history(**how):
        s = Script()("A", "acquire", "invoke")("A", "acquire", "ok", 5, owner="A:5")
        s("store", "failover", "invoke", job="", **how)("store", "failover", "ok", job="", **how)
        return s("B", "renew", "invoke", 4, owner="B:4")("B", "renew", "ok", 4, owner="B:4")

    assert names(history(lossy=True)) == []
    assert names(history()) == ["S4"]


def test_the_stores_clock_tells_on_which_side_of_a_failover_an_answer_was_given():
    """An observer puts an answer too early: it is not held against an owner whom the failover has lost."""
    s = Script().acquire("A", 2, now=0)
    s("observer", "acquire", "ok", 3, owner="B:3", now=5, until=15, ttl=TTL)
    s("store", "failover", "invoke", job="", now=3, lossy=True)
    assert names(s("store", "failover", "ok", job="", now=4, lossy=True)) == []


PLANTED = {
    "S1": lambda: Script().acquire("A", 2, now=0).acquire("B", 1, now=11),
    "S2": lambda: Script().acquire("A", 1, now=0).acquire("B", 2, now=9),
    "S3": lambda: Script().acquire("A", 1, now=0, ttl=70),
    "S4": lambda: Script().acquire("A", 1, now=0).acquire("B", 2, now=11).renew("A", 1, now=12),
    "S5": lambda: Script().acquire("A", 1, now=0).acquire("B", 1, now=11),
    "S6": lambda: Script().acquire("A", 1, now=0).acquire("B", 2, now=11).complete("A", 1, now=12),
    "S7": lambda: Script().acquire("A", 2, now=0).failover().acquire("B", 1, now=1),
    "D1": lambda: Script().acquire("A", 1, now=0).acquire("B", 2, now=11)
    .write("B", 2, "b1").effect("B", 2, "b1").write("A", 1, "a1", "info").effect("A", 1, "a1"),
    "D2": lambda: Script().write("A", 3, "x").effect("A", 3, "x"),
    "D3": lambda: two_owners().write("B", 2, "b3", base="a1").effect("B", 2, "b3", base="a1"),
    "D4": lambda: two_owners().write("B", 2, "b3", key="pay").effect("B", 2, "b3", key="pay"),
    "D5": lambda: two_owners().write("B", 2, "b3", key="other"),
    "D6": lambda: two_owners().write("B", 2, "b3", "fail", key="other").effect("B", 2, "b3", key="other"),
    "D7": lambda: two_owners().effect("B", 2, "b3"),
    "D8": lambda: two_owners().mark(1),
    "D9": lambda: Script().acquire("A", 1, now=0).acquire("B", 2, now=11).arm("B", 2)
    .write("A", 1, "a1", "info").effect("A", 1, "a1"),
}  # fmt: skip
PLANTED_TWICE = {
    "S1": [lambda: asked_after(lambda s: s)],
    "S7": [lambda: asked_after(lambda s: s.failover())],
    "S4": [
        lambda: Script().acquire("A", 1, now=0).renew("A", 1, now=5, asked=7),
        lambda: (
            Script().acquire("A", 1, now=0)("A", "release", "ok", 1, owner="A:1", now=3).renew("A", 1, now=4)
        ),
    ],
    "S3": [
        lambda: Script().acquire("A", 1, now=0)("A", "renew", "ok", 1, owner="A:1", now=1, until=30, ttl=TTL),
        # An instant that a trigger tells late makes a lease look shorter, and never longer.
        lambda: Script()("A", "acquire", "ok", 1, owner="A:1", now=0, until=TTL + 0.5, ttl=TTL, grain=1.0),
    ],
    "D4": [lambda: two_owners().write("B", 2, "b3", "info").effect("B", 2, "b3").effect("B", 2, "b3")],
    "D5": [lambda: Script().write("A", 1, "a1")],
    "D6": [
        lambda: two_owners().write("B", 2, "b3", "fail")(
            "observer", "trace", "ok", id="b3", where="a multipart upload"
        ),
        # Under the key of one whose outcome is unknown: that one is another attempt.
        lambda: two_owners().write("B", 2, "b3", "info", "pdf").write("B", 2, "b4", "fail", "pdf")
        .effect("B", 2, "b4", "pdf"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_trips_its_invariant_and_no_other(name):
    """Each invariant has a history that breaks it alone."""
    assert names(PLANTED[name]()) == [name]


@pytest.mark.parametrize(
    ("name", "plant"), [(name, plant) for name, plants in PLANTED_TWICE.items() for plant in plants]
)
def test_the_other_ways_to_break_one(name, plant):
    """An invariant with more than one half is watched in each of them."""
    assert names(plant()) == [name]


def test_a_trigger_that_is_late_accuses_nobody():
    """It reads the clock after the statement that it belongs to: what was granted looks shorter."""
    s = Script()("A", "acquire", "ok", 1, owner="A:1", now=0.5, until=TTL, ttl=TTL, grain=1.0)
    assert names(s) == []


SENTENCES = {
    "S1": "generation 1 (owner B:1) was issued after generation 2",
    "S2": "generation 2 (owner B:2) was let in 1.000 s before the lease of generation 1 (owner A:1) ran out",
    "S3": "generation 1 (owner A:1) asked for a lease of 10.000 s and was granted 70.000 s",
    "S4": "generation 1 (owner A:1) renewed its lease, and generation 2 (owner B:2) held the job",
    "S5": "generation 1 was issued to owner A:1 and to owner B:1",
    "S6": "generation 1 (owner A:1) completed the job, and generation 2 (owner B:2) held it",
    "S7": "generation 1 (owner B:1) was issued after a failover, and generation 2 before it",
    "D1": "generation 1 (owner A:1) took effect after generation 2 had",
    "D2": "generation 3 (owner A:3) took effect and was never issued",
    "D3": "b3 of generation 2 (owner B:2) builds on a1, and the effect before it was b2",
    "D4": "step pay took effect by a1 and again by b3 of generation 2 (owner B:2)",
    "D5": "b3 of generation 2 (owner B:2), step other, was acknowledged and never took effect",
    "D6": "b3 of generation 2 (owner B:2), step other, was refused and took effect",
    "D7": "b3 of generation 2 (owner B:2) took effect and nobody had asked for it",
    "D8": "the mark is at generation 1 after generation 2 took effect",
    "D9": "generation 1 (owner A:1) took effect after generation 2 had been armed",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_violation_is_told_in_plain_words(name):
    """Who reads it in a picture knows nothing of Python: no tuples, no quotes, no None."""
    [violation] = checker.check(PLANTED[name]().events)
    assert violation.sentence == SENTENCES[name]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            lambda: two_owners().write("B", 2, "b3").effect("B", 2, "b3", base=None),
            "b3 of generation 2 (owner B:2) builds on nothing, and the effect before it was b2",
        ),
        (
            lambda: Script().acquire("A", 1, now=0).write("A", 1, "a1").effect("A", 1, "a1", base="a0"),
            "a1 of generation 1 (owner A:1) builds on a0, and there was no effect before it",
        ),
        (
            PLANTED_TWICE["S4"][0],
            "generation 1 (owner A:1) renewed its lease by showing generation 7",
        ),
        (
            PLANTED_TWICE["S4"][1],
            "generation 1 (owner A:1) renewed its lease after it had ended",
        ),
        (
            PLANTED_TWICE["S1"][0],
            "generation 4 (owner B:4) was issued to a request sent after generation 5 had been",
        ),
        (
            PLANTED_TWICE["D4"][0],
            "b3 of generation 2 (owner B:2) took effect twice",
        ),
        (
            PLANTED_TWICE["D5"][0],
            "a1 of generation 1 (owner A:1) was acknowledged and never took effect",
        ),
        (
            PLANTED_TWICE["D6"][0],
            "b3 of generation 2 (owner B:2) was refused and left a multipart upload",
        ),
    ],
)
def test_the_other_words(script, sentence):
    """Nothing, and what ended by itself, have words of their own."""
    assert [violation.sentence for violation in checker.check(script().events)] == [sentence]


def test_every_invariant_has_a_planted_fault():
    """S1 to S7 and D1 to D9: none is watched without proof that it is."""
    assert set(PLANTED) == {f"S{n}" for n in range(1, 8)} | {f"D{n}" for n in range(1, 10)}


def test_jobs_do_not_accuse_each_other():
    """Generations order the owners of one job, never those of different jobs."""
    s = two_owners()
    s("C", "acquire", "ok", 1, job="other", owner="C:1", now=30, until=40, ttl=TTL)
    s("C", "write", "invoke", 1, "pay", job="other", owner="C:1", id="c1")
    assert names(s("observer", "effect", "ok", 1, "pay", job="other", owner="C:1", id="c1")) == []


def test_processes_write_files_that_are_checked_offline(tmp_path):
    """Two processes' files are read as one history; the program exits with 1 when something is broken."""
    with History(tmp_path / "a.jsonl", "A") as a, History(tmp_path / "b.jsonl", "B") as b:
        a.add("acquire", "ok", "j", 1, owner="A:1", now=0.0, until=TTL, ttl=TTL)
        b.add("acquire", "ok", "j", 2, owner="B:2", now=1.0, until=TTL + 1, ttl=TTL)
        a.add("write", "invoke", "j", 1, "pay", owner="A:1", id="a1")
    paths = sorted(tmp_path.iterdir())
    assert [(event.p, event.f) for event in read(paths)] == [
        ("A", "acquire"),
        ("B", "acquire"),
        ("A", "write"),
    ]
    program = [sys.executable, "-m", checker.__name__, *map(str, paths)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("S2 j: generation 2 (owner B:2) was let in 9.000 s before")
    assert subprocess.run([*program[:3], str(paths[0])], check=False).returncode == 0


def test_destinations_of_one_job_are_judged_apart():
    """What was armed at one destination says nothing of another one; the acquisitions are those of all."""
    s = Script().acquire("A", 1, 0).acquire("B", 2, TTL)
    s("B", "arm", "ok", 2, owner="B:2", sink="s3")
    s("A", "write", "invoke", 1, owner="A:1", id="a1", sink="http")
    s("observer", "effect", "ok", 1, owner="A:1", id="a1", sink="http")
    assert names(s) == []
    s("A", "write", "invoke", 1, owner="A:1", id="a2", sink="s3")
    assert names(s("observer", "effect", "ok", 1, owner="A:1", id="a2", sink="s3")) == ["D9"]


@pytest.mark.parametrize(("f", "name"), [("renew", "S4"), ("complete", "S6")])
def test_an_answer_to_a_late_owner_without_the_stores_clock(f, name):
    """Asked after a later owner had been let in, and granted: seen by the order of the history alone."""
    s = Script()
    s("A", "acquire", "ok", 1, owner="A:1")("A", f, "invoke", 1, owner="A:1")
    s("B", "acquire", "ok", 2, owner="B:2")
    assert names(s("A", f, "ok", 1, owner="A:1")) == []  # it may have been decided before
    s("A", f, "invoke", 1, owner="A:1")
    assert names(s("A", f, "ok", 1, owner="A:1")) == [name]


def test_a_job_that_never_came_to_write_has_had_no_progress():
    """L1 asks for an effect of each job wherever any has one: also of who was never let in."""
    s = Script().acquire("A", 1, 0)("nemesis", "heal", "ok", job="")
    for sink in ("s3", "http"):
        s("A", "write", "invoke", 1, owner="A:1", id=sink, sink=sink)
        s("observer", "effect", "ok", 1, owner="A:1", id=sink, sink=sink)
    assert names(s) == []
    s("B", "acquire", "invoke", job="stuck")
    violations = checker.check(s.events)
    assert [(each.invariant, each.job) for each in violations] == [("L1", "stuck")] * 2
    assert {each.sentence for each in violations} == {
        f"nothing took effect at {sink} after the faults had healed" for sink in ("s3", "http")
    }


def test_a_line_that_is_still_being_written_is_not_read(tmp_path):
    """Whoever looks while a process writes sees whole lines only."""
    path = tmp_path / "a.jsonl"
    with History(path, "A") as history:
        history.add("acquire", "invoke", "j")
    whole = path.read_text()
    path.write_text(whole + whole[:10])
    assert [event.f for event in read([path])] == ["acquire"]


def test_progress_after_healing():
    """L1: a job that had no effect since nothing was done to anybody any more."""
    s = Script().acquire("A", 1, 0)
    s("A", "write", "invoke", 1, owner="A:1", id="a1")
    s("observer", "effect", "ok", 1, owner="A:1", id="a1")
    s("nemesis", "heal", "ok", job="")
    assert names(s) == ["L1"]
    s("A", "write", "invoke", 1, owner="A:1", id="a2")
    assert names(s("observer", "effect", "ok", 1, owner="A:1", id="a2")) == []
