"""Bodies, names and arguments: what is accepted, and what is refused before any request."""

import ctypes
import io
import os
import re
import tempfile
from pathlib import Path

import boto3
import pytest

from sinkfence.errors import SchemaMismatch
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket, doctor

A = Token("j", 1, "a:1")


class Pipe:
    """Reads a little at a time and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self.data = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self.data.read(min(size, 7))


def test_bytes_paths_files_and_streams_are_bodies(fenced, tmp_path, count):
    """Each is read once, from where it stands, to its end."""
    content = bytes(range(256)) * 4
    path = tmp_path / "body"
    path.write_bytes(content)
    thing = fenced.object("r")
    seen = []
    with path.open("rb") as file, path.open("rb", buffering=0) as raw:
        for body in (
            content,
            bytearray(content),
            memoryview(content),
            path,
            file,
            raw,
            io.BytesIO(content),
            Pipe(content),
        ):
            thing.put(body, A, progress=seen.append)
            assert thing.get().read() == content
    assert seen == [len(content)] * 8
    read, write = os.pipe()
    os.write(write, b"piped")
    os.close(write)
    with open(read, "rb") as pipe:
        thing.put(pipe, A)
    assert thing.get().read() == b"piped"


def test_a_file_whose_end_cannot_be_sought_is_a_stream(fenced):
    """Those of /proc say that they can seek, and refuse to go to their end: put as they are read."""
    path = Path("/proc/self/status")
    thing = fenced.object("r")
    thing.put(path, A)
    assert thing.get().read().startswith(b"Name:\t")
    with path.open("rb") as file, path.open("rb", buffering=0) as raw:
        for each in (file, raw):
            assert each.read(5) == b"Name:"
            thing.put(each, A)
            assert thing.get().read().startswith(b"\t")
    fenced.put_once("o", path, step="s")


def test_views_of_any_shape_are_their_bytes(fenced):
    """Of an array without rows, too, which cannot be cast; or of one that is read backwards."""
    thing = fenced.object("r")
    rows = memoryview((ctypes.c_int16 * 2 * 2)((1, 2), (3, 4)))
    for view in (memoryview((ctypes.c_int * 3 * 0)()), rows, memoryview(b"abc")[::-1]):
        thing.put([view, b"."], A)
        assert thing.get().read() == view.tobytes() + b"."
        with thing.open(A) as file:
            assert file.write(view) == view.nbytes
        assert thing.get().read() == view.tobytes()


def test_a_file_that_reads_on_beyond_its_length_is_left_at_once(fenced):
    """As /dev/zero does, which says that it has none."""
    given = []

    class Endless(io.RawIOBase):
        def seekable(self):
            return True

        def tell(self):
            return 0

        def seek(self, offset, whence=0):
            return 0

        def read(self, size):
            given.append(size)
            assert len(given) == 1
            return bytes(size)

    with pytest.raises(ValueError, match="had 0 bytes"):
        fenced.object("r").put(Endless(), A)
    assert fenced.object("r").stat() is None


def test_a_wrapped_file_at_its_end_is_refused_too(fenced):
    """A temporary file's wrapper is no io.IOBase, and is a file all the same."""
    thing = fenced.object("r")
    thing.put(b"a report", A)
    for wrapper in (tempfile.NamedTemporaryFile, tempfile.SpooledTemporaryFile):
        with wrapper() as file:
            file.write(b"another report")
            with pytest.raises(ValueError, match=r"seek\(0\)"):
                thing.put(file, A)
            file.seek(0)
            thing.put(file, A)
    assert thing.get().read() == b"another report"


def test_what_progress_raises_ends_the_put_before_anything_was_sent(fenced):
    """An error of the caller's own never hides that a put was applied."""

    def closed(done: int) -> None:
        raise RuntimeError("the progress bar is closed")

    with pytest.raises(RuntimeError):
        fenced.object("r").put(b"a report", A, progress=closed)
    assert fenced.object("r").stat() is None


def test_a_file_at_its_end_is_refused_with_a_hint(fenced, count):
    """What a writer left behind is not put as nothing; an empty file that stands at 0 is."""
    file = io.BytesIO()
    file.write(b"a report")
    with pytest.raises(ValueError, match=r"seek\(0\)"):
        fenced.object("r").put(file, A)
    with pytest.raises(ValueError, match=r"seek\(0\)"):
        fenced.put_once("o", file, step="s")
    assert count == []
    assert file.tell() == 8
    fenced.object("r").put(io.BytesIO(), A)


@pytest.mark.parametrize("body", ["text", None, 5, ["x"], [b"x", 5], iter([None]), io.StringIO("text")])
def test_text_and_other_things_are_no_bodies(fenced, body, count):
    """A str is neither taken for a path nor encoded by a guess."""
    with pytest.raises(TypeError):
        fenced.object("r").put(body, A)
    assert count == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"step": ""}, ValueError),
        ({"step": 5}, TypeError),
        ({"expect": -1}, ValueError),
        ({"expect": True}, ValueError),
        ({"expect": "1"}, ValueError),
        ({"content_type": "text\nplain"}, ValueError),
        ({"content_type": b"text"}, TypeError),
    ],
)
def test_malformed_arguments_are_refused(fenced, arguments, error, count):
    """Before any request."""
    with pytest.raises(error):
        fenced.object("r").put(b"x", A, **arguments)
    assert count == []


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "a.d",
            "a.d/b",
            "x/a.d/b",
            "a.d/",
            "a\nb",
            "x" * 1025,
            "../r",
            "a/./b",
            ".sinkfence-probe/x",
            "monthly.sinkfence-probe/x",
            "\ud800",
        ),
        *("a/", "a//b", "x.d\\y", "q\\..\\x"),
    ],
)
def test_reserved_and_malformed_names_are_refused(fenced, name):
    """`NAME.d/` belongs to the object NAME, the probe's folder to the probe."""
    with pytest.raises(ValueError):
        fenced.object(name)
    with pytest.raises(ValueError):
        fenced.put_once(name, b"x", step="s")


