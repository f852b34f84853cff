"""Deleting: the content goes, the register stays, and with it everything that guards it."""

import pytest
from botocore.exceptions import ClientError

from sinkfence.errors import GenerationConflict, IdempotencyMismatch, JobMismatch, StaleToken
from sinkfence.tokens import Token

A, B = Token("j", 3_000_000_007, "a:1"), Token("j", 3_000_000_008, "b:1")
LONG = b"x" * 1_100_000


@pytest.mark.parametrize("content", [b"short", LONG])
def test_what_was_deleted_is_not_there_and_may_be_put_again(fenced, count, beside, content):
    """Readers find nothing; the count of writes goes on; a data object is removed as well."""
    thing = fenced.object("r")
    thing.put(content, A)
    count.clear()
    thing.delete(A)
    assert count == ["PutObject", "DeleteObject"][: 1 + (content is LONG)]
    with pytest.raises(KeyError):
        fenced.object("r").get()
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])
    assert thing.put(content, A, expect=0).seq == 3
    assert fenced.object("r").get().read() == content


def test_a_deletion_is_safe_to_repeat(fenced, count):
    """A second one finds nothing to do; on an absent key it arms, and is one request from then on."""
    thing = fenced.object("r")
    thing.delete(A)
    assert count == ["GetObject", "PutObject"]
    thing.delete(A)
    assert count == ["GetObject", "PutObject", "GetObject"]
    with pytest.raises(StaleToken):
        fenced.object("r").put(b"x", Token("j", A.generation - 1, "z:1"))


def test_a_deleted_object_still_refuses_older_owners_and_other_jobs(fenced, holder):
    """The fence stays: a tombstone is a register."""
    fenced.object("r").put(b"x", A)
    fenced.object("r").delete(B)
    for token, error in (
        (A, StaleToken),
        (Token("j", B.generation, "b:2"), GenerationConflict),
        (Token("k", B.generation + 1, "k:1"), JobMismatch),
    ):
        for call in (lambda bearer: fenced.object("r").put(b"y", bearer), fenced.object("r").delete):
            bearer = holder(token)
            with pytest.raises(error):
                call(bearer)
            assert len(bearer.told) == (error is not JobMismatch)
    assert fenced.object("r").stat() is None


def test_a_put_under_way_is_refused_after_a_newer_owner_deleted(fenced, through, proxy, aside):
    """A's put is held, B deletes, and S3 refuses what A has sent: nothing comes back to life."""
    fenced.object("r").put(b"before", A)
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: through.object("r").put(b"A's", A)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").delete(B)
        stop.go.set()
    assert type(late()) is StaleToken
    assert fenced.object("r").stat() is None


def test_a_deletion_under_way_is_refused_after_a_newer_owner_has_put(fenced, through, proxy, aside, beside):
    """And takes neither the new content away nor its data."""
    fenced.object("r").put(LONG, A)
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: through.object("r").delete(A)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").put(LONG, B)
        stop.go.set()
    assert type(late()) is StaleToken
    assert fenced.object("r").get().read() == LONG
    assert len(beside()[0]) == 2


def test_a_step_of_a_deletion_is_done_once(fenced):
    """A new owner's repetition doesn't delete what was put since; a step that put something is another."""
    fenced.object("r").put(b"x", A, step="render")
    fenced.object("r").delete(A, step="retire")
    fenced.object("r").put(b"y", A, step="render again")
    fenced.object("r").delete(B, step="retire")
    assert fenced.object("r").get().read() == b"y"
    with pytest.raises(StaleToken):
        fenced.object("r").put(b"z", A)
    for call in (
        lambda: fenced.object("r").delete(B, step="render"),
        lambda: fenced.object("r").put(b"x", B, step="retire"),
    ):
        with pytest.raises(IdempotencyMismatch):
            call()
    # A step of a deletion is remembered, also where there was nothing to delete.
    fenced.object("other").delete(A, step="retire")
    fenced.object("other").put(b"x", A)
    fenced.object("other").delete(A, step="retire")
    assert fenced.object("other").get().read() == b"x"
    # And what was put and then deleted was done: its repetition puts nothing.
    fenced.object("other").put(b"z", A, step="render")
    fenced.object("other").delete(A)
    assert fenced.object("other").put(b"z", A, step="render").repeated
    assert fenced.object("other").stat() is None


def test_a_deletion_whose_answer_was_lost_is_read_back(fenced, through, proxy, holder, aside):
    """Applied, and done once; a newer owner that came since costs the lease."""
    thing = through.object("r")
    thing.put(LONG, A)
    proxy.once("PUT", "lose reply")
    thing.delete(A)
    assert fenced.object("r").stat() is None
    thing.put(LONG, A)
    stop = proxy.hold("PUT", "lose reply")
    bearer = holder(A)
    with aside(lambda: thing.delete(bearer)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").put(b"B's", B)
        stop.go.set()
    assert late() is None
    assert [type(each) for each in bearer.told] == [StaleToken]
    assert fenced.object("r").get().read() == b"B's"


def test_data_that_may_not_be_removed_are_left_to_the_collector(fenced, through, proxy, beside):
    """The deletion itself is done; without s3:DeleteObject the bytes stay beside the register."""
    thing = through.object("r")
    thing.put(LONG, A)
    proxy.once("DELETE", "forge", 403, b"<Error><Code>AccessDenied</Code></Error>")
    thing.delete(A)
    assert fenced.object("r").stat() is None
    assert len(beside()[0]) == 1
    assert fenced.collect("r") == []
    fenced.object("r").arm(B)
    assert len(fenced.collect("r")) == 1


def test_deletions_pass_errors_of_the_client(through, proxy):
    """As puts do."""
    through.object("r").put(b"x", A)
    proxy.once("PUT", "forge", 403, b"<Error><Code>AccessDenied</Code></Error>")
    with pytest.raises(ClientError, match="AccessDenied"):
        through.object("r").delete(A)
