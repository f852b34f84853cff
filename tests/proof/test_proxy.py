"""The fault proxy does to real sockets what it says."""

from __future__ import annotations

import http.client
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sinkfence_trials.torture.proxy import FaultProxy

PATIENCE = 10


class Upper(socketserver.StreamRequestHandler):
    """Answers each line in capitals, and keeps what it heard."""

    def handle(self):
        try:
            for line in self.rfile:
                self.server.heard.put(line)
                self.wfile.write(line.upper())
        except ConnectionError:
            self.server.resets.release()


class Heard:
    """Lines in the order in which they arrived; a test can wait for one."""

    def __init__(self):
        self.lines, self.more = [], threading.Condition()

    def put(self, line):
        with self.more:
            self.lines.append(line)
            self.more.notify_all()

    def wait_for(self, line):
        with self.more:
            assert self.more.wait_for(lambda: line in self.lines, PATIENCE)


@pytest.fixture
def upstream():
    """A line server on a free port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Upper) as server:
        server.daemon_threads = True
        server.heard, server.resets = Heard(), threading.Semaphore(0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(upstream):
    """A proxy in front of it."""
    with FaultProxy(*upstream.server_address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    """A connection through it."""
    with connect(proxy) as client:
        yield client


def connect(proxy):
    client = socket.create_connection(proxy.address, timeout=PATIENCE)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def ask(client, line):
    client.sendall(line)
    return answer(client, len(line))


def answer(client, size):
    got = b""
    while len(got) < size and (more := client.recv(size - len(got))):
        got += more
    return got


def silent(client):
    """Nothing has come: looked at without waiting."""
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(PATIENCE)
    return True


def test_it_forwards_and_counts(proxy, client):
    """What goes one way over a connection until the direction changes is one message."""
    assert ask(client, b"one\n") == b"ONE\n"
    assert ask(client, b"two\n") == b"TWO\n"
    with connect(proxy) as other:
        assert ask(other, b"three\n" * 3) == b"THREE\n" * 3
    once, again, other = ((1, 1), (1, 2), (2, 1))
    assert proxy.seen() == [
        (connection, direction, message)
        for connection, message in (once, again, other)
        for direction in ("request", "reply")
    ]


def test_a_request_is_written_and_not_delivered(proxy, client, upstream):
    """The upstream does not hear a request that is held, and hears it when it is released."""
    stop = proxy.stop("request", 2)
    ask(client, b"one\n")
    client.sendall(b"two\n")
    stop.wait()
    assert upstream.heard.lines == [b"one\n"]
    assert silent(client)
    stop.release()
    assert answer(client, 4) == b"TWO\n"


def test_a_reply_is_not_delivered(proxy, client, upstream):
    """The upstream has done what was asked, and the client does not know."""
    stop = proxy.stop("reply", 1)
    client.sendall(b"one\n")
    stop.wait()
    assert upstream.heard.lines == [b"one\n"]
    assert silent(client)
    stop.release()
    assert answer(client, 4) == b"ONE\n"


def test_what_is_behind_waits_and_others_pass(proxy, client, upstream):
    """Nothing overtakes on the connection that is held; another connection goes on."""
    stop = proxy.stop("request", 1)
    client.sendall(b"one\n")
    stop.wait()
    client.sendall(b"two\n")
    with connect(proxy) as other:
        assert ask(other, b"three\n") == b"THREE\n"
    stop.release()
    assert answer(client, 8) == b"ONE\nTWO\n"
    assert upstream.heard.lines == [b"three\n", b"one\n", b"two\n"]


def test_its_address_stays_when_the_upstream_is_another(proxy, client, upstream):
    """New connections lead where it was told to, those that have been taken where they did."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        ask(client, b"one\n")
        proxy.lead_to(*other.getsockname())
        with connect(proxy) as late:
            late.sendall(b"two\n")
            arrived, _ = other.accept()
            with arrived:
                assert answer(arrived, 4) == b"two\n"
        assert ask(client, b"three\n") == b"THREE\n"
    assert upstream.heard.lines == [b"one\n", b"three\n"]


def test_a_request_outlives_its_sender(proxy, client, upstream):
    """A held request is delivered when it is released, though its sender has died with a reset."""
    stop = proxy.stop("request", 1)
    client.sendall(b"zombie\n")
    stop.wait()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    stop.release()
    upstream.heard.wait_for(b"zombie\n")


