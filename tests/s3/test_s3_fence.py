"""Fenced objects on a real S3 server: what an older owner sends is refused by the server."""

import threading

import pytest

from sinkfence.errors import (
    Conflict,
    GenerationConflict,
    IdempotencyMismatch,
    JobMismatch,
    SchemaMismatch,
    StaleToken,
)
from sinkfence.leases import Leases
from sinkfence.stores.memory import MemoryStore
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

JOB = "reports/latest"
# Above 2^32, so that nothing on the way can be a 32-bit number.
LOW = 3_000_000_000
A, B = Token(JOB, LOW + 7, "a:1"), Token(JOB, LOW + 8, "b:1")


def test_a_process_stopped_between_its_read_and_its_put_is_refused_by_s3(fenced, proxy, worker):
    """C07: A is stopped by SIGSTOP once S3 has answered its read; its PUT, sent on waking, gets 412."""
    fenced.object("r").put(b"before", A)
    stop = proxy.hold("GET", "hold reply")
    late = worker(A, [{"body": "A's", "step": "render"}, {"body": "A's again"}], endpoint=proxy.endpoint)
    late.go()
    assert stop.reached.wait(60)
    late.freeze()
    successor = fenced.object("r")
    successor.arm(B)
    written = successor.put(b"B's", B, step="render")
    stop.go.set()
    late.thaw()

    assert late.results() == [{"error": "StaleToken", "mark": B.generation}] * 2
    assert proxy.log[:2] == [("GET", 200), ("PUT", 412)]
    assert not written.repeated
    _stands(fenced, b"B's", B)


def test_a_put_on_the_wire_while_its_process_is_stopped_is_refused_by_s3(fenced, proxy, worker):
    """C07: A is stopped by SIGSTOP with its PUT under way; S3 refuses it while A still sleeps."""
    fenced.object("r").put(b"before", A)
    stop = proxy.hold("PUT", "hold request")
    late = worker(A, [{"body": "A's", "step": "render"}], endpoint=proxy.endpoint)
    late.go()
    assert stop.reached.wait(60)
    late.freeze()
    successor = fenced.object("r")
    successor.arm(B)
    successor.put(b"B's", B, step="render")
    stop.go.set()
    assert proxy.answered("PUT", 412)
    _stands(fenced, b"B's", B)
    late.thaw()

    assert late.results() == [{"error": "StaleToken", "mark": B.generation}]
    _stands(fenced, b"B's", B)


@pytest.mark.parametrize("rounds", [1, 3])
def test_equal_bytes_never_make_an_old_put_pass(fenced, through, proxy, rounds, aside):
    """A's put is held; B puts other bytes, then the very bytes that A read: A's put is still refused."""
    fenced.object("r").put(b"same", A)
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: through.object("r").put(b"stale", A)) as late:
        assert stop.reached.wait(60)
        for _ in range(rounds):
            fenced.object("r").put(b"other", B)
            fenced.object("r").put(b"same", B)
        stop.go.set()
        assert isinstance(late(), StaleToken)
    assert ("PUT", 412) in proxy.log
    _stands(fenced, b"same", B)


def test_a_delayed_create_is_refused_after_arm_on_an_absent_key(fenced, through, proxy, aside):
    """A's first put is held before the key exists; B arms, and A's create is refused by S3."""
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: through.object("r").put(b"A's", A)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").arm(B)
        stop.go.set()
        assert isinstance(late(), StaleToken)
    assert ("PUT", 412) in proxy.log
    assert fenced.object("r").stat() is None


def test_without_arming_a_delayed_put_is_accepted_until_the_new_owner_writes(fenced, through, proxy, aside):
    """C11: a destination that has heard nothing of B cannot refuse A; once B has written, it does."""
    fenced.object("r").put(b"before", A)
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: through.object("r").put(b"A's", A)) as late:
        assert stop.reached.wait(60)  # B holds the lease by now, and has neither armed nor written
        stop.go.set()
        assert late().seq == 2
    fenced.object("r").put(b"B's", B)
    with pytest.raises(StaleToken):
        fenced.object("r").put(b"A's", A)
    _stands(fenced, b"B's", B)


def test_arm_is_idempotent_and_safe_to_race(fenced):
    """C11: eight handles arm one generation at once; the object is armed, and its content is as it was."""
    fenced.object("r").put(b"kept", A)
    start = threading.Barrier(4)
    errors = []

    def arm():
        start.wait()
        try:
            fenced.object("r").arm(B)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=arm) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    fenced.object("r").arm(B)
    _stands(fenced, b"kept", B)


def test_a_stale_put_and_a_stale_arm_change_nothing_and_tell_the_bearer(
    fenced, s3_client, bucket_name, prefix, holder
):
    """A refused call leaves every byte as it was; the bearer hears the very error that is raised."""
    fenced.object("r").put(b"B's", B)
    before = s3_client.head_object(Bucket=bucket_name, Key=prefix + "r")
    for call in (lambda bearer: fenced.object("r").put(b"A's", bearer), fenced.object("r").arm):
        bearer = holder(A)
        with pytest.raises(StaleToken) as refusal:
            call(bearer)
        assert (refusal.value.token, refusal.value.mark) == (A, B.generation)
        assert not refusal.value.earlier_attempt_unknown
        assert bearer.told == [refusal.value]
    after = s3_client.head_object(Bucket=bucket_name, Key=prefix + "r")
    assert (before["ETag"], before["LastModified"]) == (after["ETag"], after["LastModified"])


