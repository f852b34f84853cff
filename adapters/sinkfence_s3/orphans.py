"""Orphans: data objects and unfinished uploads beside a register that nothing names, nor ever will."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from sinkfence_s3.answers import code
from sinkfence_s3.data import Data, folder, generation_of
from sinkfence_s3.exchange import Bucket, Exchange
from sinkfence_s3.swap import look


def collect(bucket: Bucket, key: str) -> list[str]:
    """Remove what older generations have left behind, and return the keys that were removed.

    Needs no token, and is safe however late it runs: data of generation g, which isn't named by a register
    that stands at a higher generation, is never named again. The put that sent it is refused, as every write
    of g; and the writes of others name new data, or keep what that register names. So it makes no difference
    that between the reading of the register and a removal a minute may pass, or any number of takeovers: the
    register that was read is out of date then, and what was an orphan by it is an orphan all the same.

    Raises as `FencedBucket.collect`.
    """
    seen = look(Exchange(bucket, key))
    if seen is None:
        return []
    content = seen.register.content
    named = content.body.name if content is not None and isinstance(content.body, Data) else None

    def is_orphan(data_key: str) -> bool:
        name = data_key.removeprefix(folder(key))
        generation = generation_of(name)
        return generation is not None and generation < seen.register.token.generation and name != named

    removed: list[str] = []
    # Uploads first: one that is completed in between is an object by the time that objects are listed.
    for upload in _pages(bucket, "list_multipart_uploads", "Uploads", key):
        if is_orphan(upload["Key"]):
            try:
                bucket.client.abort_multipart_upload(
                    Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"]
                )
            except ClientError as error:
                if code(error) != "NoSuchUpload":  # its owner, or another collector, was faster
                    raise
            else:
                removed.append(upload["Key"])
    for item in _pages(bucket, "list_objects_v2", "Contents", key):
        if is_orphan(item["Key"]):
            bucket.client.delete_object(Bucket=bucket.name, Key=item["Key"])
            removed.append(item["Key"])
    return removed


def _pages(bucket: Bucket, operation: str, of: str, key: str) -> Iterator[dict[str, Any]]:
    pages = bucket.client.get_paginator(operation).paginate(Bucket=bucket.name, Prefix=folder(key))
    for page in pages:
        yield from page.get(of, ())