def test_a_cut_at_a_request_resets_both_sides(proxy, client, upstream):
    """The client's read fails at once, and the upstream never hears the request."""
    stop = proxy.stop("request", 2)
    ask(client, b"one\n")
    client.sendall(b"two\n")
    stop.wait()
    stop.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert upstream.resets.acquire(timeout=PATIENCE)
    assert upstream.heard.lines == [b"one\n"]


def test_a_cut_at_a_reply_leaves_the_effect(proxy, client, upstream):
    """The request was heard, and its sender learns nothing but that the connection is gone."""
    stop = proxy.stop("reply", 1)
    client.sendall(b"one\n")
    stop.wait()
    stop.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert upstream.heard.lines == [b"one\n"]


def test_a_torn_reply_begins_and_does_not_go_on(proxy, client):
    """The client has what came first, and then hears that the connection is gone."""
    stop = proxy.stop("reply", 1)
    client.sendall(b"one\n")
    stop.wait()
    stop.tear()
    assert answer(client, 4) == b"ONE\n"
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_reply_is_lost_and_the_next_is_not(proxy, client):
    """A dropped message never comes; the connection lives on."""
    stop = proxy.stop("reply", 1)
    client.sendall(b"one\n")
    stop.wait()
    stop.drop()
    assert ask(client, b"two\n") == b"TWO\n"


def test_all_connections_are_reset_while_nothing_moves(proxy, client):
    """A reset reaches a client that only reads, though the proxy's threads wait in recv()."""
    ask(client, b"one\n")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_new_connections_are_refused_and_taken_again(proxy, client):
    """A refusing proxy leaves open connections alone, and comes back at the same address."""
    assert ask(client, b"zero\n") == b"ZERO\n"  # so that it is open, and does not wait to be taken
    address = proxy.address
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    assert ask(client, b"one\n") == b"ONE\n"
    proxy.accept()
    assert proxy.address == address
    with connect(proxy) as other:
        assert ask(other, b"two\n") == b"TWO\n"


def test_an_upstream_that_is_not_there_is_a_reset():
    """A client whose upstream refuses is reset, and not left waiting."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = nobody.getsockname()
    with FaultProxy(*address) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_a_delay_keeps_the_order(proxy, client):
    """A slow network delivers everything, in order."""
    proxy.delay(0.01)
    assert ask(client, b"one\ntwo\n") == b"ONE\nTWO\n"


def test_the_end_of_a_stream_is_passed_on(proxy, client):
    """A client that has no more to say still hears the answer."""
    client.sendall(b"one\n")
    client.shutdown(socket.SHUT_WR)
    assert answer(client, 100) == b"ONE\n"


def test_close_ends_what_is_held(upstream):
    """Closing the proxy leaves neither a held message nor a thread."""
    with FaultProxy(*upstream.server_address) as proxy, connect(proxy) as client:
        stop = proxy.stop("request", 1)
        client.sendall(b"one\n")
        stop.wait()
        proxy.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert upstream.heard.lines == []
    assert [thread for thread in threading.enumerate() if thread.name == "fault proxy"] == []


def test_a_message_that_does_not_come_is_an_error(proxy):
    """Waiting for a stop that is never reached does not pass for success."""
    with pytest.raises(TimeoutError, match="did not come"):
        proxy.stop("request", 1).wait(0.01)


class Continue(BaseHTTPRequestHandler):
    """Sends 100 Continue when it is asked to, and echoes the body."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_100_continue_passes_and_is_not_counted():
    """A client that waits for 100 Continue gets it though the reply is held, and it is no message."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Continue) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with FaultProxy(*server.server_address) as proxy, connect(proxy) as client:
            stop = proxy.stop("reply", 1)
            client.sendall(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
            assert answer(client, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(b"body")
            stop.wait()
            stop.release()
            reply = http.client.HTTPResponse(client, method="PUT")
            reply.begin()
            assert (reply.status, reply.read()) == (200, b"body")
            reply.close()
            assert proxy.seen() == [(1, "request", 1), (1, "reply", 1)]
        server.shutdown()
        thread.join()


def test_the_next_message_that_begins_so(proxy, client, upstream):
    """Held wherever it comes, once; others pass, and forgetting lets go of it."""
    stop = proxy.next("request", b"put")
    assert ask(client, b"get\n") == b"GET\n"
    client.sendall(b"put 1\n")
    stop.wait()
    with connect(proxy) as other:
        assert ask(other, b"put 2\n") == b"PUT 2\n"
    assert silent(client)
    proxy.forget()
    assert answer(client, 6) == b"PUT 1\n"
    assert proxy.seen() == [(1, "reply", 2)]