def test_generations_are_compared_as_numbers(fenced):
    """C51: 9, then 10, then 9 again: the last is stale."""
    thing = fenced.object("r")
    thing.put(b"9", Token(JOB, 9, "o:9"))
    thing.put(b"10", Token(JOB, 10, "o:10"))
    with pytest.raises(StaleToken):
        thing.put(b"9 again", Token(JOB, 9, "o:9"))
    assert fenced.object("r").get().read() == b"10"


def test_the_same_generation_of_another_owner_is_a_conflict(fenced):
    """A store that issued one number twice is noticed, whichever of the two writes second."""
    fenced.object("r").put(b"first", B)
    for call in (fenced.object("r").arm, lambda bearer: fenced.object("r").put(b"second", bearer)):
        with pytest.raises(GenerationConflict):
            call(Token(JOB, B.generation, "another:2"))
    _stands(fenced, b"first", B)


def test_another_jobs_token_is_refused_with_advice(fenced):
    """An object belongs to the job that wrote it first; another job's generation says nothing here."""
    fenced.object("r").put(b"ours", A)
    for call in (fenced.object("r").arm, lambda bearer: fenced.object("r").put(b"theirs", bearer)):
        with pytest.raises(JobMismatch, match="lease what must have one writer under one job_id") as refusal:
            call(Token("another job", LOW + 1000, "o:1"))
        assert refusal.value.job_id == JOB
    _stands(fenced, b"ours", A)


def test_a_step_is_done_once_across_owners_and_its_repetition_still_raises_the_mark(fenced):
    """B repeats A's step: nothing is put, B is told so, and from then on A is stale."""
    first = fenced.object("r").put(b"x", A, step="render")
    again = fenced.object("r").put(b"x", A, step="render")
    other = fenced.object("r").put(b"x", B, step="render")
    assert (again.repeated, again.seq, again.generation, again.etag) == (
        True,
        first.seq,
        A.generation,
        first.etag,
    )
    assert (other.repeated, other.seq, other.generation, other.etag) == (
        True,
        first.seq,
        A.generation,
        first.etag,
    )
    with pytest.raises(StaleToken):
        fenced.object("r").put(b"x", A, step="render")
    _stands(fenced, b"x", B)


def test_a_step_with_other_content_is_a_mismatch(fenced):
    """A key that was used for other content is refused, to a new owner too; a stale one is "stale"."""
    thing = fenced.object("r")
    thing.put(b"x", A, step="render")
    for token in (A, B):
        with pytest.raises(IdempotencyMismatch):
            thing.put(b"y", token, step="render")
    _stands(fenced, b"x", A)
    thing.arm(B)
    with pytest.raises(StaleToken):
        thing.put(b"y", A, step="render")


def test_a_step_is_recognised_among_the_last_64_writes_only(fenced):
    """The ring has 64 places, arms included: a step that was pushed out is new again, as documented."""
    thing = fenced.object("r")
    thing.put(b"x", A, step="first")
    for _ in range(63):
        thing.put(b"between", A)
    assert thing.put(b"x", A, step="first").repeated
    thing.put(b"between", A)
    assert not thing.put(b"x", A, step="first").repeated


def test_expect_lets_only_the_write_pass_that_saw_the_content(fenced):
    """`expect` counts puts: armings in between don't matter, and 0 stands for no content yet."""
    thing = fenced.object("r")
    thing.arm(A)
    first = thing.put(b"1", A, expect=0)
    fenced.object("r").arm(B)
    assert fenced.object("r").stat().seq == first.seq
    second = fenced.object("r").put(b"2", B, expect=first.seq, step="two")
    with pytest.raises(Conflict):
        fenced.object("r").put(b"3", B, expect=first.seq)
    assert fenced.object("r").put(b"2", B, expect=first.seq, step="two").repeated
    assert fenced.object("r").get().stat.seq == second.seq


def test_concurrent_puts_of_one_owner_all_count_and_with_expect_one_wins(fenced):
    """Threads of one owner: without `expect` each put is applied in turn, with it exactly one."""
    assert sum(isinstance(each, Exception) for each in _race(fenced, 4, lambda i: {})) == 0
    seq = fenced.object("r").stat().seq
    assert seq == 4
    results = _race(fenced, 4, lambda i: {"expect": seq})
    won = [each for each in results if not isinstance(each, Exception)]
    assert len(won) == 1
    assert all(isinstance(each, Conflict) for each in results if each not in won)
    assert fenced.object("r").stat().seq == won[0].seq == seq + 1


