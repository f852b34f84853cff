"""What a fenced object costs: in requests, which are counted, and in time, against the same bytes bare."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from typing import Any

from bench.race import Figure, Race, Turn, absent, at_least, at_most, timed
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket, FencedObject
from sinkfence_trials.servers.s3 import S3Server, s3

CLIENTS = 8
KIB, MIB = 1024, 1024 * 1024
NUMBERS = count(1)
"""Generations: each owner here is newer than all before."""
Put = Callable[[bytes], object]


def bench(small: bool) -> Iterator[Race | Figure | str]:
    """The table of the design: requests for a write, time and throughput in steady state, takeover."""
    with s3() as server, ExitStack() as stack:
        client = stack.enter_context(closing(server.client(max_pool_connections=2 * CLIENTS)))
        bucket = FencedBucket(client, server.bucket, prefix="bench/")
        yield "SeaweedFS on this machine, by loopback: a request is shorter than on any network"
        yield from requests(client, bucket)
        if missing := absent("obstore"):
            yield f"obstore's conditional put: not run: no {', '.join(missing)} (extra `bench`)"
        for size, goal, times in ((KIB, 1.15, 10), (64 * KIB, 1.15, 10), (MIB, 1.10, 4)):
            yield Race(
                f"an owner's write, {size // KIB} kB",
                "ms",
                {
                    name: written(put, bytes(size), 2 if small else times)
                    for name, put in ways(server, client, bucket).items()
                },
                "put_object",
                {"fenced put": at_most(goal)},
                rounds=45,  # short turns and many of them: two equal things still differ by some percent
            )
        yield long_ones(client, server.bucket, bucket, 9 * MIB if small else 64 * MIB)
        yield takeovers(client, server.bucket, bucket, 2 if small else 25)
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        yield threads(pool, [ways(server, client, bucket, f"thread {n}") for n in range(CLIENTS)], small)


def token() -> Token:
    """A new owner's."""
    number = next(NUMBERS)
    return Token("bench", number, f"bench:{number}")


def ways(server: S3Server, client: Any, bucket: FencedBucket, name: str = "steady") -> dict[str, Put]:
    """The contestants: each puts again and again to a key of its own."""
    mine, thing = token(), bucket.object(name)
    thing.arm(mine)
    where = {"Bucket": server.bucket, "Key": f"bench/{name}.raw"}

    def by_hand(body: bytes) -> object:
        etag = client.head_object(**where)["ETag"]
        return client.put_object(**where, Body=body, IfMatch=etag)

    last = client.put_object(**where | {"Key": f"bench/{name}.swapped"}, Body=b"")

    def swapped(body: bytes) -> object:
        last.update(
            client.put_object(**where | {"Key": f"bench/{name}.swapped"}, Body=body, IfMatch=last["ETag"])
        )
        return last

    client.put_object(**where, Body=b"")
    put: dict[str, Put] = {
        "put_object": lambda body: client.put_object(**where, Body=body),
        "fenced put": lambda body: thing.put(body, mine),
        "If-Match, the ETag kept": swapped,  # no fence, and what the condition alone costs the store
        "HEAD, then If-Match by hand": by_hand,
    }
    if not absent("obstore"):
        put["obstore, If-Match"] = conditional(server, f"bench/{name}.obstore")
    return put


