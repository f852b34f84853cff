"""`sinkfence leases`: what an operator sees, and what becomes of who held the job."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import signal
import subprocess
import sys
import threading

import psycopg
import pytest
from command_line import COMMAND, PLAIN, Sinkfence, terminal

from sinkfence import Conflict, LeaseLost, Leases
from sinkfence.stores.sql import SqlStore


def test_list_shows_each_state(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """Held, free, done: a line for each job, tab-separated, and of the owner's bits nothing."""
    held = leases.acquire("reports/latest")
    leases.acquire("reports/[red]").release()
    leases.acquire("invoice-42").complete({"rows": 17})
    code, out, err = sinkfence("leases", "list", "--store", store_url)
    assert (code, err) == (0, "")
    head, *lines = [line.split("\t") for line in out.splitlines()]
    assert head == ["JOB", "GENERATION", "STATE", "OWNER", "SECONDS LEFT"]
    assert [line[:4] for line in lines] == [
        ["invoice-42", "1", "done", "worker-a"],
        ["reports/[red]", "1", "free", "-"],
        ["reports/latest", "1", "held", "worker-a"],
    ]
    assert 0 < float(lines[2][4]) <= 60
    assert held.token.owner.rpartition(":")[2] not in out
    assert len(sinkfence("leases", "list", "reports/", "--store", store_url).out.splitlines()) == 3
    assert sinkfence("leases", "list", "nothing", "--store", store_url) == (0, "", "")


