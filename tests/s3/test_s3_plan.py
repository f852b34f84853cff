"""The pure decision: every case of what was read against every case of who asks."""

import hashlib

import pytest

from sinkfence.errors import Conflict, GenerationConflict, IdempotencyMismatch, JobMismatch, StaleToken
from sinkfence.tokens import Token
from sinkfence_s3 import plan
from sinkfence_s3.plan import Fate, Seen, fate
from sinkfence_s3.register import Content

A, B, C = Token("j", 7, "a:1"), Token("j", 8, "b:1"), Token("j", 9, "c:1")
TWIN, STRANGER = Token("j", 8, "b:2"), Token("k", 99, "s:1")


def put(token, seen, content, tag, expect, write_id):
    wanted = Content(content, None, hashlib.sha256(content).hexdigest(), 0)
    return plan.put(token, seen, write_id, wanted, tag=tag, expect=expect)


def after(*sends) -> Seen | None:
    """The state after these writes, each (token, write_id, content or None to arm, tag)."""
    seen = None
    for token, write_id, content, tag in sends:
        if content is None:
            step = plan.arm(token, seen, write_id)
        else:
            step = put(token, seen, content, tag, None, write_id)
        seen = Seen(step.register, f'"{write_id}"')
    return seen


BY_B = after((B, "w1", b"x", "t"))


@pytest.mark.parametrize("act", [plan.arm, lambda *args: put(*args[:2], b"y", "t", 99, args[2])])
@pytest.mark.parametrize(
    ("token", "error"), [(A, StaleToken), (TWIN, GenerationConflict), (STRANGER, JobMismatch)]
)
def test_the_fence_comes_before_key_and_expectation(act, token, error):
    """A token that is refused hears why, and nothing of its key or of what it expected."""
    with pytest.raises(error) as refusal:
        act(token, BY_B, "w2")
    assert type(refusal.value) is error


def test_the_key_comes_before_the_expectation():
    """A repetition doesn't find what it expected: it finds its own content."""
    assert isinstance(put(B, BY_B, b"x", "t", 0, "w2"), plan.Done)
    with pytest.raises(IdempotencyMismatch):
        put(B, BY_B, b"y", "t", 0, "w2")
    with pytest.raises(Conflict):
        put(B, BY_B, b"y", "u", 0, "w2")


def test_equal_bytes_without_a_step_are_put_again():
    """Without a step nothing is taken for a repetition."""
    assert put(B, BY_B, b"x", None, None, "w2").register.last.seq == 2


def test_a_repetition_by_a_newer_owner_raises_the_mark_and_keeps_the_content():
    """Its write is an arming: the content, its number and its type stay."""
    send = put(C, BY_B, b"x", "t", None, "w2")
    assert (send.register.token, send.repeats.seq) == (C, 1)
    assert send.register.content == BY_B.register.content
    assert send.register.last.tag is None


def test_a_deletion_takes_the_content_and_leaves_mark_and_ring():
    """Fence first, then the step; where nothing is there it is an arming."""
    send = plan.delete(B, BY_B, "w2", tag=None)
    assert (send.register.content, send.register.token, len(send.register.ring)) == (None, B, 2)
    assert (send.register.last.tag, send.register.last.digest) == (None, None)
    gone = Seen(send.register, '"w2"')
    assert isinstance(plan.delete(B, gone, "w3", tag=None), plan.Done)
    assert plan.delete(C, gone, "w3", tag=None).register.token == C
    assert plan.delete(B, gone, "w3", tag="d").register.last.tag == "d"
    assert put(B, gone, b"y", None, 0, "w3").register.content.seq == 3
    with pytest.raises(IdempotencyMismatch):
        plan.delete(B, BY_B, "w2", tag="t")
    with pytest.raises(StaleToken):
        plan.delete(A, BY_B, "w2", tag="t")


def test_what_becomes_of_a_put_is_foreseen_without_its_content():
    """As far as it goes: the fence, whether the step is known, and else what is expected."""
    assert plan.foresee(B, BY_B, tag="t", expect=99)
    assert not plan.foresee(B, BY_B, tag="u", expect=1)
    assert not plan.foresee(A, None, tag="t", expect=0)
    with pytest.raises(Conflict):
        plan.foresee(B, BY_B, tag="u", expect=0)
    for token, error in ((A, StaleToken), (TWIN, GenerationConflict), (STRANGER, JobMismatch)):
        with pytest.raises(error):
            plan.foresee(token, BY_B, tag="t", expect=99)


def test_arming_again_sends_nothing():
    """Armed or written by this owner: the mark is there."""
    assert isinstance(plan.arm(B, BY_B, "w2"), plan.Done)
    assert isinstance(plan.arm(B, after((B, "w1", None, None)), "w2"), plan.Done)


SENT = put(B, BY_B, b"mine", "u", None, "mine")
CREATED = put(A, None, b"mine", "u", None, "mine")
LATER = [(B, f"later{number}", b"z", None) for number in range(64)]


@pytest.mark.parametrize(
    ("send", "seen", "expected"),
    [
        (SENT, BY_B, Fate.NOT_YET),
        (SENT, after((B, "w1", b"x", "t"), (B, "mine", b"mine", "u")), Fate.APPLIED),
        (SENT, after((B, "w1", b"x", "t"), (B, "mine", b"mine", "u"), *LATER[:63]), Fate.APPLIED),
        (SENT, after((B, "w1", b"x", "t"), (B, "mine", b"mine", "u"), *LATER), Fate.UNKNOWN),
        # The same tag and the same content, by a newer owner: another write all the same.
        (SENT, after((B, "w1", b"x", "t"), (C, "other", b"mine", "u")), Fate.OVERTAKEN),
        (SENT, after((B, "w1", b"x", "t"), (C, "other", None, None)), Fate.OVERTAKEN),
        # Mine, but not where it was sent to: nothing but the place decides.
        (
            SENT,
            after((B, "w1", b"x", "t"), (B, "other", b"x", None), (B, "mine", b"m", None)),
            Fate.OVERTAKEN,
        ),
        (SENT, None, Fate.UNKNOWN),
        (SENT, after((B, "another", b"x", "t")), Fate.UNKNOWN),
        (CREATED, None, Fate.NOT_YET),
        (CREATED, after((A, "mine", b"mine", "u")), Fate.APPLIED),
        (CREATED, after((A, "mine", b"mine", "u"), (B, "w", None, None)), Fate.APPLIED),
        (CREATED, after((B, "w", None, None)), Fate.OVERTAKEN),
    ],
)
def test_the_entry_after_the_base_decides_what_became_of_a_request(send, seen, expected):
    """By write id and place alone; what the ring has forgotten is unknown."""
    assert fate(send, seen) is expected


def test_a_version_whose_etag_is_gone_is_decided_anew():
    """The same bytes under another ETag: what was sent can't be applied any more, and isn't sent again."""
    assert fate(SENT, Seen(BY_B.register, '"rewritten"')) is Fate.OVERTAKEN
    assert fate(SENT, Seen(BY_B.register, BY_B.etag.strip('"'))) is Fate.NOT_YET


def test_a_register_that_went_back_is_no_base():
    """A restored copy with a lower number can't say what became of a later write."""
    long = after((B, "w1", b"x", "t"), (B, "w2", b"x", None), (B, "w3", b"x", None))
    assert fate(put(B, long, b"x", None, None, "mine"), BY_B) is Fate.UNKNOWN
