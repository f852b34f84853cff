"""Bodies that are streamed: from files, pipes and iterables, and written inside a block."""

import gzip
import hashlib
import io
import os
import threading
import tracemalloc
import zipfile

import pytest

from sinkfence.errors import IdempotencyMismatch, StaleToken
from sinkfence.tokens import Token

MIB = 1024 * 1024
A, B = Token("j", 3_000_000_007, "a:1"), Token("j", 3_000_000_008, "b:1")
LONG = bytes(range(256)) * 4096 * 9
"""Two parts."""
STREAM = int(os.environ.get("SINKFENCE_TEST_STREAM_MIB", "64"))


def stands(fenced, content):
    with fenced.object("r").get() as file:
        return file.read() == content


def test_every_kind_of_body_may_be_long(fenced, tmp_path, beside):
    """Bytes and views of them, paths, files from where they stand, pipes, lists and generators."""
    path = tmp_path / "body"
    path.write_bytes(b"head" + LONG)
    read, write = os.pipe()

    def fill():
        with open(write, "wb") as end:
            end.write(LONG)

    threading.Thread(target=fill).start()
    short = LONG[:MIB]
    with path.open("rb") as file, path.open("rb", buffering=0) as raw, open(read, "rb") as pipe:
        file.seek(4)
        raw.seek(4)
        for body, content in (
            (short, short),
            (bytearray(short), short),
            (memoryview(bytearray(short)).cast("I"), short),
            (memoryview(short)[::-1], short[::-1]),
            ([short[:5], b"", bytearray(short[5:])], short),
            (file, LONG),
            (raw, LONG),
            (pipe, LONG),
            ((LONG[start : start + 99_999] for start in range(0, len(LONG), 99_999)), LONG),
            (path, b"head" + LONG),
        ):
            fenced.object("r").put(body, A)
            assert stands(fenced, content)
        assert file.tell() == raw.tell() == 4 + len(LONG)


@pytest.mark.parametrize("content", [b"short", LONG[: MIB + 1], LONG])
def test_progress_adds_up_to_what_is_sent_and_its_error_ends_the_put(fenced, beside, content):
    """Numbers of bytes, as `tqdm.update` takes them; an error of the caller's own never hides a put."""
    seen = []
    fenced.object("r").put(content, A, progress=seen.append)
    assert sum(seen) == len(content)

    def closed(size):
        raise RuntimeError("the progress bar is closed")

    left = beside()
    with pytest.raises(RuntimeError):
        fenced.object("r").put(content, A, progress=closed)
    assert fenced.object("r").stat().seq == 1
    assert beside() == left


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_whose_length_changes_while_it_is_put_is_refused(fenced, tmp_path, beside, change):
    """A truncated object is never put, nor one that ends in the middle of somebody's write."""
    path = tmp_path / "body"
    path.write_bytes(LONG)

    def meddle(size):
        with path.open("r+b") as file:
            file.truncate(len(LONG) + change)

    class Watched(io.FileIO):
        def read(self, size):
            if self.tell():
                meddle(size)
            return super().read(size)

    with Watched(path) as file:
        with pytest.raises(ValueError, match="nothing may write to it"):
            fenced.object("r").put(file, A)
        assert file.tell() == 0  # put it again, if that was all
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])


def test_a_stream_that_breaks_puts_nothing(fenced, beside):
    """Its own error passes, as does that of a piece that is no bytes."""

    def breaking():
        yield LONG
        raise OSError("the source broke")

    for body, error in ((breaking(), OSError), (iter([LONG, "text"]), TypeError)):
        with pytest.raises(error):
            fenced.object("r").put(body, A)
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])


def test_a_long_stream_is_sent_and_read_in_bounded_memory(fenced):
    """Whatever its length, five parts of 8 MiB and little more are held. SINKFENCE_TEST_STREAM_MIB=1024."""
    block = bytes(range(256)) * 4096
    digest = hashlib.sha256()

    def stream():
        for number in range(STREAM):
            piece = number.to_bytes(4, "big") + block[4:]
            digest.update(piece)
            yield piece

    tracemalloc.start()
    try:
        fenced.object("r").put(stream(), A)
        _, put = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        with fenced.object("r").get() as file:
            while file.read(MIB):
                pass
            assert file.stat.sha256 == digest.hexdigest()
            assert file.stat.size == STREAM * MIB
        _, got = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{STREAM} MiB: at most {put / MIB:.1f} MiB held while putting, {got / MIB:.1f} while reading")
    assert put < 60 * MIB
    assert got < 12 * MIB


