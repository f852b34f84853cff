"""What a request's watch survives."""

from contextvars import copy_context

from sinkfence import Token
from sinkfence_postgres import guard, watch


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
