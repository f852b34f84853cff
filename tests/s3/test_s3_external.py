"""Content that is too long for a register: sent beside it, named by it, and fenced all the same."""

import hashlib
import random

import pytest
from botocore.exceptions import ClientError

from sinkfence.errors import (
    Conflict,
    GenerationConflict,
    IdempotencyMismatch,
    LeaseLost,
    OutcomeUnknown,
    SchemaMismatch,
    StaleToken,
)
from sinkfence.tokens import Token
from sinkfence_s3.register import MAX_INLINE

KIB, MIB = 1024, 1024 * 1024
A, B = Token("j", 3_000_000_007, "a:1"), Token("j", 3_000_000_008, "b:1")
LONG = random.Random(1).randbytes(17 * MIB)
"""Three parts."""
SHORTER = LONG[: MIB + 1]
"""One request."""
REGISTER, DATA = r"/r$", r"/r\.d/"


@pytest.mark.parametrize(
    ("size", "requests"),
    [
        (0, 1),
        (MAX_INLINE - 1, 1),
        (MAX_INLINE, 1),
        (MAX_INLINE + 1, 2),
        (5 * MIB, 2),
        (8 * MIB, 2),
        (8 * MIB + 1, 5),
        (64 * MIB, 11),
    ],
)
def test_content_of_any_size_is_put_and_read(fenced, s3_client, bucket_name, count, size, requests):
    """One request up to 1 MiB, two up to 8 MiB, then three and one for each 8 MiB."""
    content = (LONG * 4)[:size]
    thing = fenced.object("r")
    thing.arm(A)
    count.clear()
    written = thing.put(content, A, content_type="text/plain")
    assert written.requests == len(count) == requests
    with thing.get() as file:
        stat = file.stat
        assert file.read() == content
    assert (stat.size, stat.sha256) == (size, hashlib.sha256(content).hexdigest())
    assert stat == thing.stat()
    assert (stat.data_key is None) == (size <= MAX_INLINE)
    if stat.data_key:
        raw = s3_client.get_object(Bucket=bucket_name, Key=stat.data_key)
        assert (raw["ContentLength"], raw["ContentType"]) == (size, "text/plain")
        raw["Body"].close()


@pytest.mark.parametrize("size", [MIB + 1, 20 * MIB])
def test_a_stale_put_is_refused_before_a_byte_is_sent(fenced, count, holder, size):
    """C31: mark at 2, caller at 1: one look, whatever the size; the bearer is told."""
    fenced.object("r").arm(B)
    for token, error in ((A, StaleToken), (Token("j", B.generation, "b:2"), GenerationConflict)):
        bearer = holder(token)
        count.clear()
        with pytest.raises(error) as refusal:
            fenced.object("r").put(LONG[:size], bearer)
        assert count == ["GetObject"]
        assert bearer.told == [refusal.value]


@pytest.mark.parametrize("content", [SHORTER, LONG])
def test_a_put_that_becomes_stale_while_it_is_sent_is_refused_at_the_swap(
    fenced, through, proxy, aside, beside, holder, content
):
    """C31: all of it is there when a new owner arms: S3 refuses the swap, and what was sent is removed."""
    fenced.object("r").put(b"before", A)
    stop = proxy.hold("PUT", "hold request", where=REGISTER)
    bearer = holder(A)
    with aside(lambda: through.object("r").put(content, bearer)) as late:
        assert stop.reached.wait(60)
        assert len(beside()[0]) == 1
        fenced.object("r").arm(B)
        stop.go.set()
    assert type(late()) is StaleToken
    assert bearer.told == [late()]
    assert ("PUT", 412) in proxy.log
    assert beside() == ([], [])
    assert fenced.object("r").get().read() == b"before"


def test_a_put_whose_upload_a_newer_owner_has_collected_is_stale(
    fenced, through, proxy, aside, beside, holder
):
    """B arms and collects while a part of A's is under way: A's upload is gone, and A hears why."""
    thing = through.object("r")
    thing.put(b"before", A)
    stop = proxy.hold("PUT", "hold request", where="partNumber=2")
    bearer = holder(A)
    with aside(lambda: thing.put(iter([LONG]), bearer)) as late:
        assert stop.reached.wait(60)
        (_, [upload]) = beside()
        fenced.object("r").arm(B)
        assert [key.rpartition("/")[2] for key in fenced.collect("r")] == [upload]
        stop.go.set()
    assert type(late()) is StaleToken
    assert bearer.told == [late()]
    assert beside() == ([], [])


