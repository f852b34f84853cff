"""A file that is written in a block is put whole, whatever its writer makes of errors, or not at all."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sinkfence.errors import StaleToken
from sinkfence.tokens import Token

MIB = 1024 * 1024
A, B = Token("j", 3_000_000_007, "a:1"), Token("j", 3_000_000_008, "b:1")
PIECE = bytes(range(256)) * 4096 * 8
"""One part."""
SENDINGS = 4
"""How often a part is sent."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No pause between the sendings of one request."""
    monkeypatch.setattr("sinkfence_s3.delivery.pause", lambda turn: None)


def write(file, goes_on):
    """Write eight pieces; whoever goes on writes each until it is taken, or leaves it out."""
    for _ in range(8):
        for _ in range(3):
            try:
                file.write(PIECE)
                break
            except Exception:
                if goes_on == "without":
                    break


@pytest.mark.parametrize("goes_on", ["without", "again"])
@pytest.mark.parametrize("fault", ["first part", "create"])
def test_a_write_that_failed_and_was_caught_ends_the_put(fenced, through, proxy, beside, goes_on, fault):
    """What was taken of it has gaps: nothing more is taken, and the end of the block puts nothing."""
    fenced.object("r").put(b"before", A)
    for _ in range(SENDINGS):
        if fault == "create":
            proxy.once("POST", "reset", where=r"\?uploads")
        else:
            proxy.once("PUT", "reset", where="partNumber=1(&|$)")
    with pytest.raises(ValueError, match="an earlier write of this content failed"):
        with through.object("r").open(A) as file:
            write(file, goes_on)
    assert proxy.rules == []
    assert file.written is None
    assert fenced.object("r").get().read() == b"before"
    assert fenced.object("r").stat().seq == 1
    assert beside() == ([], [])


def test_a_stale_writer_that_hears_nothing_of_it_puts_nothing(fenced, beside, holder):
    """Its bearer was told by the first write; the second is not sent again."""
    fenced.object("r").arm(B)
    bearer = holder(A)
    with pytest.raises(ValueError, match="an earlier write of this content failed"):
        with fenced.object("r").open(bearer) as file:
            for _ in range(3):
                with contextlib.suppress(StaleToken, ValueError):
                    file.write(PIECE * 2)
    assert len(bearer.told) == 1
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])


def test_who_leaves_the_block_waits_for_the_part_under_way_and_not_for_it_to_be_sent_again(
    through, proxy, beside, aside, monkeypatch
):
    """The part's answer is lost after its writer has given up: its four sendings would be in vain."""
    leaving = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *args, **kwargs):
            leaving.set()
            super().shutdown(*args, **kwargs)

    monkeypatch.setattr("sinkfence_s3.uploads.ThreadPoolExecutor", Pool)
    through.object("r").arm(A)
    proxy.log.clear()
    part = proxy.hold("PUT", "lose reply", where="partNumber=1(&|$)")

    def give_up():
        with through.object("r").open(A) as file:
            file.write(PIECE + b"x")
            assert part.reached.wait(20)
            raise RuntimeError

    with aside(give_up) as result:
        assert leaving.wait(20)
        part.go.set()
        assert isinstance(result(), RuntimeError)
    assert proxy.log.count(("PUT", 200)) == 1
    assert beside() == ([], [])


def test_a_piece_that_another_thread_could_not_write_is_not_left_out(fenced, through, proxy, beside):
    """Its error may stay in that thread: the end of the block puts nothing, and nothing is left."""
    opened = proxy.hold("POST", "hold request", where=r"\?uploads")
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match="another thread"):
            with through.object("r").open(A) as file:
                first = pool.submit(file.write, PIECE + b"x")
                assert opened.reached.wait(20)
                with pytest.raises(ValueError):
                    file.write(b"y")
                opened.go.set()
                assert first.result() == len(PIECE) + 1
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])
