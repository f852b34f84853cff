"""The door, in ASGI and WSGI alike, before real servers in processes of their own."""

from __future__ import annotations

import json
import socket

import pytest
import requests

from sinkfence import StaleToken, Token
from sinkfence_http.requests_adapter import FencedAdapter
from sinkfence_http.wire import format_token


def token(account: int, generation: int, owner: str = "a") -> str:
    return f'"account-{account}";g={generation};o="{owner}"'


def until_left(door, account: int) -> dict:
    """Return the state once nobody is behind the door: a server leaves after its last byte was read."""
    while (state := door.ask("GET", f"/accounts/{account}").json)["entered"]:
        pass
    return state


def test_a_write_with_a_token_passes_and_says_so(door, account):
    """A fenced success carries exactly one Fencing-Status, the door's own, whatever the handler set."""
    reply = door.ask("POST", f"/accounts/{account}", token(account, 7))
    assert (reply.status, reply.fencing) == (200, "accepted")
    state = door.ask("GET", f"/accounts/{account}").json
    assert (state["effects"], state["mark"]) == ([7], 7)


def test_numeric_order_on_the_wire(door, account):
    """10 is above 9, and 9 after it is stale: numbers and not texts are compared."""
    for generation, status in [(9, 200), (10, 200), (9, 412), (10, 200)]:
        assert door.ask("POST", f"/accounts/{account}", token(account, generation)).status == status
    assert door.ask("GET", f"/accounts/{account}").json["effects"] == [9, 10, 10]


def test_a_stale_token_is_told_the_mark(door, account):
    """A lower generation is refused 412, with the mark in the header and in a problem document."""
    door.ask("POST", f"/accounts/{account}", token(account, 8, "b"))
    reply = door.ask("POST", f"/accounts/{account}", token(account, 7))
    assert (reply.status, reply.fencing) == (412, "stale-token;current=8")
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert reply.headers["Cache-Control"] == "no-store"
    problem = reply.json
    assert problem["type"].endswith("#stale-token")
    assert (problem["presented"], problem["current"], problem["status"]) == (7, 8, 412)


def test_the_same_number_under_another_owner_is_a_conflict(door, account):
    """An equal generation passes for its owner and is refused for another."""
    door.ask("POST", f"/accounts/{account}", token(account, 8, "b"))
    assert door.ask("POST", f"/accounts/{account}", token(account, 8, "b")).status == 200
    reply = door.ask("POST", f"/accounts/{account}", token(account, 8, "c"))
    assert (reply.status, reply.fencing) == (412, "generation-conflict;current=8")


def test_a_write_without_a_token_is_refused(door, account):
    """A write without a token is 428, and leaves nothing."""
    reply = door.ask("POST", f"/accounts/{account}")
    assert (reply.status, reply.fencing) == (428, "token-required")
    assert door.ask("GET", f"/accounts/{account}").json["mark"] is None


@pytest.mark.parametrize("method", ["PURGE", "DELETE", "PUT", "post", "FROBNICATE"])
def test_every_method_that_is_not_safe_is_fenced(door, account, method):
    """Unknown methods and odd spellings need a token too."""
    assert door.ask(method, f"/accounts/{account}").status == 428


def test_two_tokens_are_refused(door, account):
    """The token twice, in two fields or joined by a comma, is 400."""
    one, two = token(account, 7), token(account, 8)
    for reply in (
        door.ask("POST", f"/accounts/{account}", one, two),
        door.ask("POST", f"/accounts/{account}", one, one),
        door.ask("POST", f"/accounts/{account}", f"{one}, {two}"),
        door.ask("POST", f"/accounts/{account}", f"{one},{two}"),
    ):
        assert (reply.status, reply.fencing) == (400, "malformed-token")
    assert door.ask("GET", f"/accounts/{account}").json["mark"] is None


def test_an_underscore_is_no_hyphen(door, account):
    """`Fencing_Token` is another header, and is not looked at."""
    reply = door.ask("POST", f"/accounts/{account}", headers=[("Fencing_Token", token(account, 7))])
    assert (reply.status, reply.fencing) == (428, "token-required")


def test_the_case_of_a_header_name_does_not_matter(door, account):
    """Names of fields are compared without case."""
    for name in ("fencing-token", "FENCING-TOKEN", "fEnCiNg-tOkEn"):
        assert door.ask("POST", f"/accounts/{account}", headers=[(name, token(account, 7))]).status == 200


def test_a_token_on_a_safe_method_passes_unread(door, account):
    """A GET with a token, even a malformed one, is served, raises no mark, and carries no status."""
    for value in (token(account, 7), "rubbish rubbish"):
        reply = door.ask("GET", f"/accounts/{account}", value)
        assert (reply.status, reply.fencing, reply.json["mark"]) == (200, None, None)