@pytest.mark.parametrize(("method", "where"), [("PUT", "partNumber=2"), ("POST", "uploadId=")])
def test_an_upload_that_was_aborted_by_others_puts_nothing(
    fenced, through, proxy, s3_client, bucket_name, prefix, aside, beside, method, where
):
    """A lifecycle rule aborts it while a part or the completion is under way: S3's error, no cut object."""
    thing = through.object("r")
    thing.put(b"before", A)
    stop = proxy.hold(method, "hold request", where=where)
    with aside(lambda: thing.put(LONG, A)) as result:
        assert stop.reached.wait(60)
        (found,) = s3_client.list_multipart_uploads(Bucket=bucket_name, Prefix=f"{prefix}r.d/")["Uploads"]
        s3_client.abort_multipart_upload(Bucket=bucket_name, Key=found["Key"], UploadId=found["UploadId"])
        stop.go.set()
    with pytest.raises(ClientError, match="NoSuchUpload"):
        raise result()
    assert fenced.object("r").get().read() == b"before"
    assert beside() == ([], [])


@pytest.mark.parametrize("looks", range(1, 7))
def test_a_lease_that_ends_while_parts_are_sent_stops_the_upload(fenced, beside, count, looks):
    """The term is looked at before each request; nothing is put, and nothing is left."""

    class Ending:
        seen = 0

        @property
        def token(self):
            self.seen += 1
            if self.seen > looks:
                raise LeaseLost(A, "its term is over")
            return A

        def lose(self, reason):
            raise AssertionError

    with pytest.raises(LeaseLost):
        fenced.object("r").put(LONG, Ending())
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])
    assert count.count("UploadPart") <= max(looks - 2, 0)


def test_a_step_that_was_done_is_not_sent_again(fenced, count, beside):
    """Its content is read and compared, bytes or a stream; a new owner's repetition raises the mark."""
    first = fenced.object("r").put(LONG, A, step="render")
    for body, token in ((LONG, A), (iter([LONG]), A), (LONG, B), (iter([LONG]), B)):
        count.clear()
        seen = []
        again = fenced.object("r").put(body, token, step="render", progress=seen.append)
        assert (again.repeated, again.seq, again.generation) == (True, first.seq, A.generation)
        assert "UploadPart" not in count
        assert sum(seen) == len(LONG)
    with pytest.raises(StaleToken):
        fenced.object("r").put(LONG, A, step="render")
    with pytest.raises(IdempotencyMismatch):
        fenced.object("r").put(LONG[:-1], B, step="render")
    assert [len(each) for each in beside()] == [1, 0]
    assert fenced.object("r").get().read() == LONG


def test_a_repetition_that_is_noticed_at_the_swap_is_removed_again(fenced, through, proxy, aside, beside):
    """Two threads put one step at once: one content stands, the other's was sent in vain and is removed."""
    fenced.object("r").arm(A)
    stop = proxy.hold("PUT", "hold request", where=REGISTER)
    with aside(lambda: through.object("r").put(SHORTER, A, step="render")) as late:
        assert stop.reached.wait(60)
        first = fenced.object("r").put(SHORTER, A, step="render")
        stop.go.set()
    assert (late().repeated, late().seq) == (True, first.seq)
    assert beside() == ([fenced.object("r").stat().data_key.rpartition("/")[2]], [])


def test_what_is_expected_is_compared_before_the_content_is_sent(fenced, count, beside):
    """And again at the swap, by the register that S3 is asked to replace."""
    thing = fenced.object("r")
    first = thing.put(SHORTER, A, expect=0)
    count.clear()
    with pytest.raises(Conflict):
        fenced.object("r").put(LONG, A, expect=0)
    assert count == ["GetObject"]
    # What the handle remembers refuses nothing: somebody may have put what is expected.
    second = fenced.object("r").put(SHORTER, A, expect=first.seq)
    assert thing.put(SHORTER, A, expect=second.seq).seq == second.seq + 1
    assert len(beside()[0]) == 3


