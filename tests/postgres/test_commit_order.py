"""The judge of commit order: the server's own log of what was committed, decoded (logical decoding).

Random histories of writers that take jobs from each other. The log has the transactions in the order of
their commits, and nothing that the library says is believed: each row's generation is compared with the
highest mark that was committed before it.
"""

from __future__ import annotations

import collections
import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

COMMITS = int(os.environ.get("SINKFENCE_TEST_COMMITS", "6000"))
"""How many commits of guarded transactions are judged, and of each control a third. 50,000 were, by hand."""
PROCESSES = 3

BURST = """
create procedure burst(job text, generation bigint, times integer) language plpgsql as $$ begin
  for n in 1 .. times loop
    perform {0}(job, generation, 'racer:' || generation, false);
    insert into effect (job, generation) values (burst.job, burst.generation);
    commit;
    perform nextval('done');  -- no rollback undoes it
  end loop;
end $$
"""
CONTROL = """
create schema control;
create function control.look(job text, generation bigint, owner text, lock boolean) returns void
language plpgsql as $$ declare seen bigint; begin
  select m.max_generation into seen from sinkfence.mark m where m.job_id = job {0};
  if seen > generation then raise exception 'stale' using errcode = 'SF001'; end if;
end $$
"""
CHANGE = re.compile(
    r"table (?:public\.effect: INSERT: job\[text\]:'(?P<effect>\w+)' generation\[bigint\]:(?P<by>\d+)"
    r"|sinkfence\.mark: (?:INSERT|UPDATE): job_id\[text\]:'(?P<mark>\w+)' "
    r"max_generation\[bigint\]:(?P<to>\d+))"
)


@pytest.fixture
def logged(elsewhere):
    """A database whose log is decoded, with a table of effects."""
    db = elsewhere
    db.admin.execute("create sequence generation start 3000000001")
    db.admin.execute("create sequence done")
    db.admin.execute("create table effect (job text, generation bigint)")
    slot = f"order_{secrets.token_hex(4)}"
    try:
        db.admin.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", (slot,))
    except psycopg.errors.UndefinedFile:
        pytest.skip("not run: no PostgreSQL with test_decoding (Debian's has it)")
    yield db, slot
    db.admin.execute("select pg_drop_replication_slot(%s)", (slot,))


def race(db, guard: str, commits: int) -> collections.Counter[str]:
    """Let several processes race, and return what they have counted.

    Of a burst that was cut short the server knows how far it had come.
    """
    db.admin.execute(BURST.format(guard))
    script = Path(__file__).with_name("racer.py")
    arguments = [sys.executable, script, db.dsn, guard, str(commits // PROCESSES)]
    racers = [
        subprocess.Popen([*arguments, str(seed)], stdout=subprocess.PIPE, text=True)
        for seed in range(PROCESSES)
    ]
    counts: collections.Counter[str] = collections.Counter()
    for racer in racers:
        with racer:
            counts.update(json.loads(racer.communicate()[0]))
        assert racer.returncode == 0
    [done] = db.admin.execute("select nextval('done') - 1").fetchone()
    counts["commits"] = counts["single"] + done
    return counts


def judge(db, slot: str) -> collections.Counter[str]:
    """Read the log, and count effects, raises of marks, and effects that came after a higher mark."""
    seen: collections.Counter[str] = collections.Counter()
    marks: dict[str, int] = collections.defaultdict(int)
    log = "select data from pg_logical_slot_get_changes(%s, null, null, 'skip-empty-xacts', '1')"
    for (line,) in db.admin.execute(log, (slot,)):
        if not (change := CHANGE.match(line)):
            continue
        if job := change["mark"]:
            seen["raises"] += 1
            assert int(change["to"]) > marks[job]
            marks[job] = int(change["to"])
        else:
            seen["effects"] += 1
            seen["stale"] += int(change["by"]) < marks[change["effect"]]
            seen["unarmed"] += int(change["by"]) > marks[change["effect"]]
    return seen


def test_no_effect_comes_after_a_higher_mark(logged):
    """Whatever the interleaving, isolation and way of guarding: no row is committed after a newer mark."""
    db, slot = logged
    counts = race(db, "sinkfence.guard", COMMITS)
    seen = judge(db, slot)
    assert seen["effects"] == counts["commits"] >= COMMITS * 0.99
    assert seen["raises"] == counts["takeovers"] > COMMITS / 100
    assert counts["SF001"] > COMMITS / 100
    assert (seen["stale"], seen["unarmed"]) == (0, 0)


@pytest.mark.parametrize("lock", ["", "for key share"], ids=["a plain read", "FOR KEY SHARE"])
def test_the_judge_sees_what_simple_checks_let_through(logged, lock):
    """With the same writers, marks and judge, a check that is over before the commit is found out."""
    db, slot = logged
    db.admin.execute(CONTROL.format(lock))
    counts = race(db, "control.look", COMMITS // 3)
    seen = judge(db, slot)
    assert seen["effects"] == counts["commits"]
    assert seen["stale"] > COMMITS / 600