def test_head_and_options_pass(door, account):
    """HEAD and a preflight get the application's own answer, without a token."""
    for method in ("HEAD", "OPTIONS"):
        reply = door.ask(method, f"/accounts/{account}")
        assert reply.status in (200, 405)  # FastAPI answers a GET route's HEAD with 405 by itself
        assert reply.fencing is None


def test_nothing_of_a_malformed_token_is_echoed(door, account):
    """What a stranger wrote comes back neither in headers nor in the body."""
    reply = door.ask("POST", f"/accounts/{account}", '"swordfish<script>";g=1_0;o="x"')
    assert reply.status == 400
    assert b"swordfish" not in reply.body
    assert "swordfish" not in str(reply.headers)


@pytest.mark.parametrize(
    "g", ["+10", "010", " 10", "1_0", "1e1", "10.0", "1" + "0" * 30, "-1", "", "0", '"10"']
)
def test_odd_spellings_of_a_number_are_refused(door, account, g):
    """A generation is 1 to 15 digits and nothing else, at the door as everywhere."""
    assert door.ask("POST", f"/accounts/{account}", f'"account-{account}";g={g};o="a"').status == 400
    assert door.ask("GET", f"/accounts/{account}").json["mark"] is None


def test_a_token_for_another_job_is_refused_by_the_handler(door, account):
    """admit() compares with the job of the validated parameter: 007 is account 7, and is not another job."""
    reply = door.ask("POST", f"/accounts/{account}", '"account-999999";g=7;o="a"')
    assert (reply.status, reply.fencing) == (403, "job-mismatch")
    reply = door.ask("POST", f"/accounts/00{account}", token(account, 7))
    assert reply.status in (200, 404)  # never served under another job's fence
    reply = door.ask("POST", f"/accounts/00{account}", f'"account-00{account}";g=9;o="a"')
    assert reply.status in (403, 404)
    assert 9 not in door.ask("GET", f"/accounts/{account}").json["effects"]


def test_arming_is_answered_by_the_door(door, account):
    """Arming raises the mark without a handler: from then on the older owner is stale."""
    reply = door.ask("POST", "/.well-known/fencing-arm", token(account, 8, "b"))
    assert (reply.status, reply.fencing, reply.body) == (204, "armed", b"")
    assert door.ask("POST", "/.well-known/fencing-arm", token(account, 8, "b")).status == 204
    assert door.ask("POST", f"/accounts/{account}", token(account, 7)).status == 412
    reply = door.ask("POST", "/.well-known/fencing-arm", token(account, 7))
    assert (reply.status, reply.fencing) == (412, "stale-token;current=8")
    assert door.ask("POST", "/.well-known/fencing-arm").status == 428


def test_a_handler_that_forgets_the_check_is_found_out(door, account):
    """strict: a success whose handler never admitted is a 500 not-guarded, with a line in the log."""
    reply = door.ask("POST", "/forgets", token(account, 7))
    assert (reply.status, reply.fencing) == (500, "not-guarded")
    assert b"done" not in reply.body
    assert "never called fence.admit" in door.log.read_text()


def test_a_handler_that_commits_nothing_guarded_is_found_out(door, account):
    """strict: admitting is not enough, the destination must have checked."""
    reply = door.ask("POST", f"/uncommitted/{account}", token(account, 7))
    assert (reply.status, reply.fencing) == (500, "not-guarded")


def test_a_commit_after_the_response_has_started_is_found_out(door, account):
    """strict: what commits once the response is under way (a `yield` dependency, a stream) is no success."""
    reply = door.ask("POST", f"/late/{account}", token(account, 7))
    assert (reply.status, reply.fencing) == (500, "not-guarded")
    assert until_left(door, account)["entered"] == 0


def test_an_exempt_route_needs_no_token(door):
    """An exempt route is served without a token, and without a status."""
    reply = door.ask("POST", "/open/hook")
    assert (reply.status, reply.fencing) == (200, None)


