"""What a request's watch survives."""

from contextvars import copy_context

from sinkfence import Token
from sinkfence_postgres import watch


def test_a_response_that_is_dropped_elsewhere_leaves_the_watch_of_a_request_under_way_alone():
    """A watch that the garbage collector ends in the middle of another request takes nothing from it."""
    dropped, under_way = Token("a", 1, "one"), Token("b", 1, "two")
    abandoned = watch.entered(dropped)
    copy_context().run(abandoned.__enter__)

    with watch.entered(under_way):
        abandoned.gen.close()  # what the collector does, in whatever thread and context it happens to run
        with watch.block([under_way]) as done:
            done()
        assert watch.committed(under_way)
    assert not watch.committed(under_way)
