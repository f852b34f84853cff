"""What one server reads otherwise than another: none of it lets a write in that has no token of its own."""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
from typing import Any

import httpx
import pytest

from sinkfence import Token
from sinkfence_http.wire import format_token


@pytest.fixture(params=["uvicorn", "gunicorn", "hypercorn"])
def service(request, start_race) -> Any:
    return start_race(request.param)


@pytest.fixture
def written(race_database, account):
    """The generations that have written for this test's account."""

    def rows() -> list[int]:
        found = race_database.execute("select generation from payment where account = %s", [account])
        return sorted(generation for (generation,) in found)

    return rows


def shown(account: int, generation: int = 7) -> str:
    return format_token(Token(f"account-{account}", generation, "a"))


def request(account: int, *lines: str, method: str = "POST", path: str = "") -> bytes:
    """Write a request by hand, with these lines in its head."""
    head = [f"{method} {path or f'/postgres/{account}'} HTTP/1.1", "Host: a", "Content-Length: 0", *lines]
    return "\r\n".join([*head, "", ""]).encode("latin-1")


def exchange(service: Any, *requests: bytes) -> list[tuple[int, str | None]]:
    """Send requests in one piece over one connection; return what each was answered, as far as it goes."""
    answers = []
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(b"".join(requests))
        file = connection.makefile("rb")
        for _ in requests:
            line = file.readline()
            if not line:
                break
            headers = http.client.parse_headers(file)
            if headers["Transfer-Encoding"] == "chunked":
                while (size := int(file.readline(), 16)) or file.readline() != b"\r\n":
                    file.read(size + 2)
            else:
                file.read(int(headers["Content-Length"] or 0))
            answers.append((int(line.split(b" ")[1]), headers["Fencing-Status"]))
            if headers["Connection"] == "close":
                break
    return answers


@pytest.mark.parametrize(
    "lines",
    [
        ["Fencing-Token: {0}", "Fencing-Token: {1}"],
        ["Fencing-Token: {0}", "fencing-token: {0}"],
        ["Fencing-Token: {0}, {1}"],
        ["Fencing-Token: {0},", " {1}"],  # folded: one field over two lines
        ["Fencing-Token : {0}"],
        ["Fencing_Token: {0}"],
        ["Fencing-Token\x00: {0}"],
        ["Fencing-Token: {0}\x00"],
        ["Fencing-Token: {0};"],
        ["Fencing-Token:"],
        ["X-Fencing-Token: {0}"],
        ["Cookie: Fencing-Token={0}"],
        ["X-HTTP-Method-Override: GET"],
        ["Connection: Fencing-Token", "X: {0}"],
    ],
)
def test_what_is_no_token_in_one_field_lets_nothing_in(service, account, written, lines):
    """Doubled, joined, folded, misspelt, empty, elsewhere: refused by the server or at the door."""
    text = [line.format(shown(account), shown(account, 8)) for line in lines]
    ((status, fencing),) = exchange(service, request(account, *text))
    assert status in {400, 428}
    assert fencing in {None, "token-required", "malformed-token"}
    assert written() == []


def test_a_token_counts_for_its_own_request_only(service, account, written):
    """Of two requests on one connection the second has no token: 428, whoever's task or thread serves it."""
    with_token = request(account, f"Fencing-Token: {shown(account)}")
    answers = exchange(service, with_token, request(account))
    assert answers[0] == (200, "accepted")
    assert answers[1:] in ([], [(428, "token-required")])  # gunicorn's threads may close in between
    assert written() == [7]


@pytest.mark.parametrize("path", ["{0}", "00{0}", "%", "{0}/"])
def test_whatever_the_path_the_handler_s_own_number_decides(service, account, written, path):
    """Percent-encoded or padded: what is this account to the handler takes no other account's token."""
    digits = str(account)
    spelt = "".join(f"%3{digit}" for digit in digits) if "%" in path else path.format(digits)
    stranger = format_token(Token(f"account-{account + 10**6}", 7, "a"))
    ask = request(account, f"Fencing-Token: {stranger}", path=f"/postgres/{spelt}")
    ((_, fencing),) = exchange(service, ask)
    assert fencing in {"job-mismatch", None}
    assert written() == []


def test_arming_below_a_mount_is_the_mounted_service_s(service, account):
    """POST alone arms, at that path alone: a GET there, or one that ends like it, is the application's."""
    arm = "/postgres/.well-known/fencing-arm"
    token = f"Fencing-Token: {shown(account, 9)}"
    ((status, fencing),) = exchange(service, request(account, token, path=f"{arm}/x"))
    assert fencing != "armed"
    assert status != 204
    ((status, fencing),) = exchange(service, request(account, token, path=arm))
    assert (status, fencing) == (204, "armed")
    ((_, fencing),) = exchange(service, request(account, f"Fencing-Token: {shown(account)}"))
    assert fencing == "stale-token;current=9"


def test_over_http_2_a_newer_owner_is_heard(start_race, account, written):
    """Names in lower case, and of two fields one list: what is in time passes, what is late doesn't."""
    url = f"{start_race('hypercorn').url}/postgres/{account}"
    answers = []
    for tokens in ([], [9], [7], [9, 9], [9]):
        # A connection each: hypercorn 0.18 breaks one on which it has answered before the request's end came.
        with httpx.Client(http1=False, http2=True, trust_env=False) as client:
            headers = [("Fencing-Token", shown(account, generation)) for generation in tokens]
            answer = client.post(url, headers=headers)
        assert answer.http_version == "HTTP/2"
        answers.append((answer.status_code, answer.headers["Fencing-Status"]))
    assert answers == [
        (428, "token-required"),
        (200, "accepted"),
        (412, "stale-token;current=9"),
        (400, "malformed-token"),
        (200, "accepted"),
    ]
    assert written() == [9, 9]


@pytest.mark.parametrize("version", [1, 2])
def test_a_body_whose_length_wsgi_is_not_told_is_not_taken_for_none(start_service, tmp_path, version):
    """As by hypercorn: it would be lost, and another one under the same key be given its answer."""
    url = start_service("echo_service.py", str(tmp_path), name="hypercorn").url

    def ask(body: bytes, **more: str) -> tuple[int, str, bytes]:
        headers = {"Fencing-Token": '"invoice-42";g=7;o="a"', "Idempotency-Key": "k", **more}
        with httpx.Client(http1=version == 1, http2=version == 2, trust_env=False) as client:
            answer = client.post(url, headers=headers, content=iter([body]))
        return answer.status_code, answer.headers["Fencing-Status"], answer.content

    assert ask(b"9 euros")[:2] == (413, "content-digest-required")
    declared = [
        {"Content-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"}
        for body in (b"9 euros", b"8 euros")
    ]
    assert ask(b"9 euros", **declared[0]) == (200, "accepted", b"9 euros")
    assert ask(b"9 euros", **declared[0]) == (200, "accepted;replayed", b"9 euros")
    assert ask(b"8 euros", **declared[1])[:2] == (422, "idempotency-key-reused")