def test_an_objects_key_leaves_room_for_its_data(fenced, prefix):
    """Data objects' keys are 51 bytes longer; a key that is written once has none."""
    room = 1024 - 51 - len(prefix)
    fenced.object("x" * (room - 2) + "ü")
    with pytest.raises(ValueError, match="973"):
        fenced.object("x" * (room - 1) + "ü")


@pytest.mark.parametrize("bearer", [None, "job", 7])
def test_what_is_no_bearer_is_a_type_error(fenced, count, bearer):
    """A lease or a token is asked for, before any request, and whatever the act."""
    thing = fenced.object("r")
    for call in (
        lambda: thing.arm(bearer),
        lambda: thing.put(b"x", bearer),
        lambda: thing.open(bearer).__enter__(),
        lambda: thing.delete(bearer),
        lambda: thing.delete(bearer, step="s"),
    ):
        with pytest.raises(TypeError, match="a bearer is a lease or a token, not a "):
            call()
    assert count == []


def test_a_store_whose_keys_are_paths_is_told_from_a_lost_race(fenced, s3_client, bucket_name, prefix):
    """It has no `a` beside `a/b`, answers 412 to its creation and 404 to its reading: a typed error."""
    fenced.object("a/b").put(b"1", A)
    other = Token("other", 1, "o:1")
    for call in (
        lambda: fenced.object("a").put(b"2", other),
        lambda: fenced.object("a").arm(other),
        lambda: fenced.put_once("a", b"2", step="s"),
    ):
        with pytest.raises(SchemaMismatch, match="keep keys as paths"):
            call()
    assert fenced.object("a/b").get().read() == b"1"


def test_a_longest_prefix_has_room_for_the_probe(s3_client, bucket_name, prefix):
    """All of what it makes there."""
    prefix += "/".join(["x" * 200] * 5)
    assert FencedBucket(s3_client, bucket_name, prefix=prefix[:899] + "/").object("r").put(b"x", A).seq == 1


@pytest.mark.parametrize(
    "login", ["user:geheim@", "geheim@", "user:geh%2Feim@", ":geheim@", "user:p@geheim@"]
)
def test_an_endpoint_with_a_password_in_it_is_refused(client_at, login):
    """boto3 shows the URL whenever it can't connect: refused at once, and not shown in doing so."""
    client = client_at(f"http://{login}127.0.0.1:9")
    for call in (FencedBucket, doctor):
        with pytest.raises(ValueError, match="endpoint_url") as refusal:
            call(client, "b")
        assert "geh" not in str(refusal.value)


def test_names_and_arguments_of_a_bucket(s3_client):
    """The rule holds for the prefix too, which leaves room for the probe's keys; a resource is no client.

    The doctor refuses what a bucket refuses: what it says of a prefix is of use there alone.
    """
    FencedBucket(s3_client, "b", prefix="x.d").object("name")
    for prefix in ("r.d/", "a//b", "/", "a/../", "a\\b/", "x.sinkfence-probe/"):
        with pytest.raises(ValueError) as refusal:
            FencedBucket(s3_client, "b", prefix=prefix)
        with pytest.raises(ValueError, match=re.escape(str(refusal.value))):
            doctor(s3_client, "b", prefix)
    for prefix, error in (
        (None, TypeError),
        (b"x/", TypeError),
        ("x" * 901, ValueError),
        ("\ud800", ValueError),
    ):
        for call in (FencedBucket, doctor):
            with pytest.raises(error):
                call(s3_client, "b", prefix=prefix)
    for bucket, error in ((None, TypeError), (7, TypeError), ("", ValueError)):
        with pytest.raises(error, match="bucket"):
            FencedBucket(s3_client, bucket)
        with pytest.raises(error, match="bucket"):
            doctor(s3_client, bucket)
    resource = boto3.resource("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    for call in (FencedBucket, doctor):
        with pytest.raises(TypeError, match=r"boto3\.client"):
            call("http://endpoint", "b")
        for thing in (resource, resource.Bucket("b"), resource.Object("b", "k")):
            with pytest.raises(TypeError, match=r"\.meta\.client"):
                call(thing, "b")
    FencedBucket(resource.meta.client, "b")
    with pytest.raises(TypeError, match="a client of dynamodb"):
        FencedBucket(boto3.client("dynamodb", region_name="us-east-1"), "b")
    with pytest.raises(ValueError, match="probe"):
        FencedBucket(s3_client, "b", probe="always")
    with pytest.raises(TypeError):
        FencedBucket(s3_client, "b").object(5)
