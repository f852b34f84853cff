"""A proxy that holds, loses and forges answers of a real S3 server, and a small S3 with chosen faults."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

WAIT = 60


class Stop:
    """A place where a request or a reply waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.go.wait(WAIT)


class Rule:
    """What happens to the next request of a method, once; `where` is searched for in its path."""

    def __init__(
        self,
        method: str,
        kind: str,
        status: int = 0,
        body: bytes = b"",
        stop: Stop | None = None,
        where: str = "",
    ) -> None:
        self.method, self.kind, self.status, self.body, self.stop = method, kind, status, body, stop
        self.where = where


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients of these tests break their connections on purpose."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def take(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, length: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def end(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class Relay(Handler):
    server: Proxy

    def relay(self) -> None:
        asked = (self.command, self.path)
        if asked in self.server.cached:
            return self.answer(*self.server.cached[asked])
        rule = self.server.rule_for(self.command, self.path)
        kind = rule.kind if rule else "pass"
        if kind == "cut request":
            self.rfile.read(int(self.headers["Content-Length"]) // 2)
            return self.reset()
        body = self.take()
        if rule and kind == "hold request":
            rule.stop.wait()
        if kind == "reset":
            return self.reset()
        if kind == "forge":
            return self.answer(rule.status, [("Content-Type", "application/xml")], rule.body)
        status, headers, reply, length = self.forward(body)
        self.server.note(self.command, status)
        if self.server.caches and self.command in ("GET", "HEAD"):
            self.server.cached[asked] = (status, headers, reply, length)
        if rule and kind == "hold reply":
            rule.stop.wait()
        if kind == "lose reply":
            if rule.stop:
                rule.stop.wait()
            return self.reset()
        if kind in ("cut reply", "end reply"):
            self.answer(status, headers, reply[: len(reply) // 2], len(reply))
            return self.reset() if kind == "cut reply" else self.end()
        if kind == "apply, then forge":
            return self.answer(rule.status, [("Content-Type", "application/xml")], rule.body)
        return self.answer(status, headers, reply, length)

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes, int | None]:
        upstream = http.client.HTTPConnection(self.server.host, self.server.to_port, timeout=WAIT)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection", *self.server.strips):
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            response = upstream.getresponse()
            length = response.getheader("Content-Length") if self.command == "HEAD" else None
            return response.status, response.getheaders(), response.read(), int(length) if length else None
        finally:
            upstream.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = relay  # noqa: N815 - the names that http.server looks for


class Proxy(Server):
    """Between a client and the S3 server."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Relay)
        url = urlsplit(endpoint)
        self.host, self.to_port = url.hostname, url.port
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.log: list[tuple[str, int]] = []
        """What the real server answered, in order."""
        self.rules: list[Rule] = []
        self.strips: tuple[str, ...] = ()
        """Headers, in lower case, that it does not pass on."""
        self.caches = False
        """Whether it answers a GET or HEAD that comes again as it was answered first."""
        self.cached: dict[tuple[str, str], tuple[int, list[tuple[str, str]], bytes, int | None]] = {}
        self.guard = threading.Lock()
        self.noted = threading.Condition()

    def note(self, method: str, status: int) -> None:
        with self.noted:
            self.log.append((method, status))
            self.noted.notify_all()

    def answered(self, method: str, status: int) -> bool:
        """Wait until the real server has answered so."""
        with self.noted:
            return self.noted.wait_for(lambda: (method, status) in self.log, WAIT)

    def rule_for(self, method: str, path: str) -> Rule | None:
        with self.guard:
            for rule in self.rules:
                if rule.method == method and re.search(rule.where, path):
                    self.rules.remove(rule)
                    return rule
        return None

    def once(
        self,
        method: str,
        kind: str,
        status: int = 0,
        body: bytes = b"",
        stop: Stop | None = None,
        where: str = "",
    ) -> None:
        self.rules.append(Rule(method, kind, status, body, stop, where))

    def hold(self, method: str, kind: str, where: str = "") -> Stop:
        stop = Stop()
        self.once(method, kind, stop=stop, where=where)
        return stop


class ToyHandler(Handler):
    """GET, HEAD, PUT, DELETE of an S3 in memory; its server says what it gets wrong."""

    server: Toy

    def put(self) -> None:
        toy, body = self.server, self.take()
        toy.asked.set()
        assert toy.speaks.wait(WAIT)
        if toy.answers.get("PUT"):
            return self.error(*toy.answers["PUT"])
        if toy.answers.get("racers") and body.startswith(b"racer"):
            return self.error(*toy.answers["racers"])
        none_match, match = self.headers.get("If-None-Match"), self.headers.get("If-Match")
        with toy.guard:
            there = toy.objects.get(self.path)
        if match and "bare" in toy.ignores and not match.startswith('"'):
            match = None
        if none_match and "If-None-Match" not in toy.ignores and there is not None:
            if "refusal" in toy.ignores:
                toy.objects[self.path] = (body, [])
            return self.error(412, "PreconditionFailed")
        if match and "If-Match" not in toy.ignores and not ("missing" in toy.ignores and there is None):
            if there is None:
                return self.error(404, "NoSuchKey")
            if match != (toy.etag(there).strip('"') if toy.bare else toy.etag(there)):
                return self.error(412, "PreconditionFailed")
        if toy.gap and body.startswith(b"racer"):
            with toy.guard:
                gap = toy.gaps.setdefault(self.path, threading.Barrier(toy.gap))
            gap.wait(WAIT)  # checked, and everybody else checks too before anybody writes
        if "content" in toy.ignores and there is not None:
            body = there[0]
        meta = [(k, v) for k, v in self.headers.items() if k.lower().startswith("x-amz-meta-")]
        if "metadata" in toy.ignores:
            meta = []
        with toy.guard:
            toy.objects[self.path] = (body, meta)
        self.answer(200, [("ETag", toy.etag((body, meta)))], b"")
        return None

    def get(self) -> None:
        toy = self.server
        if toy.answers.get(self.command):
            return self.error(*toy.answers[self.command])
        if self.path.endswith("?versioning"):
            return self.answer(200, [], b"<VersioningConfiguration/>")
        if self.path.count("/") == 1:  # the bucket's
            return self.answer(200, [("Date", toy.date)] if toy.date else [], b"")
        there = toy.objects.get(self.path)
        if there is None:
            return self.error(404, "NoSuchKey")
        return self.answer(200, [("ETag", toy.etag(there)), *there[1]], there[0])

    def delete(self) -> None:
        if self.server.answers.get("DELETE"):
            return self.error(*self.server.answers["DELETE"])
        self.server.objects.pop(self.path, None)
        return self.answer(204, [], b"")

    def error(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>forged</Message></Error>".encode()
        self.answer(status, [("Content-Type", "application/xml")], body)

    do_PUT, do_GET, do_HEAD, do_DELETE = put, get, get, delete  # noqa: N815


class Toy(Server):
    """An S3 in memory, with faults."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ToyHandler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.objects: dict[str, tuple[bytes, list[tuple[str, str]]]] = {}
        self.guard = threading.Lock()
        self.ignores: set[str] = set()
        self.bare = False
        self.form = '"{}"'
        self.gap = 0
        """How many racers pass the check before one of them writes."""
        self.gaps: dict[str, threading.Barrier] = {}
        self.answers: dict[str, tuple[int, str]] = {}
        """The error, status and code, to each request of a method, or to each PUT of the probe's "racers"."""
        self.asked = threading.Event()
        self.speaks = threading.Event()
        """Puts are answered as long as it is set."""
        self.speaks.set()
        self.date: str | None = None

    def etag(self, there: tuple[bytes, Any]) -> str:
        return self.form.format(hashlib.md5(there[0]).hexdigest())


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Any]]:
    """Run HTTP servers until the test ends."""
    running: list[Server] = []

    def start(server: Server) -> Server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def proxy_to(serve: Any) -> Callable[[str], Proxy]:
    """Make a proxy in front of a server."""
    return lambda endpoint: serve(Proxy(endpoint))


