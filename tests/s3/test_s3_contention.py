"""Many at once: one winner each round, and equal bytes in between let no old write pass."""

import json
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from sinkfence.errors import Conflict, StaleToken
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

WRITERS = 16
ROUNDS = int(os.environ.get("SINKFENCE_TEST_ROUNDS", "8"))
"""Of each race. SeaweedFS lets losers wait in steps of a second: 500 rounds take minutes there."""
LANES = min(ROUNDS, 8)
"""Races that are run at once, each on an object of its own, as most of their time is waiting."""
LOW = 3_000_000_000
LONG = 1100 * 1024


@pytest.fixture
def crowded(client_at, s3_server, bucket_name, prefix):
    """The test's part of the bucket, by a client with connections for all."""
    client = client_at(s3_server.endpoint, max_pool_connections=LANES * WRITERS)
    return FencedBucket(client, bucket_name, prefix=prefix, probe="never")


def race(calls):
    """Make all calls at once; return what came of each."""
    start = threading.Barrier(len(calls))

    def run(call):
        start.wait()
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def lanes(run):
    """Run all rounds, some lanes at once, and let the first error pass."""
    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(run, range(LANES)))


def ring(client, bucket, key):
    """The entries of a register, read without our reader."""
    frame = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return json.loads(frame[12 : 12 + int.from_bytes(frame[8:12], "big")])["ring"]


@pytest.mark.timeout(120 * ROUNDS / 8)
@pytest.mark.parametrize("kind", ["create", "swap"])
def test_of_sixteen_writers_one_wins_each_round(crowded, kind):
    """Each expects the same state: one put is accepted, all others are Conflict, and it is the winner's
    content that stands there."""
    token = Token("j", LOW, "a:1")

    def lane(which):
        for number in range(which, ROUNDS, LANES):
            name = f"r{number}" if kind == "create" else f"r{which}"
            stat = crowded.object(name).stat()
            seq = 0 if stat is None else stat.seq
            puts = [partial(crowded.object(name).put, b"%d" % i, token, expect=seq) for i in range(WRITERS)]
            results = race(puts)
            (winner,) = [i for i, each in enumerate(results) if not isinstance(each, Exception)]
            assert Counter(type(each) for each in results)[Conflict] == WRITERS - 1, results
            after = crowded.object(name)
            assert after.get().read() == b"%d" % winner
            assert after.stat().seq == results[winner].seq == seq + 1

    lanes(lane)


@pytest.mark.timeout(120 * ROUNDS / 8)
def test_of_sixteen_owners_the_newest_has_the_last_word(crowded, s3_client, bucket_name, prefix):
    """Sixteen generations put at once: what is accepted never goes back, and the newest is never refused."""

    def lane(which):
        name = f"r{which}"
        for number in range(-(-ROUNDS // LANES // 2)):
            base = LOW + number * WRITERS
            tokens = [Token("j", base + i, f"o:{base + i}") for i in range(WRITERS)]
            puts = [partial(crowded.object(name).put, b"%d" % i, tokens[i]) for i in range(WRITERS)]
            results = race(puts)
            assert {type(each) for each in results if isinstance(each, Exception)} <= {StaleToken}, results
            assert not isinstance(results[-1], Exception)
            generations = [entry[3] for entry in ring(s3_client, bucket_name, f"{prefix}{name}")]
            assert generations == sorted(generations)
            accepted = sorted(each.generation for each in results if not isinstance(each, Exception))
            assert generations[-len(accepted) :] == accepted
            with crowded.object(name).get() as reader:
                assert (reader.read(), reader.stat.generation) == (b"15", base + 15)

    lanes(lane)


STEPS = [("GET", 1), ("PUT", 1), ("PUT", 2), ("PUT", 3)]
"""The requests of a tenure: read, armed, and put: inline by one request, external by two."""


@pytest.mark.parametrize(("size", "steps"), [(4, STEPS[:3]), (LONG, STEPS)], ids=["inline", "external"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_equal_bytes_written_again_at_every_step_let_no_old_write_pass(
    fenced, through, proxy, aside, s3_client, bucket_name, prefix, size, steps, rounds
):
    """ABA: while A stands still at each of its requests, B writes other bytes and then those that were there:
    A is refused, and nothing of it is in the ring from then on."""
    same, other, stale = (bytes([65 + i]) * size for i in range(3))
    before = Token("j", LOW, "before:1")
    for number, (method, which) in enumerate(steps):
        a, b = (Token("j", LOW + 1 + 2 * number + i, f"{i}:{number}") for i in range(2))
        fenced.object("r").put(same, before)
        for _ in range(which - 1):
            proxy.once(method, "pass")
        stop = proxy.hold(method, "hold request")

        def tenure(a=a):
            late = through.object("r")
            late.arm(a)
            return late.put(stale, a)

        with aside(tenure) as late:
            assert stop.reached.wait(60)
            successor = fenced.object("r")
            for _ in range(rounds):
                successor.put(other, b)
                successor.put(same, b)
            stop.go.set()
        assert type(late()) is StaleToken, (method, which)
        entries = ring(s3_client, bucket_name, f"{prefix}r")
        assert [entry[3] for entry in entries[-2 * rounds :]] == [b.generation] * 2 * rounds
        assert fenced.object("r").get().read() == same
        before = b


def test_equal_bytes_of_ones_own_are_another_state(fenced, through, proxy, aside):
    """ABA by one owner's two threads: the put that expected the first of two equal contents is a Conflict."""
    token = Token("j", LOW, "a:1")
    seq = fenced.object("r").put(b"same", token).seq
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: through.object("r").put(b"mine", token, expect=seq)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").put(b"other", token)
        fenced.object("r").put(b"same", token)
        stop.go.set()
    assert type(late()) is Conflict
    assert fenced.object("r").get().read() == b"same"