@pytest.mark.parametrize("content", [b"", b"short", LONG[: MIB + 1], LONG])
def test_what_is_written_in_a_block_is_put_when_it_ends(fenced, content, beside):
    """Until then readers have the old content; small content is one request, in the register."""
    fenced.object("r").put(b"before", A)
    with fenced.object("r").open(A, step="render") as file:
        assert (file.writable(), file.readable(), file.seekable()) == (True, False, False)
        half = len(content) // 2
        assert file.write(content[:half]) == half
        file.write(bytearray(content[half:]))
        assert file.tell() == len(content)
        file.flush()
        assert stands(fenced, b"before")
        assert file.written is None
    assert (file.written.seq, file.written.repeated) == (2, False)
    assert stands(fenced, content)
    assert len(beside()[0]) == (len(content) > MIB)
    assert fenced.object("r").put(content, A, step="render").repeated


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("content", [b"short", LONG, LONG * 2])
def test_an_exception_in_the_block_puts_nothing_and_leaves_nothing(fenced, content, error, beside):
    """No register is changed, no part is left."""
    fenced.object("r").put(b"before", A)
    with pytest.raises(error):
        with fenced.object("r").open(A) as file:
            file.write(content)
            raise error
    assert stands(fenced, b"before")
    assert fenced.object("r").stat().seq == 1
    assert beside() == ([], [])
    assert file.closed
    assert file.written is None


def test_the_file_of_a_block_may_be_wrapped_and_closed(fenced):
    """What closes it early ends the content; the block alone puts it."""
    thing = fenced.object("r")
    with thing.open(A) as file, io.TextIOWrapper(file, encoding="utf-8") as text:
        text.write("größe")
    assert stands(fenced, "größe".encode())
    with thing.open(A) as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("name", b"content")
    with thing.get() as file, zipfile.ZipFile(file) as archive:
        assert archive.read("name") == b"content"


def test_wrappers_of_a_file_are_closed_before_its_block_ends(fenced):
    """Several of them, in the same `with`, as the docs say: all bytes are there."""
    thing = fenced.object("r")
    with (
        thing.open(A) as file,
        gzip.GzipFile(fileobj=file, mode="wb") as packed,
        io.BufferedWriter(packed) as buffered,
        io.TextIOWrapper(buffered, encoding="utf-8") as text,
    ):
        text.write("größe")
    assert gzip.decompress(thing.get().read()).decode() == "größe"


@pytest.mark.parametrize("fault", ["text", "lines", "closed"])
def test_a_piece_that_was_refused_and_caught_ends_the_put(fenced, fault):
    """It would be missing in what is put: nothing is."""
    fenced.object("r").put(b"before", A)
    with pytest.raises(ValueError), fenced.object("r").open(A) as file:
        file.write(b"head")
        if fault == "closed":
            file.close()
        with pytest.raises((TypeError, ValueError)):
            file.writelines([b"one", "two"]) if fault == "lines" else file.write(
                b"late" if fault == "closed" else "two"
            )
    assert stands(fenced, b"before")


def test_a_buffer_may_be_used_again_after_it_was_written(fenced):
    """As writers of formats do: what was written is what counts."""
    buffer = bytearray(b"first")
    with fenced.object("r").open(A) as file:
        file.write(buffer)
        buffer[:] = b"other"
        file.write(memoryview(buffer))
    assert stands(fenced, b"firstother")


def test_a_stale_writer_is_refused_when_its_first_part_is_sent_or_at_the_end(fenced, beside, holder, count):
    """Small content at the end of the block, long content before a part of it is sent."""
    fenced.object("r").arm(B)
    for content in (b"short", LONG):
        bearer = holder(A)
        count.clear()
        with pytest.raises(StaleToken) as refusal:
            with fenced.object("r").open(bearer) as file:
                file.write(content)
        assert bearer.told == [refusal.value]
        assert count == ["GetObject"]
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])


def test_a_writer_whose_upload_was_collected_is_stale(fenced, beside):
    """Its next write, or the end of its block, says so."""
    thing = fenced.object("r")
    thing.put(b"before", A)
    with pytest.raises(StaleToken):
        with thing.open(A) as file:
            file.write(LONG)
            fenced.object("r").arm(B)
            fenced.collect("r")
            file.write(LONG)
    assert stands(fenced, b"before")
    assert beside() == ([], [])


def test_a_step_in_a_block_is_done_once(fenced, beside):
    """Written again with the same content it is a repetition; with other content a mismatch."""
    for token in (A, B):
        with fenced.object("r").open(token, step="render") as file:
            file.write(LONG)
        assert file.written.repeated == (token is B)
    with pytest.raises(IdempotencyMismatch):
        with fenced.object("r").open(B, step="render") as file:
            file.write(LONG + b"x")
    assert [len(each) for each in beside()] == [1, 0]