@pytest.fixture
def proxy(proxy_to: Any, s3_server: Any) -> Proxy:
    """A proxy in front of the real server."""
    return proxy_to(s3_server.endpoint)


@pytest.fixture
def toy(serve: Any) -> Toy:
    """A small S3 of our own that gets wrong what the test asks it to."""
    return serve(Toy())


@pytest.fixture
def client_at(s3_server: Any) -> Iterator[Callable[..., Any]]:
    """Make clients for an endpoint that end with the test; without retries unless told."""
    import boto3
    from botocore.config import Config

    made: list[Any] = []

    def make(endpoint: str, **config: Any) -> Any:
        config = {
            "retries": {"total_max_attempts": 1},
            "s3": {"addressing_style": "path"},
            "proxies": {},
        } | config
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=s3_server.access_key,
            aws_secret_access_key=s3_server.secret_key,
            region_name=s3_server.region,
            config=Config(**config),
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def fenced(s3_client: Any, bucket_name: str, prefix: str) -> FencedBucket:
    """The test's own part of the real bucket, reached directly."""
    return FencedBucket(s3_client, bucket_name, prefix=prefix, probe="never")


@pytest.fixture
def through(client_at: Any, bucket_name: str, prefix: str, proxy: Proxy) -> FencedBucket:
    """The same part of the bucket, reached through the proxy, without boto3's retries."""
    return FencedBucket(client_at(proxy.endpoint), bucket_name, prefix=prefix, probe="never")