def test_a_client_that_vanishes_in_mid_body_changes_nothing(door_service, account):
    """Half a body is no request: nothing takes effect, the gate is left, and the service lives on."""
    for framework in ("starlette", "flask"):
        door = door_service(framework)
        with socket.create_connection(("127.0.0.1", door.port)) as client:
            head = f"POST /accounts/{account} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            client.sendall(f"{head}Fencing-Token: {token(account, 7)}\r\n\r\nhalf".encode())
            while door.ask("GET", f"/accounts/{account}").json["entered"] == 0:
                pass  # the handler waits for the rest
        assert until_left(door, account)["effects"] == []


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_bodies_stream_both_ways(door_service, account, framework):
    """A chunked upload arrives whole, and a streamed response leaves whole, with its status at the start."""
    door = door_service(framework)
    upload = door.ask("POST", f"/accounts/{account}", token(account, 7), body=iter([b"x" * 1000] * 50))
    assert (upload.status, json.loads(upload.body)) == (200, {"size": 50_000})
    stream = door.ask("POST", f"/streams/{account}", token(account, 7))
    assert (stream.status, stream.fencing, stream.body) == (200, "accepted", b"01234")


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_a_refusal_inside_a_stream_becomes_its_answer(door_service, account, framework):
    """A generator whose token is for another job is refused before its first byte."""
    door = door_service(framework)
    reply = door.ask("POST", f"/streams/{account}", '"account-999998";g=7;o="a"')
    assert (reply.status, reply.fencing) == (403, "job-mismatch")


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_a_crash_of_the_handler_stays_its_own(door_service, account, framework):
    """An error that is no refusal is the framework's 500."""
    door = door_service(framework)
    assert door.ask("POST", "/crashes", token(account, 7)).status == 500
    assert until_left(door, account)["entered"] == 0


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_a_fence_that_can_not_be_asked_fails_closed(door_service, account, framework):
    """Where marks can't be read nothing is let in: 503 with Retry-After, the reason in the log only."""
    door = door_service(framework, own="for breaking")
    assert door.ask("POST", f"/accounts/{account}", token(account, 7)).status == 200
    door.ask("GET", "/break")
    reply = door.ask("POST", f"/accounts/{account}", token(account, 7))
    assert (reply.status, reply.fencing, reply.headers["Retry-After"]) == (503, "fence-unavailable", "1")
    assert b"swordfish" not in reply.body
    assert door.ask("GET", f"/accounts/{account}").json["effects"] == [7]
    assert "ConnectionError" in door.log.read_text()


def test_a_see_other_counts_as_a_success(door_service, account):
    """The answer of a form, a 303, vouches for an effect as a 200 does, and is held to the same."""
    reply = door_service("starlette").ask("POST", "/see-other", token(account, 7))
    assert (reply.status, reply.fencing) == (500, "not-guarded")


def test_without_strict_a_handler_is_believed(door_service, account):
    """strict=False lets unguarded successes out."""
    reply = door_service("starlette", strict=False).ask("POST", "/forgets", token(account, 7))
    assert (reply.status, reply.fencing) == (200, "accepted")


def test_a_mounted_part_and_a_root_path(door_service, account):
    """admit works below a mount; arming is found below the root path that a proxy has stripped."""
    door = door_service("starlette", root_path="/api")
    assert door.ask("POST", f"/sub/accounts/{account}", token(account, 7)).status == 200
    assert door.ask("POST", "/.well-known/fencing-arm", token(account, 8)).status == 204
    assert door.ask("POST", f"/sub/accounts/{account}", token(account, 7)).status == 412


def test_one_key_of_two_jobs_is_two_calls(door, account):
    """The Idempotency-Key is the handler's: no answer of one job is ever given to another's call."""
    key = ("Idempotency-Key", '"same"')
    for number in (account, account + 100_000):
        reply = door.ask("POST", f"/accounts/{number}", token(number, 7), headers=[key])
        assert (reply.status, reply.fencing) == (200, "accepted")
        assert door.ask("GET", f"/accounts/{number}").json["effects"] == [7]


def test_lifespan_passes(door_service):
    """The application's start-up runs behind the middleware."""
    assert door_service("starlette").ask("GET", "/started").json == ["yes"]


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_the_door_outlives_bursts(door_service, account, framework):
    """Fifty writes of one owner at once all pass: an equal generation does not conflict with itself."""
    from concurrent.futures import ThreadPoolExecutor

    door = door_service(framework)
    with ThreadPoolExecutor(10) as pool:
        replies = pool.map(lambda _: door.ask("POST", f"/accounts/{account}", token(account, 7)), range(50))
        assert {reply.status for reply in replies} == {200}


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_a_large_stale_upload_learns_that_it_is_stale(door_service, account, framework):
    """A refusal that comes before the body was read still reaches a caller in mid-upload."""
    door = door_service(framework)
    newer = Token(f"account-{account}", 8, "b")
    door.ask("POST", "/.well-known/fencing-arm", format_token(newer))
    with requests.Session() as session:
        session.mount(door.url + "/", FencedAdapter(Token(f"account-{account}", 7, "a")))
        for size in (100_000, 20_000_000):
            with pytest.raises(StaleToken):
                session.post(f"{door.url}/accounts/{account}", data=b"x" * size)
