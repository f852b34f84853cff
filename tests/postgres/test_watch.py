"""What a request's watch has seen, and what it survives."""

from contextvars import copy_context

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from sinkfence import StaleToken, Token
from sinkfence_postgres import guard, transaction, translated, watch


def test_a_response_that_is_dropped_elsewhere_leaves_the_watch_of_a_request_under_way_alone():
    """A watch that the garbage collector ends in the middle of another request takes nothing from it."""
    dropped, under_way = Token("a", 1, "one"), Token("b", 1, "two")
    abandoned = watch.entered(dropped)
    copy_context().run(abandoned.__enter__)

    with watch.entered(under_way) as mine:
        abandoned.gen.close()  # what the collector does, in whatever thread and context it happens to run
        with watch.block([under_way]) as done:
            done()
        assert mine.committed
    assert watch.over([under_way]) is None


def test_guards_do_not_pile_up(db, token):
    """One connection that is guarded over and over again is remembered once, while its transaction lasts."""
    db.arm(token())

    def work():
        with db.connect() as conn:
            for _ in range(3):
                guard(conn, token())
                conn.commit()
            assert watch.open_here() == []
            guard(conn, token())
            assert len(watch.open_here()) == 1
        assert watch.open_here() == []

    copy_context().run(work)


@pytest.fixture
def watched(db, token):
    """Guard a transaction of a session inside a watch, run a commit of one's own, and return the watch."""
    engine = sa.create_engine(db.url())
    db.arm(token())

    def watched(commit, second=lambda session: None):
        with watch.entered(token()) as mine, orm.Session(engine) as session:
            guard(session, token())
            with translated():
                commit(session)
            second(session)
            return mine.committed, mine.applied

    yield watched
    engine.dispose()


def test_a_rollback_inside_translated_is_no_commit(watched):
    """A block that swallows its error and rolls back has committed nothing, though nothing is open."""

    def fails(session):
        try:
            session.execute(sa.text("select 1/0"))
            session.commit()
        except sa.exc.DBAPIError:
            session.rollback()

    assert watched(fails) == (False, False)
    assert watched(lambda session: session.rollback()) == (False, False)


def test_a_commit_that_is_refused_and_swallowed_is_no_commit(watched):
    """The error of a COMMIT that the block keeps to itself is seen all the same."""

    def fails(session):
        session.execute(sa.text("create temp table x (x int unique deferrable initially deferred)"))
        session.execute(sa.text("insert into x values (1), (1)"))
        try:
            session.commit()
        except sa.exc.IntegrityError:
            session.rollback()

    committed, _ = watched(fails)
    assert not committed


def test_a_session_that_goes_on_reading_has_committed(watched):
    """A transaction that was seen closed stays closed, whatever its session begins next."""
    reads = lambda session: session.execute(sa.text("select 1"))  # noqa: E731
    assert watched(lambda session: session.commit(), reads) == (True, True)


def test_what_was_refused_as_a_whole_was_not_applied(db, token):
    """A refused COMMIT is remembered as such, and leaves no doubt; one before it in the same request does."""
    engine = sa.create_engine(db.url())
    db.arm(token())
    with watch.entered(token()) as mine, orm.Session(engine) as session:
        guard(session, token())
        db.arm(token(1))
        with pytest.raises(StaleToken) as refused, translated():
            session.commit()
    assert mine.refused is refused.value
    assert not mine.applied

    with watch.entered(token(1)) as mine, orm.Session(engine) as session:
        with transaction(session, token(1)):
            pass
        with pytest.raises(StaleToken) as refused, transaction(session, token(1)):
            db.arm(token(2))
    assert mine.refused is refused.value
    assert mine.applied
    engine.dispose()
