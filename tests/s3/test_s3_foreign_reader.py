"""What the format's page says is enough to read a fenced object, and to write one, without our code."""

import ast
import hashlib
import json
import re
import secrets
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from sinkfence.errors import StaleToken
from sinkfence.tokens import Token

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "s3-object-format.md"
A, B = Token("j", 3_000_000_001, "a:1"), Token("j", 3_000_000_002, "b:1")
LONG = bytes(range(256)) * 4200  # beyond the 1 MiB that a register holds


@pytest.fixture(scope="module")
def code():
    """The reader that the page shows."""
    (found,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found


@pytest.fixture
def get(s3_client, bucket_name):
    """A bare GET of an S3 object's bytes."""
    return lambda key: s3_client.get_object(Bucket=bucket_name, Key=key)["Body"].read()


@pytest.fixture
def foreign(code, get, prefix):
    """Read an object of this test with the page's reader."""
    names = {}
    exec(code, names)
    return lambda name: names["read_register"](get, prefix + name)


def test_it_is_twenty_lines_of_plain_python(code):
    """It imports two modules of the standard library, and is short enough to be carried over."""
    function = ast.parse(code).body[-1]
    assert function.end_lineno - function.lineno <= 20
    imported = [node.names[0].name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import)]
    assert imported == ["hashlib", "json"]
    assert not [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]


@pytest.mark.parametrize("body", [b"", b"x", LONG], ids=["empty", "inline", "external"])
def test_it_reads_what_was_put_armed_and_deleted(fenced, foreign, body):
    """Inline or beside it: the same bytes as our reader's, and the mark; nothing where there is nothing."""
    thing = fenced.object("r")
    thing.arm(A)
    assert foreign("r")[1] is None
    thing.put(body, A, content_type="text/plain")
    fenced.object("r").arm(B)
    header, content = foreign("r")
    assert content == body == thing.get().read()
    assert (header["generation"], header["owner"], header["size"]) == (B.generation, B.owner, len(body))
    assert header["content"] == ("data" if len(body) > 262_144 else "inline")
    fenced.object("r").delete(B)
    assert foreign("r")[1] is None


def test_it_notices_damage(fenced, foreign, s3_client, bucket_name, prefix):
    """Data that was changed behind the register's back, and what is no register, are no content."""
    fenced.object("r").put(LONG, A)
    key = fenced.object("r").stat().data_key
    s3_client.put_object(Bucket=bucket_name, Key=key, Body=LONG[::-1])
    s3_client.put_object(Bucket=bucket_name, Key=prefix + "other", Body=b"a report")
    with pytest.raises(ValueError, match="damaged content"):
        foreign("r")
    with pytest.raises(ValueError, match="not a register"):
        foreign("other")


class Foreign:
    """A writer that follows the page's section "Writing", in the client's own words."""

    def __init__(self, client, bucket, key, job, generation, owner):
        self.client, self.where = client, {"Bucket": bucket, "Key": key}
        self.mine = {"job_id": job, "generation": generation, "owner": owner}

    def read(self):
        try:
            found = self.client.get_object(**self.where)
        except self.client.exceptions.NoSuchKey:
            return None, b"", None
        frame = found["Body"].read()
        end = 12 + int.from_bytes(frame[8:12], "big")
        return json.loads(frame[12:end]), frame[end:], found["ETag"]

    def write(self, base, content=None):
        """Put a content, or arm, on the state that was read; a stale writer stops."""
        header, old, etag = base
        header = header or {"format": 1, "content": "none", "content_seq": 0, "seq": 0, "ring": []}
        if header.get("generation", 0) > self.mine["generation"]:
            return "stale"
        seq, write_id, digest = header["seq"] + 1, secrets.token_hex(16), None
        new = {"content_type": None, "size": 0, "sha256": None} | header | self.mine
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()
            new |= {"content": "inline", "content_seq": seq, "size": len(content), "sha256": digest}
            new.pop("data", None)
        ring = [*header["ring"], [seq, write_id, None, self.mine["generation"], digest]][-64:]
        new |= {"seq": seq, "write_id": write_id, "tag": None, "previous_etag": etag, "ring": ring}
        encoded = json.dumps(new).encode()
        payload = old if content is None else content
        body = b"\x89SFREG\r\n" + len(encoded).to_bytes(4, "big") + encoded + payload
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        try:
            self.client.put_object(**self.where, Body=body, **condition)
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"]
        return "written"


def test_a_foreign_writer_and_ours_fence_each_other(fenced, s3_client, bucket_name, prefix):
    """Two writers of one job, one of them made after the page: the older is refused, either way."""
    ours = fenced.object("r")
    older = Foreign(s3_client, bucket_name, prefix + "r", "j", 1, "foreign:1")
    assert older.write(older.read()) == "written"  # armed
    assert ours.stat() is None
    assert older.write(older.read(), b"the foreign one's") == "written"
    assert ours.get().read() == b"the foreign one's"
    late = older.read()
    ours.arm(Token("j", 2, "ours:2"))
    assert ours.get().read() == b"the foreign one's"
    assert older.write(late, b"late") == 412
    assert older.write(older.read(), b"late") == "stale"
    ours.put(LONG, Token("j", 2, "ours:2"))
    newer = Foreign(s3_client, bucket_name, prefix + "r", "j", 3, "foreign:3")
    assert newer.write(newer.read()) == "written"
    assert ours.get().read() == LONG
    with pytest.raises(StaleToken):
        ours.put(b"late", Token("j", 2, "ours:2"))
    assert newer.write(newer.read(), b"newest") == "written"
    stat = ours.stat()
    assert (stat.generation, stat.owner, stat.seq) == (3, "foreign:3", 6)
