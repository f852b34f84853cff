"""Collecting: what older generations left is removed, and nothing that a register names, or ever will."""

import threading

import pytest
from botocore.exceptions import ClientError

from sinkfence.errors import SchemaMismatch, StaleToken
from sinkfence.tokens import Token

MIB = 1024 * 1024
A, B, C = (Token("j", 3_000_000_000 + number, f"{number}:1") for number in (7, 8, 9))
LONG = b"x" * (MIB + 1)


def name_of(fenced):
    return fenced.object("r").stat().data_key.rpartition("/")[2]


def test_what_older_generations_left_is_removed_and_the_rest_stays(
    fenced, s3_client, bucket_name, prefix, beside
):
    """Replaced contents and unfinished uploads of lower generations; not the present one's, nor others'."""
    folder = f"{prefix}r.d/"
    for token in (A, A, B):
        fenced.object("r").put(LONG, token)
    s3_client.create_multipart_upload(Bucket=bucket_name, Key=f"{folder}{A.generation}-left")
    s3_client.create_multipart_upload(Bucket=bucket_name, Key=f"{folder}{B.generation}-left")
    for name in (
        "notes.txt",
        f"{A.generation}",
        f"0{A.generation}-x",
        f"{A.generation}-x/y",
        "1-" + "x" * 65,
    ):
        s3_client.put_object(Bucket=bucket_name, Key=folder + name, Body=b"somebody's")
    kept = name_of(fenced)
    removed = fenced.collect("r")
    assert sorted(key.removeprefix(folder)[:11] for key in removed) == [f"{A.generation}-"] * 3
    assert fenced.collect("r") == []
    objects, uploads = beside()
    assert kept in objects
    assert len(objects) == 6
    assert uploads == [f"{B.generation}-left"]
    assert fenced.object("r").get().read() == LONG


def test_content_that_an_older_generation_put_is_kept_as_long_as_it_is_named(fenced, beside):
    """Armed by B and C, and never replaced: A's data are the content."""
    fenced.object("r").put(LONG, A)
    for token in (B, C):
        fenced.object("r").arm(token)
        assert fenced.collect("r") == []
    assert fenced.object("r").get().read() == LONG
    fenced.object("r").delete(C)
    assert beside() == ([], [])


def test_nothing_is_collected_where_there_is_no_register(fenced, s3_client, bucket_name, prefix, beside):
    """An absent key condemns nothing; somebody else's object is an error."""
    s3_client.put_object(Bucket=bucket_name, Key=f"{prefix}r.d/1-left", Body=b"")
    assert fenced.collect("r") == []
    s3_client.put_object(Bucket=bucket_name, Key=f"{prefix}r", Body=b"somebody's")
    with pytest.raises(SchemaMismatch):
        fenced.collect("r")
    assert beside()[0] == ["1-left"]
    with pytest.raises(ValueError):
        fenced.collect("r.d/1-left")


def test_a_collector_that_slept_through_takeovers_removes_orphans_only(fenced, through, proxy, aside, beside):
    """It reads the register, sleeps while B and C put, and wakes: what it condemned is an orphan still."""
    fenced.object("r").put(LONG, A)
    fenced.object("r").put(LONG, A)
    fenced.object("r").arm(B)
    named = name_of(fenced)
    stop = proxy.hold("DELETE", "hold request")
    with aside(lambda: through.collect("r")) as late:
        assert stop.reached.wait(60)
        fenced.object("r").put(LONG, B)
        fenced.object("r").put(LONG, C)
        stop.go.set()
    assert len(late()) == 1
    objects, _ = beside()
    assert named in objects
    assert name_of(fenced) in objects
    assert len(objects) == 3
    assert len(fenced.collect("r")) == 2
    assert fenced.object("r").get().read() == LONG


def test_an_upload_of_the_present_generation_is_never_touched(fenced, through, proxy, aside):
    """A put is under way, its data are there and not named yet: a collector leaves them alone."""
    fenced.object("r").arm(B)
    stop = proxy.hold("PUT", "hold request", where=r"/r$")
    with aside(lambda: through.object("r").put(LONG, B)) as late:
        assert stop.reached.wait(60)
        assert fenced.collect("r") == []
        stop.go.set()
    assert late().seq == 2
    assert fenced.object("r").get().read() == LONG


def test_an_unarmed_successors_upload_is_never_touched(fenced, through, proxy, aside):
    """The register still stands at A: neither A's data nor B's are of a lower generation."""
    fenced.object("r").put(LONG, A)
    stop = proxy.hold("PUT", "hold request", where=r"/r$")
    with aside(lambda: through.object("r").put(LONG + b"B's", B)) as late:
        assert stop.reached.wait(60)
        assert fenced.collect("r") == []
        stop.go.set()
    assert late().seq == 2
    assert fenced.object("r").get().read() == LONG + b"B's"


def test_collectors_that_race_share_the_work(fenced, s3_client, bucket_name, prefix, beside):
    """Each orphan is gone once all are done, and nobody fails over what another removed."""
    for _ in range(3):
        fenced.object("r").put(LONG, A)
        s3_client.create_multipart_upload(Bucket=bucket_name, Key=f"{prefix}r.d/{A.generation}-left")
    fenced.object("r").delete(B)
    start, errors = threading.Barrier(4), []

    def collect():
        start.wait()
        try:
            fenced.collect("r")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert beside() == ([], [])


def test_a_refused_put_whose_data_could_not_be_removed_is_collected(fenced, through, proxy, aside, beside):
    """C31: the removal after a refusal is a courtesy; what it leaves is an orphan."""
    stop = proxy.hold("PUT", "hold request", where=r"/r$")
    proxy.once("DELETE", "forge", 403, b"<Error><Code>AccessDenied</Code></Error>")
    with aside(lambda: through.object("r").put(LONG, A)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").arm(B)
        stop.go.set()
    assert type(late()) is StaleToken
    assert len(beside()[0]) == 1
    assert len(fenced.collect("r")) == 1


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_errors_of_the_client_pass(fenced, through, proxy, method):
    """No permission to list or to delete: boto3's own error."""
    fenced.object("r").put(LONG, A)
    fenced.object("r").put(b"short", B)
    proxy.once(method, "forge", 403, b"<Error><Code>AccessDenied</Code></Error>", where=r"/r\.d/|prefix=")
    with pytest.raises(ClientError, match="AccessDenied"):
        through.collect("r")
