"""Tokens, errors, the rule and terms."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import traceback
from datetime import timedelta
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkfence import errors
from sinkfence.errors import GenerationConflict, LeaseHeld, LeaseLost, SinkfenceError, StaleToken
from sinkfence.marks import Mark, MemoryMarks, admit
from sinkfence.terms import Term, boot_time, check_ttl
from sinkfence.tokens import (
    MAX_GENERATION,
    Token,
    check_generation,
    check_text,
    idempotency_key,
    parse_generation,
)

TOKEN = Token("reports/latest", 7, "a:1")


@given(st.integers(1, MAX_GENERATION))
def test_every_generation_reads_back_as_it_is_written(generation: int) -> None:
    """What str() writes of a generation, parse_generation reads."""
    assert parse_generation(str(generation)) == generation


@given(st.text(max_size=20))
def test_nothing_but_the_one_spelling_is_a_generation(text: str) -> None:
    """Whatever parse_generation accepts is exactly how str() would write it."""
    try:
        generation = parse_generation(text)
    except ValueError:
        return
    assert str(generation) == text
    assert check_generation(generation) == generation


@pytest.mark.parametrize(
    "text", ["+10", "010", " 10", "1_0", "١٠", "1e1", "10.0", "1" + "0" * 30, "-1", "", "0", "10\n", "²"]
)
def test_spellings_that_int_would_take_are_refused(text: str) -> None:
    """C51: signs, zeros, blanks, underscores, exponents and other scripts are no generation."""
    with pytest.raises(ValueError, match="generation"):
        parse_generation(text)


@pytest.mark.parametrize(("generation", "error"), [(0, ValueError), (MAX_GENERATION + 1, ValueError)])
def test_a_generation_has_its_range(generation: object, error: type[Exception]) -> None:
    """A generation is from 1 to 10^15 - 1."""
    with pytest.raises(error):
        Token("job", generation, "owner")


@pytest.mark.parametrize("generation", [None, True, 1.0, "1"])
def test_a_generation_is_an_int_and_nothing_else(generation: object) -> None:
    """A bool, a float, a text and None are refused."""
    with pytest.raises(TypeError):
        Token("job", generation, "owner")


@given(st.text(max_size=210))
def test_texts_are_checked_by_bytes_and_control_characters(text: str) -> None:
    """check_text accepts exactly what has 1 to 200 UTF-8 bytes and no control character."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    fine = 1 <= size <= 200 and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text)
    if fine:
        assert check_text("job_id", text) == text
    else:
        with pytest.raises(ValueError, match="job_id"):
            check_text("job_id", text)


@given(st.tuples(st.text("ab:|1", min_size=1, max_size=6), st.text("ab:|1", min_size=1, max_size=6)))
def test_a_key_tells_every_job_and_step_apart(pair: tuple[str, str]) -> None:
    """The key of (job, step) isn't that of another split of the same characters, nor that of the reverse."""
    job, step = pair
    assert len(idempotency_key(job, step)) == 47
    assert idempotency_key(job, step) == Token(job, 3, "x").key(step) == Token(job, 4, "y").key(step)
    if job != step:
        assert idempotency_key(job, step) != idempotency_key(step, job)
    if len(job) > 1:
        assert idempotency_key(job, step) != idempotency_key(job[:-1], job[-1] + step)


def test_errors_survive_pickling_with_their_data() -> None:
    """Errors cross process boundaries whole."""
    samples = [
        StaleToken(TOKEN, 8, earlier_attempt_unknown=True),
        GenerationConflict(TOKEN, 7),
        LeaseHeld("job", "b:2", 1.5),
        LeaseLost(TOKEN, "gone", result={"rows": 1}),
        errors.NotArmed(TOKEN, 3),
        errors.JobCompleted("job", [1]),
        errors.JobMismatch(TOKEN, "other"),
        errors.OutcomeUnknown(),
        errors.GenerationExhausted(),
    ]
    for error in samples:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error) != ""
        assert again.__dict__ == error.__dict__