def test_processes_that_race_with_one_step_apply_it_once(fenced, worker):
    """Two processes of one owner put one step at once: one puts, the other is told that it was done."""
    racers = [worker(A, [{"body": "x", "step": "render"}]) for _ in range(2)]
    for each in racers:
        each.go()
    results = [each.results()[0] for each in racers]
    assert sorted(each["repeated"] for each in results) == [False, True]
    assert fenced.object("r").stat().seq == 1


def test_an_owners_writes_are_one_request_each_and_a_takeover_costs_one_more(fenced, count):
    """Steady state: one PUT. Takeover: one GET more. Arming again: one GET."""

    def took(call):
        count.clear()
        written = call()
        assert written is None or written.requests == len(count)
        return list(count)

    thing, successor = fenced.object("r"), fenced.object("r")
    assert took(lambda: thing.put(b"1", A)) == ["GetObject", "PutObject"]
    assert took(lambda: thing.put(b"2", A, step="s")) == ["PutObject"]
    assert took(lambda: thing.put(b"2", A, step="s")) == ["GetObject"]
    assert took(lambda: thing.put(b"3", A, expect=2)) == ["PutObject"]
    assert took(lambda: successor.arm(B)) == ["GetObject", "PutObject"]
    assert took(lambda: successor.arm(B)) == ["GetObject"]
    assert took(lambda: successor.put(b"4", B)) == ["PutObject"]
    # A's memory of its last write is worth one refused PUT; then it reads.
    count.clear()
    with pytest.raises(StaleToken):
        thing.put(b"5", A)
    assert count == ["PutObject", "GetObject"]
    count.clear()
    with pytest.raises(StaleToken):
        fenced.object("r").put(b"5", A)
    assert count == ["GetObject"]
    # Another owner's state is most likely not the newest: a handle that changes hands reads first.
    later = Token(JOB, B.generation + 1, "c:1")
    assert took(lambda: successor.put(b"6", later)) == ["GetObject", "PutObject"]


def test_an_armed_object_without_content_is_not_there_for_readers(fenced):
    """Arming an absent key makes a register, and no content; an empty body is content."""
    thing = fenced.object("r")
    with pytest.raises(KeyError):
        thing.get()
    assert thing.stat() is None
    thing.arm(A)
    with pytest.raises(KeyError):
        thing.get()
    assert thing.stat() is None
    thing.put(b"", A)
    assert thing.get().read() == b""
    assert thing.stat().size == 0


def test_get_returns_a_seekable_file_and_what_is_known_of_it(fenced):
    """The reader seeks, and tells sequence, size, digest, type and mark."""
    token = Token("größe/日本", LOW, "wörker:1")
    written = fenced.object("ü/名").put(b"0123456789", token, content_type="text/plain")
    with fenced.object("ü/名").get() as file:
        file.seek(4)
        assert file.read(3) == b"456"
        stat = file.stat
    assert stat == fenced.object("ü/名").stat()
    assert (stat.seq, stat.size, stat.content_type, stat.etag) == (1, 10, "text/plain", written.etag)
    assert (stat.job_id, stat.generation, stat.owner) == (token.job_id, token.generation, token.owner)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a report of somebody's", "doesn't begin as one"),
        (b"", "doesn't begin as one"),
        (b"\x89SFREG\r\n\xff\xff\xff\xff{}", "claims 4294967295 bytes"),
        (b"\x89SFREG\r\n\x00\x00\x00\x02{]", "damaged"),
        (b'\x89SFREG\r\n\x00\x00\x00\x0c{"format":2}', "upgrade it"),
        (b"x" * 1_200_000, "1200000 bytes"),
    ],
)
def test_what_is_not_a_register_is_never_overwritten(fenced, s3_client, bucket_name, prefix, content, words):
    """Somebody's file, or a damaged register, at the key: a clear error, and not a byte changed."""
    s3_client.put_object(Bucket=bucket_name, Key=prefix + "r", Body=content)
    thing = fenced.object("r")
    for call in (thing.get, thing.stat, lambda: thing.arm(A), lambda: thing.put(b"x", A)):
        with pytest.raises(SchemaMismatch, match=words) as refusal:
            call()
        assert "Nothing was overwritten" in str(refusal.value)
    assert s3_client.get_object(Bucket=bucket_name, Key=prefix + "r")["Body"].read() == content


def test_a_bucket_is_no_sink_and_says_so(fenced):
    """`arm=[bucket]` is a TypeError that names what to arm, before anything is acquired."""
    with Leases(MemoryStore()) as leases:
        with pytest.raises(TypeError, match="of a bucket, it is the objects"), leases.hold(JOB, arm=[fenced]):
            raise AssertionError
        assert leases.get(JOB) is None


def _stands(fenced: FencedBucket, content: bytes, token: Token) -> None:
    with fenced.object("r").get() as file:
        assert file.read() == content
        assert (file.stat.generation, file.stat.owner) == (token.generation, token.owner)


def _race(fenced, number, arguments):
    start = threading.Barrier(number)
    results = [None] * number

    def run(i):
        start.wait()
        try:
            results[i] = fenced.object("r").put(f"{i}".encode(), A, **arguments(i))
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