def test_json_has_all(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """`list --json` and `show --json` have the shape that the page says."""
    leases.acquire("invoice-42").complete({"rows": 17})
    held = leases.acquire("reports/latest")
    listed = json.loads(sinkfence("leases", "list", "--store", store_url, "--json").out)
    shown = json.loads(sinkfence("leases", "show", "reports/latest", "--store", store_url, "--json").out)
    done, latest = listed["leases"]
    assert 0 < shown.pop("remaining") < latest.pop("remaining") <= 60
    assert shown == latest
    assert latest == {
        "job_id": "reports/latest",
        "generation": 1,
        "state": "held",
        "owner": held.token.owner,
        "lease_until": held.lease_until.isoformat(),
        "result": None,
    }
    assert (done["state"], done["lease_until"], done["result"]) == ("done", None, {"rows": 17})


def test_show_says_who(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """`show` prints a field a line, with the owner whole; of a job that isn't there it says so, with 1."""
    held = leases.acquire("reports/latest")
    shown = dict(
        line.split(":", 1)
        for line in sinkfence("leases", "show", "reports/latest", "--store", store_url).out.splitlines()
    )
    assert shown["owner"].strip() == held.token.owner
    absent = sinkfence("leases", "show", "reports", "--store", store_url)
    assert absent.code == 1
    assert absent.err == (
        "sinkfence: there is no job 'reports' in this store: `sinkfence leases list` shows all\n"
    )


def test_release_takes_the_lease_away(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """The old owner hears LeaseLost, by its heartbeat too; the next one gets a higher number at once."""
    losses: list[LeaseLost] = []
    told = threading.Event()

    def on_lost(_lease: object, loss: LeaseLost) -> None:
        losses.append(loss)
        told.set()

    with Leases(SqlStore(store_url), ttl=60, heartbeat=0.05, owner="frozen", on_lost=on_lost) as theirs:
        with theirs.hold("reports/latest") as lease, pytest.raises(LeaseLost):
            ran = sinkfence("leases", "release", "reports/latest", "--store", store_url, "--yes", "--json")
            assert ran.code == 0
            assert json.loads(ran.out)["state"] == "free"
            assert json.loads(ran.out)["generation"] == 1
            assert told.wait(30)
            _ = lease.token
        assert [loss.token.generation for loss in losses] == [1]
        assert leases.acquire("reports/latest").generation == 2


def test_an_owner_without_heartbeat_hears_it(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """Who renews or completes by hand after the operator's release is told that the lease is lost."""
    lease = leases.acquire("reports/latest")
    assert sinkfence("leases", "release", "reports/latest", "--store", store_url, "--yes").code == 0
    with pytest.raises(LeaseLost):
        lease.renew()
    with pytest.raises(LeaseLost):
        lease.complete()


def test_release_of_what_nobody_holds(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """A free job, a completed one and one that isn't there are left alone, with 1."""
    leases.acquire("free").release()
    leases.acquire("done").complete("kept")
    for job, says in [("free", "nobody holds"), ("done", "is completed"), ("none", "there is no job")]:
        ran = sinkfence("leases", "release", job, "--store", store_url, "--yes")
        assert (ran.code, ran.out) == (1, "")
        assert says in ran.err
    found = leases.get("done")
    assert found is not None
    assert (found.state, found.result) == ("done", "kept")


def test_reopen_lets_a_completed_job_run_again(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """The count goes on; the result is dropped, which is said before."""
    leases.acquire("invoice-42").complete({"rows": 17})
    ran = sinkfence("leases", "reopen", "invoice-42", "--store", store_url, "--yes")
    assert ran.code == 0
    assert "Its result is dropped." in ran.err
    assert leases.acquire("invoice-42").generation == 2
    free = leases.acquire("free")
    free.release()
    assert sinkfence("leases", "reopen", "free", "--store", store_url, "--yes").code == 1


def test_raise_lifts_the_count(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """The next number is above N, also of a job that the store has lost; repeated, nothing changes."""
    holding = leases.acquire("reports/latest")
    raised = ("leases", "raise", "reports/latest", "--above", "1234", "--store", store_url, "--yes")
    assert "Its lease is taken away." in sinkfence(*raised).err
    with pytest.raises(LeaseLost):
        holding.renew()
    assert leases.acquire("reports/latest").generation == 1235
    again = sinkfence(*raised)
    assert again.code == 0
    assert again.err == "Nothing to do: the next owner's number is above 1234 already.\n"
    found = leases.get("reports/latest")
    assert found is not None
    assert found.remaining > 0
    lost = sinkfence("leases", "raise", "lost", "--above", "2000000", "--store", store_url, "--yes")
    assert "There is no job 'lost': its record is made." in lost.err
    assert "THAT IS 2,000,000 MORE" in lost.err
    assert leases.acquire("lost").generation == 2_000_001


@pytest.mark.parametrize("n", ["0", "-1", "1e3", "1_000", " 7", "07", "٧", "1000000000000000", "x"])
def test_a_number_is_read_strictly(sinkfence: Sinkfence, leases: Leases, store_url: str, n: str) -> None:
    """What is no generation is a wrong usage, and nothing is changed."""
    ran = sinkfence("leases", "raise", "job", f"--above={n}", "--store", store_url, "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert leases.get("job") is None


def test_the_end_of_the_count_is_told(sinkfence: Sinkfence, leases: Leases, store_url: str) -> None:
    """Above the last generation there is none: refused, and nothing is changed."""
    ran = sinkfence("leases", "raise", "job", "--above", "9" * 15, "--store", store_url, "--yes")
    assert ran.code == 1
    assert leases.get("job") is None


@pytest.mark.parametrize(
    "change",
    [("release", "job"), ("reopen", "job"), ("raise", "job", "--above", "7")],
    ids=lambda each: each[0],
)
def test_nothing_changes_unasked(
    process: Sinkfence, leases: Leases, store_url: str, change: tuple[str, ...]
) -> None:
    """Without a terminal and without --yes: what would be done is shown, and refused with 2."""
    leases.acquire("job")
    before = leases.get("job")
    ran = process("leases", *change, SINKFENCE_STORE=store_url)
    assert (ran.code, ran.out) == (2, "")
    assert "Job 'job', generation 1: held by 'worker-a'" in ran.err
    assert ran.err.endswith("sinkfence: nothing was changed: nobody is there to be asked, so add --yes\n")
    after = leases.get("job")
    assert before is not None
    assert after is not None
    assert (before.owner, before.lease_until) == (after.owner, after.lease_until)


@pytest.mark.parametrize(
    ("types", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1), (b"\x04", 1), (b"\x03", 130)]
)
def test_a_terminal_is_asked(leases: Leases, store_url: str, types: bytes, code: int) -> None:
    """Yes does it; no, nothing, end of file and Ctrl-C do not."""
    leases.acquire("job")
    with terminal("leases", "release", "job", "--store", store_url) as screen:
        screen.wait_for(b"[y/N] ")
        screen.type(types)
        assert screen.close() == code
    assert b"Traceback" not in screen.text
    found = leases.get("job")
    assert found is not None
    assert (found.owner is None) is (code == 0)


def test_who_did_it_is_logged(process: Sinkfence, leases: Leases, store_url: str) -> None:
    """Before and after, with the system's name of the user and not a variable's; and no password."""
    leases.acquire("job")
    ran = process("leases", "release", "job", "--yes", "--store", store_url, USER="eve", LOGNAME="eve")
    who = f"{pwd.getpwuid(os.getuid()).pw_name}@{os.uname().nodename}"
    logged = [line for line in ran.err.splitlines() if " sinkfence.cli: " in line]
    said = [line.partition(" sinkfence.cli: ")[2] for line in logged]
    assert len(said) == 2
    assert said[0].startswith(f"{who}: release job 'job', generation 1 in lease store: ")
    assert said[1] == f"{said[0]}: done"
    if "@" in store_url:
        assert store_url.partition("@")[0].rpartition(":")[2] not in ran.err


def test_what_was_not_shown_is_not_taken_away(leases: Leases, store_url: str) -> None:
    """While the question stands another worker takes the job: the answer yes takes nothing from that one."""
    first = leases.acquire("job")
    with terminal("leases", "release", "job", "--store", store_url) as screen:
        screen.wait_for(b"[y/N] ")
        first.release()
        second = leases.acquire("job")
        screen.type(b"y\n")
        assert screen.close() == 1
    assert b"another owner or state by now" in screen.text
    second.renew()


@pytest.mark.parametrize(
    "words",
    [("release", "job"), ("reopen", "job"), ("raise", "job", "--above", "7")],
    ids=lambda each: each[0],
)
def test_what_changes_at_the_last_moment_is_left_alone(dsn: str, words: tuple[str, ...]) -> None:
    """The row is locked as the command comes to change it, and another's by then: that one keeps it."""
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    store = SqlStore(url)
    store.create_schema()
    with Leases(store, ttl=60) as leases, psycopg.connect(dsn) as other, psycopg.connect(dsn) as watch:
        watch.autocommit = True
        leases.acquire("job")
        other.execute("select from sinkfence_lease where job_id = 'job' for update")
        with subprocess.Popen(
            [*COMMAND, "leases", *words, "--yes"],
            env={**PLAIN, "SINKFENCE_STORE": url, "PGOPTIONS": "-c lock_timeout=60s"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            while not watch.execute("select 1 from pg_locks where not granted").fetchone():
                assert running.poll() is None
            other.execute("update sinkfence_lease set generation = generation + 1, owner = 'rightful:1'")
            other.commit()
            said = running.communicate()[1]
        found = leases.get("job")
    assert running.returncode == 1, said
    assert "another owner or state by now" in said
    assert found is not None
    assert (found.generation, found.owner, found.state) == (2, "rightful:1", "open")


def test_a_record_that_was_seen_is_the_condition(leases: Leases, store_url: str) -> None:
    """`seen=` ties reopen and raise_above to one record: of another one Conflict, and nothing changes."""
    store = SqlStore(store_url)
    first = leases.acquire("job")
    seen = store.get("job")
    assert seen is not None
    first.release()
    second = leases.acquire("job")
    for change in (lambda: store.reopen("job", seen=seen), lambda: store.raise_above("job", 9, seen=seen)):
        with pytest.raises(Conflict):
            change()
    second.renew()
    now = store.get("job")
    assert now is not None
    raised = store.raise_above("job", 9, seen=now)
    assert (raised.generation, raised.owner) == (9, None)
    # As after an answer that was lost: the repetition finds its own work.
    assert store.raise_above("job", 9, seen=now).generation == 9
    assert store.reopen("job", seen=raised).owner is None
    with pytest.raises(KeyError):
        store.reopen("nobody's", seen=raised)
    store.close()


def test_a_lease_that_was_seen_run_out_and_is_renewed_is_another(leases: Leases, store_url: str) -> None:
    """Its owner works again, though generation, owner and state are the same: it keeps the job."""
    store = SqlStore(store_url)
    lease = leases.acquire("job")
    seen = store.get("job")
    assert seen is not None
    run_out = dataclasses.replace(seen, remaining=0.0)
    for change in (
        lambda: store.reopen("job", seen=run_out),
        lambda: store.raise_above("job", 9, seen=run_out),
    ):
        with pytest.raises(Conflict):
            change()
    lease.renew()
    assert store.reopen("job", seen=seen).owner is None
    store.close()


def test_the_store_is_named_by_its_own_word(process: Sinkfence, dsn: str) -> None:
    """A query of the URL leads elsewhere than its path: what is shown and logged is where it leads."""
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    store = SqlStore(url)
    store.create_schema()
    store.close()
    base, _, name = url.rpartition("/")
    ran = process(
        "leases", "raise", "job", "--above", "7", "--yes", SINKFENCE_STORE=f"{base}/dev?dbname={name}"
    )
    assert ran.code == 0, ran
    assert ran.err.count(f"lease store: database '{name}' at 127.0.0.1:") == 3
    assert "dev" not in ran.err


def test_a_terminal_gets_a_table(leases: Leases, store_url: str) -> None:
    """A name's brackets are no markup."""
    leases.acquire("[bold]x[/bold]")
    with terminal("leases", "list", "--store", store_url) as screen:
        assert screen.close() == 0
    assert b"\x1b[1mJOB" in screen.text
    assert b"[bold]x[/bold]" in screen.text
    assert b"\t" not in screen.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_at_the_question(leases: Leases, store_url: str, number: int, code: int) -> None:
    """A command that stands at its question ends by a signal as a shell expects, and has changed nothing."""
    leases.acquire("job")
    with terminal("leases", "release", "job", "--store", store_url) as screen:
        screen.wait_for(b"[y/N] ")
        screen.running.send_signal(number)
        assert screen.close() == code
    found = leases.get("job")
    assert found is not None
    assert found.owner is not None


JUST_BEFORE = f"""import ctypes, functools, operator, sys, types
# All of it in C: Python does not look for signals between this one and the call that waits for an answer.
interrupted = functools.partial(ctypes.CDLL(None)["raise"], int(sys.argv.pop(1)))  # 0, as stdin's number is
read = functools.partial(next, filter(None, map(operator.call, [interrupted, sys.stdin.readline])))
sys.stdin = types.SimpleNamespace(isatty=lambda: True, fileno=interrupted, readline=read)
{COMMAND[-1]}"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_just_before_the_answer_is_waited_for(
    leases: Leases, store_url: str, number: int, code: int
) -> None:
    """It interrupts no call, and is heard all the same, without an answer; nothing has changed."""
    leases.acquire("job")
    command = [sys.executable, "-c", JUST_BEFORE, str(int(number)), "leases", "release", "job"]
    with subprocess.Popen(
        [*command, "--store", store_url], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=PLAIN
    ) as running:
        try:
            assert running.wait(60) == code
        finally:
            running.kill()
        assert running.stderr is not None
        assert b"[y/N] " in running.stderr.read()
    found = leases.get("job")
    assert found is not None
    assert found.owner is not None