def test_a_traceback_ends_with_the_page_and_a_line_of_a_log_does_not() -> None:
    """Each class has its page; an error of somebody else's keeps that of the class that it extends."""

    class Ours(StaleToken):
        """A kind of StaleToken that an application knows."""

    error = pickle.loads(pickle.dumps(StaleToken(TOKEN, 8)))
    page = "https://sinkfence.readthedocs.io/en/stable/reference/errors/StaleToken.html"
    assert traceback.format_exception_only(error)[-1] == f"See {page}\n"
    assert "https" not in str(error)
    assert Ours.help_url == StaleToken.help_url == page


def test_every_error_without_data_explains_itself_by_its_docstring() -> None:
    """An error raised bare has its docstring's first line as message."""
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, SinkfenceError) and kind.__init__ is SinkfenceError.__init__:
            assert str(kind()) == (kind.__doc__ or "").splitlines()[0]


def test_an_error_without_docstrings_says_what_it_is_called() -> None:
    """Under `python -OO`, too, no line of a log ends empty."""
    script = "from sinkfence.errors import Conflict, SchemaMismatch; print(Conflict(), SchemaMismatch('old'))"
    done = subprocess.run([sys.executable, "-OO", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "Conflict old\n"


def test_a_text_is_what_it_is_of_whatever_type_of_str() -> None:
    """A job_id, owner or step that is a member of a str Enum is its value, a plain str, from there on."""

    class Job(str, Enum):  # noqa: UP042 - of a StrEnum, str() is the value
        NIGHT = "night"

    token = Token(Job.NIGHT, 1, Job.NIGHT)
    assert [type(each) for each in (token.job_id, token.owner, check_text("step", Job.NIGHT))] == [str] * 3
    assert (token, hash(token)) == (Token("night", 1, "night"), hash(Token("night", 1, "night")))
    assert token.key(Job.NIGHT) == idempotency_key("night", "night")


@given(st.integers(1, 5), st.sampled_from("ab"), st.integers(1, 5), st.sampled_from("ab"))
def test_the_rule(generation: int, owner: str, mark: int, whose: str) -> None:
    """Lower is stale, equal passes for its owner alone, higher raises the mark."""
    token = Token("job", generation, owner)
    if generation < mark or (generation == mark and owner != whose):
        with pytest.raises(GenerationConflict if generation == mark else StaleToken) as refused:
            admit(token, Mark(mark, whose))
        assert refused.value.mark == mark
        assert type(refused.value) is (GenerationConflict if generation == mark else StaleToken)
    else:
        assert admit(token, Mark(mark, whose)) == Mark(generation, owner)


def test_memory_marks_tell_the_bearer_of_a_refusal() -> None:
    """A sink that refuses calls the bearer's lose and raises the same error."""

    class Bearer:
        token = TOKEN
        heard: StaleToken | None = None

        def lose(self, reason: StaleToken) -> None:
            self.heard = reason

    marks, bearer = MemoryMarks(), Bearer()
    marks.arm(Token(TOKEN.job_id, 8, "b:2"))
    with pytest.raises(StaleToken) as refused:
        marks.arm(bearer)
    assert bearer.heard is refused.value
    assert marks.mark(TOKEN.job_id) == Mark(8, "b:2")


def test_a_term_ends_before_the_lease_does() -> None:
    """A term counts from the asking and gives up 2 % of the ttl, at least 10 ms."""
    assert Term(100.0, 30.0).remaining(100.0) == pytest.approx(29.4)
    assert Term(100.0, 0.1).remaining(100.0) == pytest.approx(0.09)
    assert boot_time() <= boot_time()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e12, timedelta(0), 0.0004, 2_592_001])
def test_a_ttl_out_of_range_is_refused(ttl: float) -> None:
    """C80: a ttl is from 0.05 seconds to 30 days."""
    with pytest.raises(ValueError, match="ttl"):
        check_ttl(ttl)


@pytest.mark.parametrize("ttl", [True, "30", None])
def test_a_ttl_of_another_type_is_refused(ttl: object) -> None:
    """C80: a ttl is a timedelta or a number."""
    with pytest.raises(TypeError, match="ttl"):
        check_ttl(ttl)


def test_a_ttl_may_be_a_timedelta() -> None:
    """A timedelta counts in seconds."""
    assert check_ttl(timedelta(minutes=2)) == 120.0
