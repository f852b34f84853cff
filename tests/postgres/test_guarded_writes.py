"""Each kind of writer, against each way in which a token can be wrong."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from sinkfence.errors import GenerationConflict, NotArmed, SchemaMismatch, StaleToken


def test_the_newest_owner_commits(db, token, holder, write):
    """A guarded transaction of the armed owner commits, as often as it likes."""
    db.arm(token())
    bearer = holder(token())
    write(bearer, "one")
    write(bearer, "two")
    assert db.notes() == ["one", "two"]
    assert bearer.heard == []


def test_commit_itself_is_refused(db, token, holder, write):
    """A successor that arms between write and COMMIT is not kept waiting, and the COMMIT is refused."""
    db.arm(token())
    bearer = holder(token())
    with pytest.raises(StaleToken) as caught:
        write(bearer, "late", between=lambda: db.arm(token(1)))
    assert type(caught.value) is StaleToken
    assert (caught.value.token, caught.value.mark) == (token(), token(1).generation)
    own_commit = any(entry.name.endswith("own_commit") for entry in caught.traceback)
    assert bearer.heard == ([] if own_commit else [caught.value])  # `translated` knows no bearer
    assert db.notes() == []


def test_a_stale_start_is_refused(db, token, holder, write):
    """A stale token is refused before the block runs."""
    db.arm(token(1))
    bearer = holder(token())
    with pytest.raises(StaleToken) as caught:
        write(bearer, between=pytest.fail)
    assert bearer.heard == [caught.value]
    assert db.notes() == []


def test_the_same_number_of_another_owner_is_a_conflict(db, token, holder, write):
    """A store that has issued a number twice is found out: owners are compared as well."""
    db.arm(token(owner="the first"))
    bearer = holder(token(owner="the second"))
    with pytest.raises(GenerationConflict) as caught:
        write(bearer, between=pytest.fail)
    assert bearer.heard == [caught.value]
    assert caught.value.mark == token().generation


def test_what_was_never_armed_is_refused(db, token, holder, write):
    """A token above the mark, or of a job without one, is NotArmed: an unarmed write never raises a mark."""
    bearer = holder(token(1))
    with pytest.raises(NotArmed) as caught:
        write(bearer, between=pytest.fail)
    assert caught.value.mark is None
    db.arm(token())
    with pytest.raises(NotArmed) as caught:
        write(bearer, between=pytest.fail)
    assert (caught.value.token, caught.value.mark) == (token(1), token().generation)
    assert bearer.heard == []
    assert db.mark(token().job_id) == (token().generation, token().owner)


def test_an_exception_in_the_block_rolls_back_and_passes(db, token, write):
    """The user's own exception comes out as it is, and nothing was applied."""
    db.arm(token())
    mine = RuntimeError("mine")

    def fail() -> None:
        raise mine

    with pytest.raises(RuntimeError) as caught:
        write(token(), between=fail)
    assert caught.value is mine
    assert db.notes() == []


def test_a_missing_schema_is_told(db, token, write):
    """Without sinkfence installed there is one line that says what to run."""
    elsewhere = type(db)(urlsplit(db.dsn)._replace(path="/postgres").geturl())
    with pytest.raises(SchemaMismatch, match=r"sinkfence_postgres\.install\(conn\)"):
        write(token(), between=pytest.fail, to=elsewhere)
