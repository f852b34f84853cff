"""The observer loses nothing of what it has read, whatever becomes of what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import BotoCoreError, HTTPClientError

from sinkfence.tokens import Token
from sinkfence_trials.history import History, read
from sinkfence_trials.torture.destinations import Write
from sinkfence_trials.torture.documents import KEPT, Documents
from sinkfence_trials.torture.looks import Gap
from sinkfence_trials.torture.observer import Observer
from sinkfence_trials.torture.places import Bucket
from sinkfence_trials.torture.proxy import FaultProxy

JOBS = ["torture/seen/first", "torture/seen/second"]


@pytest.fixture
def network(s3_server: Any) -> Iterator[FaultProxy]:
    """What stands before the bucket of all tests."""
    at = urlsplit(s3_server.endpoint)
    with FaultProxy(at.hostname or "", at.port or 80) as proxy:
        yield proxy


def test_a_server_that_goes_away_between_two_objects_hides_neither(
    s3_server: Any, network: FaultProxy, tmp_path: Path
) -> None:
    """The answer for the second object is cut off; the next look shows the effects of both, each once."""
    bucket = Bucket.on(s3_server)
    there = replace(bucket, endpoint=f"http://127.0.0.1:{network.address[1]}")
    path = tmp_path / "observer.jsonl"
    with History(path, "observer") as history, closing(Observer(history, JOBS)) as observer:
        observer.look_at(there)
        documents = Documents(bucket)
        for job in JOBS:
            token = Token(job, 1, "me:1")
            documents.arm(token)
            documents.write(token, Write(job, "step", documents.read(token)))
        network.stop("reply", 2).cut()
        with pytest.raises(HTTPClientError):
            observer.look()
        assert list(read([path])) == []
        assert observer.look()
        assert not observer.look()
    assert [event.job for event in read([path]) if event.f == "effect"] == JOBS
    assert [(event.job, event.generation) for event in read([path]) if event.f == "mark"] == [
        (job, 1) for job in JOBS
    ]


def test_an_answer_that_is_cut_in_its_middle_does_not_end_the_observer(
    s3_server: Any, network: FaultProxy, tmp_path: Path
) -> None:
    """Half of an object has come when its connection is reset: the next look shows it."""
    bucket, [job, _] = Bucket.on(s3_server), ["torture/torn/first", "torture/torn/second"]
    there = replace(bucket, endpoint=f"http://127.0.0.1:{network.address[1]}")
    token, documents = Token(job, 1, "me:1"), Documents(bucket)
    documents.arm(token)
    documents.write(token, Write("long " * 50_000, "step", documents.read(token)))
    torn = network.stop("reply", 1)
    path = tmp_path / "observer.jsonl"
    with History(path, "observer") as history, closing(Observer(history, [job])) as observer:
        observer.look_at(there)
        observer.watch()
        torn.wait()
        torn.tear()
        again = network.next("reply")
        again.wait()
        again.release()
        observer.stop()
        assert observer.died_of is None
    assert [event.job for event in read([path]) if event.f == "effect"] == [job]


def test_at_the_end_what_is_down_is_waited_for(s3_server: Any, network: FaultProxy, tmp_path: Path) -> None:
    """The last look comes upon a server that is going away: it is taken again, and nothing is missed."""
    bucket, job = Bucket.on(s3_server), "torture/last/first"
    token, documents = Token(job, 1, "me:1"), Documents(bucket)
    documents.arm(token)
    documents.write(token, Write(job, "step", documents.read(token)))
    network.stop("reply", 1).cut()
    path = tmp_path / "observer.jsonl"
    with History(path, "observer") as history, closing(Observer(history, [job])) as observer:
        observer.look_at(replace(bucket, endpoint=f"http://127.0.0.1:{network.address[1]}"))
        observer.finish(60)
        assert observer.died_of is None
    assert [event.f for event in read([path])] == ["effect", "mark", "mark"]


def test_at_the_end_what_stays_down_is_told_of(s3_server: Any, network: FaultProxy, tmp_path: Path) -> None:
    """Nobody has seen the truth: it is said why, and nothing is raised."""
    network.refuse()
    with (
        History(tmp_path / "observer.jsonl", "observer") as history,
        closing(Observer(history, JOBS)) as observer,
    ):
        observer.look_at(replace(Bucket.on(s3_server), endpoint=f"http://127.0.0.1:{network.address[1]}"))
        observer.finish(0.2)
        assert isinstance(observer.died_of, BotoCoreError)


def test_more_than_an_object_shows_is_a_gap(s3_server: Any, tmp_path: Path) -> None:
    """Where an object has lost effects before they were seen, it is the observer that missed them."""
    bucket, job = Bucket.on(s3_server), "torture/gap/first"
    token, documents = Token(job, 1, "me:1"), Documents(bucket)
    documents.arm(token)

    def write(first: int, last: int) -> None:
        for number in range(first, last):
            documents.write(token, Write(f"{job}/{number}", f"step {number}", documents.read(token)))

    path = tmp_path / "observer.jsonl"
    with History(path, "observer") as history, closing(Observer(history, [job])) as observer:
        observer.look_at(bucket)
        write(0, 1)
        assert observer.look()
        write(1, KEPT + 1)
        with pytest.raises(Gap, match="more effects than"):
            observer.look()
