"""A fenced service behind nginx: what passes, and what a caller reads where it was set up otherwise."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from racing import NGINX

from sinkfence import NotEnforced, StaleToken, Token
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_http.wire import format_token

pytestmark = pytest.mark.skipif(NGINX is None, reason="not run: no nginx (Debian's nginx-light)")

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "stand-behind-a-proxy.md"


@pytest.fixture(scope="module")
def start_nginx(start_service, tmp_path_factory) -> Callable[[str], Any]:
    """Start nginx with the text of a server block."""

    def start(server: str) -> Any:
        settings = {"nginx": NGINX, "folder": str(tmp_path_factory.mktemp("nginx")), "server": server}
        return start_service("nginx_service.py", json.dumps(settings), name="nginx")

    return start


@pytest.fixture(scope="module", params=["starlette", "flask"])
def upstream(request, door_service) -> Any:
    return door_service(request.param)


@pytest.fixture(scope="module")
def nginx(upstream, start_nginx) -> Any:
    """Nginx as the how-to has it, before the small service."""
    fence = HOW_TO.read_text("utf-8").split("```nginx\n")[1].split("```")[0]
    return start_nginx(fence.replace("http://orders", upstream.url))


def shown(account: int, generation: int = 7, owner: str = "a") -> str:
    return format_token(Token(f"account-{account}", generation, owner))


def test_each_answer_passes_with_its_status_and_its_body(nginx, account):
    """Accepted, armed, 412 stale-token with its problem document, 428: as the service has sent them."""
    path = f"/accounts/{account}"
    assert nginx.ask("POST", path, shown(account)).fencing == "accepted"
    armed = nginx.ask("POST", "/.well-known/fencing-arm", shown(account, 9))
    assert (armed.status, armed.fencing) == (204, "armed")
    stale = nginx.ask("POST", path, shown(account))
    assert (stale.status, stale.fencing) == (412, "stale-token;current=9")
    assert stale.headers["Content-Type"] == "application/problem+json"
    assert stale.json["current"] == 9
    assert nginx.ask("POST", path).fencing == "token-required"
    with requests.Session() as session:
        session.mount(nginx.url, FencedAdapter(Token(f"account-{account}", 8, "b")))
        with pytest.raises(StaleToken):
            session.post(nginx.url + path)


def test_names_with_an_underscore_do_not_pass(nginx, account):
    """`Fencing_Token` is dropped: no token came in. A WSGI application couldn't tell it from the real one."""
    reply = nginx.ask("POST", f"/accounts/{account}", headers=[("Fencing_Token", shown(account))])
    assert (reply.status, reply.fencing) == (428, "token-required")
    both = [("Fencing_Token", shown(account, 99))]
    assert nginx.ask("POST", f"/accounts/{account}", shown(account), headers=both).fencing == "accepted"
    assert nginx.ask("GET", f"/accounts/{account}").json["mark"] == 7


def test_two_tokens_stay_two(nginx, account):
    """Whether the proxy keeps two fields or joins them, it is 400 and nothing has run."""
    value = shown(account)
    assert nginx.ask("POST", f"/accounts/{account}", value, value).fencing == "malformed-token"
    assert nginx.ask("POST", f"/accounts/{account}", f"{value}, {value}").fencing == "malformed-token"
    assert nginx.ask("GET", f"/accounts/{account}").json["effects"] == []


def test_the_largest_token_passes_and_a_larger_one_is_refused_by_the_proxy(nginx, account):
    """2048 bytes fit nginx's default. Beyond its own limit it answers itself, without a Fencing-Status."""
    reply = nginx.ask("POST", f"/accounts/{account}", shown(account).ljust(2049, "x"))
    assert (reply.status, reply.fencing) == (400, "malformed-token")
    value = format_token(Token(f"account-{account}", 7, "\x7e" + "\u20ac" * 66))
    assert nginx.ask("POST", f"/accounts/{account}", value).fencing == "accepted"
    reply = nginx.ask("POST", f"/accounts/{account}", "x" * 9000)
    assert (reply.status, reply.fencing) == (400, None)