def conditional(server: S3Server, key: str) -> Put:
    """obstore's compare-and-swap, which is as good as the ETags are: one request with the ETag kept."""
    import obstore

    store = obstore.store.S3Store(
        server.bucket,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region=server.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    last = dict(obstore.put(store, key, b""))

    def put(body: bytes) -> object:
        last.update(obstore.put(store, key, body, mode={"e_tag": last["e_tag"]}))
        return last

    return put


def written(put: Put, body: bytes, times: int) -> Turn:
    """Make a turn: milliseconds for one of some writes."""

    def work() -> None:
        for _ in range(times):
            put(body)

    return timed(work, times=times, unit=0.001)


def long_ones(client: Any, name: str, bucket: FencedBucket, size: int) -> Race:
    """Multipart, by what boto3 itself does with it."""
    body, mine, thing = bytes(size), token(), bucket.object("long")
    thing.arm(mine)
    return Race(
        f"an owner's write, {size // MIB} MB in parts of 8 MB",
        "ms",
        {
            "upload_fileobj": timed(
                lambda: client.upload_fileobj(io.BytesIO(body), name, "bench/long.raw"), unit=0.001
            ),
            "fenced put": timed(lambda: thing.put(io.BytesIO(body), mine), unit=0.001),
        },
        "upload_fileobj",
        {"fenced put": at_most(1.2)},
        rounds=7,
    )


def takeovers(client: Any, name: str, bucket: FencedBucket, times: int) -> Race:
    """A new owner each time: what it does before its first write has taken effect."""
    body, where = bytes(KIB), {"Bucket": name, "Key": "bench/takeover.raw"}
    client.put_object(**where, Body=body)

    def put_alone(_: bytes) -> object:
        return bucket.object("takeover").put(body, token())

    def armed(_: bytes) -> object:
        mine, thing = token(), bucket.object("takeover")
        thing.arm(mine)
        return thing.put(body, mine)

    def by_hand(_: bytes) -> object:
        etag = client.head_object(**where)["ETag"]
        return client.put_object(**where, Body=body, IfMatch=etag)

    return Race(
        "a new owner's first write, 1 kB",
        "ms",
        {
            "put_object": written(lambda _: client.put_object(**where, Body=body), body, times),
            "fenced put (2 requests)": written(put_alone, body, times),
            "arm, then fenced put (3 requests)": written(armed, body, times),
            "HEAD, then If-Match by hand": written(by_hand, body, times),
        },
        "put_object",
    )


def threads(pool: ThreadPoolExecutor, each: list[dict[str, Put]], small: bool) -> Race:
    """All threads at once, each with objects of its own."""
    body, times = bytes(64 * KIB), 2 if small else 20

    def rate(way: str) -> Turn:
        def writer(puts: dict[str, Put]) -> None:
            for _ in range(times):
                puts[way](body)

        def turn() -> float:
            before = time.perf_counter()
            list(pool.map(writer, each))
            return CLIENTS * times / (time.perf_counter() - before)

        return turn

    return Race(
        f"{CLIENTS} threads, 64 kB",
        "writes/s",
        {way: rate(way) for way in each[0]},
        "put_object",
        {"fenced put": at_least(0.85)},
        better="high",
    )


def requests(client: Any, bucket: FencedBucket) -> Iterator[Figure]:
    """What is sent for one write, counted where boto3 makes the requests."""
    first, second = token(), token()
    thing = bucket.object("counted")
    thing.arm(first)

    def figure(title: str, wanted: int, call: Callable[[], object]) -> Figure:
        with counted(client) as sent:
            call()
        return Figure(title, len(sent), "requests", at_most(wanted))

    long, other = bytes(2 * MIB), bucket.object("counted")
    yield figure("an owner's write up to 1 MiB", 1, lambda: thing.put(bytes(MIB), first))
    yield figure("an owner's write of 2 MiB", 2, lambda: thing.put(long, first))
    yield figure("a new owner's arming", 2, lambda: other.arm(second))
    yield figure("its next write", 1, lambda: other.put(b"x", second))
    yield figure("a new owner's first write, unarmed", 2, lambda: unarmed(bucket).put(b"x", token()))
    yield figure("the same of 2 MiB", 3, lambda: unarmed(bucket).put(long, token()))


def unarmed(bucket: FencedBucket) -> FencedObject:
    """The object as another process has it."""
    return bucket.object("counted")


@contextmanager
def counted(client: Any) -> Iterator[list[str]]:
    """The operations that a client sends inside the block."""
    sent: list[str] = []

    def note(operation_name: str, **_: Any) -> None:
        sent.append(operation_name)

    client.meta.events.register("request-created.s3", note)
    try:
        yield sent
    finally:
        client.meta.events.unregister("request-created.s3", note)