def test_expect_that_fails_at_the_swap_leaves_nothing(fenced, through, proxy, aside, beside):
    """Another thread of the owner puts while the content is sent: Conflict, and what was sent is removed."""
    first = fenced.object("r").put(b"1", A)
    stop = proxy.hold("PUT", "hold request", where=DATA)
    with aside(lambda: through.object("r").put(SHORTER, A, expect=first.seq)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").put(b"2", A)
        stop.go.set()
    assert type(late()) is Conflict
    assert beside() == ([], [])


def test_an_unknown_fate_of_the_swap_keeps_the_data(fenced, through, proxy, beside):
    """The register may name them: they stay, and the step finds them later."""
    thing = through.object("r")
    thing.arm(A)
    proxy.once("PUT", "lose reply", where=REGISTER)
    for _ in range(3):
        proxy.once("GET", "reset")
    with pytest.raises(OutcomeUnknown):
        thing.put(LONG, A, step="render")
    assert fenced.object("r").get().read() == LONG
    assert through.object("r").put(LONG, A, step="render").repeated
    assert [len(each) for each in beside()] == [1, 0]


def test_arming_and_small_puts_leave_long_content_as_it_is_until_it_is_replaced(fenced, count):
    """An arming keeps the data's name under the new generation, and moves no data."""
    fenced.object("r").put(LONG, A)
    named = fenced.object("r").stat().data_key
    count.clear()
    fenced.object("r").arm(B)
    assert count == ["GetObject", "PutObject"]
    assert fenced.object("r").stat().data_key == named
    assert fenced.object("r").get().read() == LONG
    fenced.object("r").put(b"short", B)
    assert fenced.object("r").stat().data_key is None


def test_a_reader_that_is_overtaken_by_writer_and_collector_reads_the_new_content(
    fenced, through, proxy, aside
):
    """The register was read, then its data were replaced and collected: the 404 sends the reader back."""
    fenced.object("r").put(SHORTER, A)
    stop = proxy.hold("GET", "hold request", where=DATA)
    with aside(lambda: through.object("r").get().read()) as late:
        assert stop.reached.wait(60)
        fenced.object("r").put(LONG, B)
        assert len(fenced.collect("r")) == 1
        stop.go.set()
    assert late() == LONG


def test_a_reader_whose_content_is_collected_while_it_reads_is_told(fenced):
    """It is never given another content's bytes: Conflict, read again."""
    fenced.object("r").put(LONG, A)
    with fenced.object("r").get() as file:
        assert file.read(10) == LONG[:10]
        fenced.object("r").put(SHORTER, B)
        fenced.collect("r")
        file.seek(16 * MIB)
        with pytest.raises(Conflict):
            file.read(10)


def test_a_reader_seeks_by_ranges_and_asks_only_for_what_it_reads(fenced, count):
    """Seeking alone makes no request; the register and the data's beginning are one each."""
    fenced.object("r").put(LONG, A)
    count.clear()
    with fenced.object("r").get() as file:
        assert file.seek(0, 2) == len(LONG)
        assert file.read(1) == b""
        assert file.seek(0) == 0
        assert file.read(5) == LONG[:5]
        assert count == ["GetObject"] * 2
        for place in (len(LONG) - 7, 5 * MIB + 1):
            file.seek(place)
            assert file.read(7) == LONG[place : place + 7]
        assert file.seek(3, 1) == 5 * MIB + 11
        assert count == ["GetObject"] * 4
        with pytest.raises(ValueError):
            file.seek(-1)
    with fenced.object("r").get() as file:
        lines = hashlib.sha256()
        for line in file:
            lines.update(line)
        assert lines.hexdigest() == file.stat.sha256


def test_a_connection_that_breaks_while_reading_is_made_again(fenced, through, proxy):
    """The reader goes on where it was, a bounded number of times."""
    fenced.object("r").put(LONG, A)
    proxy.once("GET", "cut reply", where=DATA)
    proxy.once("GET", "cut reply", where=DATA)
    assert through.object("r").get().read() == LONG


@pytest.mark.parametrize(("changed", "when"), [(None, "get"), (LONG[:-1], "get"), (LONG[1:] + b"x", "read")])
def test_data_that_were_changed_by_other_means_are_never_taken_for_the_content(
    fenced, s3_client, bucket_name, changed, when
):
    """Removed, cut, or other bytes of the same length: SchemaMismatch, at the latest with the last byte."""
    fenced.object("r").put(LONG, A)
    where = {"Bucket": bucket_name, "Key": fenced.object("r").stat().data_key}
    if changed is None:
        s3_client.delete_object(**where)
    else:
        s3_client.put_object(**where, Body=changed)
    if when == "get":
        with pytest.raises(SchemaMismatch, match="damaged"):
            fenced.object("r").get()
    else:
        with fenced.object("r").get() as file:
            with pytest.raises(SchemaMismatch, match="damaged"):
                file.read()