@pytest.fixture
def count(s3_client: Any) -> Iterator[list[str]]:
    """The requests that the direct client sends, by operation."""
    sent: list[str] = []

    def note(request: Any, operation_name: str, **_: Any) -> None:
        sent.append(operation_name)

    s3_client.meta.events.register("request-created.s3", note)
    yield sent
    s3_client.meta.events.unregister("request-created.s3", note)


@pytest.fixture
def beside(s3_client: Any, bucket_name: str, prefix: str) -> Callable[[], tuple[list[str], list[str]]]:
    """What lies beside the object r: the names of its data objects, and of unfinished uploads to such."""

    def look() -> tuple[list[str], list[str]]:
        where = {"Bucket": bucket_name, "Prefix": f"{prefix}r.d/"}
        objects = s3_client.list_objects_v2(**where).get("Contents", [])
        uploads = s3_client.list_multipart_uploads(**where).get("Uploads", [])
        return [each["Key"].rpartition("/")[2] for each in objects], [
            each["Key"].rpartition("/")[2] for each in uploads
        ]

    return look


class Worker:
    """A process of its own that puts under a token."""

    def __init__(self, **job: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def go(self) -> None:
        assert self.process.stdout.readline() == "ready\n"
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def results(self) -> list[dict[str, Any]]:
        out, _ = self.process.communicate(timeout=WAIT)
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def worker(s3_server: Any, bucket_name: str, prefix: str) -> Iterator[Callable[..., Worker]]:
    """Start workers; none outlives the test."""
    started: list[Worker] = []

    def start(
        token: Token, puts: list[dict[str, Any]], *, endpoint: str | None = None, name: str = "r"
    ) -> Worker:
        started.append(
            Worker(
                endpoint=endpoint or s3_server.endpoint,
                access_key=s3_server.access_key,
                secret_key=s3_server.secret_key,
                bucket=bucket_name,
                prefix=prefix,
                name=name,
                token=[token.job_id, token.generation, token.owner],
                puts=puts,
            )
        )
        return started[-1]

    yield start
    for each in started:
        with suppress(ProcessLookupError):
            each.process.kill()
        each.process.wait()
        each.process.stdin.close()
        each.process.stdout.close()


class Holder:
    """A bearer that remembers what it was told, as a lease does."""

    def __init__(self, token: Token) -> None:
        self.token = token
        self.told: list[Exception] = []

    def lose(self, reason: Exception) -> None:
        self.told.append(reason)


@pytest.fixture
def holder() -> type[Holder]:
    """Make bearers that remember."""
    return Holder


@pytest.fixture
def aside() -> Callable[..., Any]:
    """Run a call in a thread; inside the block, and after it, the value called gives its result or error."""

    @contextmanager
    def run(call: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
        results: list[Any] = []

        def target() -> None:
            try:
                results.append(call())
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=target)
        thread.start()

        def result() -> Any:
            thread.join(WAIT)
            return results[0]

        yield result
        thread.join(WAIT)

    return run