def test_half_a_body_never_reaches_the_service(nginx, account):
    """Nginx waits for the whole of it: what its client has left unfinished is not passed on."""
    head = f"POST /accounts/{account} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
    with socket.create_connection(("127.0.0.1", nginx.port)) as client:
        client.sendall(f"{head}Fencing-Token: {shown(account)}\r\n\r\nhalf".encode())
    assert nginx.ask("POST", f"/accounts/{account}", shown(account, 8), body=b"whole").json == {"size": 5}
    assert nginx.ask("GET", f"/accounts/{account}").json["effects"] == [8]


def test_chunked_bodies_and_streams_pass(nginx, account):
    """A chunked upload arrives whole, and a stream leaves whole, its status at the start."""
    reply = nginx.ask("POST", f"/accounts/{account}", shown(account), body=iter([b"ab", b"cde"]))
    assert (reply.json, reply.fencing) == ({"size": 5}, "accepted")
    streamed = nginx.ask("POST", f"/streams/{account}", shown(account))
    assert (streamed.body, streamed.fencing) == (b"01234", "accepted")


def test_the_path_arrives_as_the_handler_reads_it(nginx, account):
    """Encoded, doubled and dotted ways to write a path lead to no other account than the token's."""
    other = shown(account + 10**6)
    for path in (
        f"/accounts/%{ord(str(account)[0]):x}{str(account)[1:]}",
        f"/accounts/00{account}",
        f"/x/../accounts/{account}",
        f"//accounts/{account}",
        f"/accounts/{account}%3Fa",
    ):
        assert nginx.ask("POST", path, other).status in {308, 400, 403, 404}, path
    assert nginx.ask("GET", f"/accounts/{account}").json["effects"] == []


def test_error_pages_of_the_proxy_hide_the_refusal(upstream, start_nginx, account):
    """proxy_intercept_errors takes Fencing-Status away: its worker isn't told that it is stale, and goes on.

    It stays refused. A page that says 200 is no success: NotEnforced.
    """
    location = f"location / {{ proxy_pass {upstream.url}; proxy_intercept_errors on; }}"
    pages = "error_page 412 =200 @sorry; location @sorry { return 200 'sorry'; }"
    for words, expected in ((pages, NotEnforced), ("error_page 412 /none;", None)):
        hiding = start_nginx(f"{location} {words}")
        upstream.ask("POST", "/.well-known/fencing-arm", shown(account, 9))
        with requests.Session() as session:
            session.mount(hiding.url, FencedAdapter(Token(f"account-{account}", 7, "a")))
            if expected:
                with pytest.raises(expected):
                    session.post(f"{hiding.url}/accounts/{account}")
            else:
                assert "Fencing-Status" not in session.post(f"{hiding.url}/accounts/{account}").headers
        assert upstream.ask("GET", f"/accounts/{account}").json["effects"] == []


def test_a_proxy_that_keeps_well_known_to_itself_arms_nothing(upstream, start_nginx, account):
    """A location of its own for certificates often takes /.well-known: arming says that it isn't enforced."""
    location = f"location / {{ proxy_pass {upstream.url}; }} location /.well-known/ {{ return 200; }}"
    keeping = start_nginx(location)
    with requests.Session() as session, pytest.raises(NotEnforced):
        HttpSink(session, keeping.url).arm(Token(f"account-{account}", 7, "a"))


def test_a_proxy_that_drops_the_token_lets_nothing_through(upstream, start_nginx, account):
    """One that sets headers from a list of its own: 428, and nothing has run."""
    dropping = start_nginx(f"location / {{ proxy_pass {upstream.url}; proxy_set_header Fencing-Token ''; }}")
    assert dropping.ask("POST", f"/accounts/{account}", shown(account)).fencing == "token-required"


def test_a_proxy_that_gives_up_before_its_service(start_nginx, hold_wire, upstream, account):
    """Its 504 has no Fencing-Status, and the request may be served yet: no success, and not repeated."""
    wire = hold_wire(upstream)
    impatient = start_nginx(f"location / {{ proxy_pass {wire.url}; proxy_read_timeout 200ms; }}")
    with requests.Session() as session:
        session.mount(impatient.url, FencedAdapter(Token(f"account-{account}", 7, "a")))
        assert session.post(f"{impatient.url}/accounts/{account}").status_code == 504
        assert len(wire.requests) == 1
    wire.release.set()
