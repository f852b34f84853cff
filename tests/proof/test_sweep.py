"""An owner that is frozen or cut off at any of its messages changes nothing once it has a successor."""

from __future__ import annotations

import places
import pytest
from sweep.verdicts import (
    assert_pairs,
    assert_repetitions,
    assert_takeovers,
    broken,
    late_pairs,
    late_repetitions,
    late_takeovers,
)


@pytest.fixture
def bucket(s3_server, s3_client, bucket_name, prefix):
    """What a client of the bucket needs."""
    keys = {
        "aws_access_key_id": s3_server.access_key,
        "aws_secret_access_key": s3_server.secret_key,
        "region_name": s3_server.region,
    }
    return s3_server.endpoint, keys, bucket_name, prefix, s3_client


@pytest.fixture(params=["WSGI", "ASGI"])
def service(request, database):
    """The service behind each kind of door, with PostgreSQL as its gate."""
    run = {"WSGI": places.wsgi_service, "ASGI": places.asgi_service}[request.param]
    with run(database.dsn) as url:
        yield f"HTTP, {request.param}", places.Service(url, places.Alchemy(database))


CLIENTS = {"psycopg": places.Postgres, "SQLAlchemy": places.Alchemy, "asyncio": places.Asynchronous}


class TestPostgres:
    """Arming and guarded transactions."""

    @pytest.mark.parametrize("client", CLIENTS)
    def test_takeovers(self, client, database, say):
        """The table is the successor's, wherever the old owner was frozen."""
        then = ("release", "cut") if client == "psycopg" else ("release",)
        assert_takeovers(f"PostgreSQL by {client}", CLIENTS[client](database), say, then)

    @pytest.mark.parametrize("client", ["psycopg", "SQLAlchemy"])
    def test_pairs(self, client, database, say):
        """The table is the successor's, though it was frozen as well."""
        assert_pairs(f"PostgreSQL by {client}", CLIENTS[client](database), say)

    @pytest.mark.parametrize("client", CLIENTS)
    def test_repetitions(self, client, database, say):
        """Arming repeats itself. Cut off before COMMIT: the driver's error; from there on: unknown."""

        def told(end):
            if end >= 10:
                return ""
            return "OutcomeUnknown" if end < 2 else "OperationalError"

        assert_repetitions(f"PostgreSQL by {client}", CLIENTS[client](database), say, told)

    def test_a_select_before_the_write_is_caught(self, database):
        """The sweeps find the window between reading the mark and writing."""
        place = places.SelectCompareWrite(database)
        assert broken(late_takeovers(place)) == {"D1", "D9"}
        assert broken(late_pairs(place)) == {"D9"}

    @pytest.mark.parametrize(
        ("place", "invariant"),
        [(places.WithoutKey, "D4"), (places.TakenForFailure, "D6"), (places.TakenForSuccess, "D5")],
    )
    def test_a_bad_repetition_is_caught(self, place, invariant, database):
        """A second effect, and either guess about an unknown outcome, have names."""
        assert broken(late_repetitions(place(database))) == {invariant}


class TestS3:
    """Arming and fenced puts."""

    def test_takeovers(self, bucket, say):
        """The object is the successor's, wherever the old owner was frozen."""
        assert_takeovers("S3", places.Bucket(*bucket), say)

    def test_pairs(self, bucket, say):
        """The object is the successor's, though it was frozen as well."""
        assert_pairs("S3", places.Bucket(*bucket), say, before_armed=2)

    def test_repetitions(self, bucket, say):
        """The adapter finds out by itself what became of each request it has sent; the step is put once."""

        def told(end):
            return "" if end < 4 else "ConnectionClosedError"  # of the first reading

        assert_repetitions("S3", places.Bucket(*bucket), say, told, late="")

    def test_takeovers_while_long_contents_are_under_way(self, bucket, say):
        """An upload may go on beside the register for as long as it likes: nobody will name what it puts."""
        assert_takeovers("S3, long contents", places.Long(*bucket), say)
        assert_takeovers("S3, an open file", places.Opened(*bucket), say, ("release",))

    def test_pairs_with_long_contents(self, bucket, say):
        """The object is the successor's, though its own upload was frozen as well."""
        assert_pairs("S3, long contents", places.Long(*bucket), say, before_armed=2)

    def test_repetitions_of_long_contents(self, bucket, say):
        """Data is sent again under the same key, the register under the same condition; put once."""

        def told(end):
            return "" if end < 6 else "ConnectionClosedError"

        assert_repetitions("S3, long contents", places.Long(*bucket), say, told, late="")

    def test_a_look_before_the_put_is_caught(self, bucket):
        """The sweeps find the window between looking at a mark and an unconditional put."""
        place = places.LookThenPut(*bucket)
        assert broken(late_takeovers(place)) == {"D1", "D9"}
        assert broken(late_pairs(place)) == {"D9"}

    def test_a_put_without_a_step_is_caught(self, bucket):
        """The sweep finds the second put of what is one step."""
        assert broken(late_repetitions(places.WithoutStep(*bucket))) == {"D4"}


class TestHttp:
    """Arming and posts, between a client and a service, and between that and its database."""

    def test_takeovers(self, service, say):
        """The service's table is the successor's, wherever the old owner was frozen."""
        assert_takeovers(*service, say)

    def test_pairs(self, service, say):
        """The service's table is the successor's, though it was frozen as well."""
        assert_pairs(*service, say)

    def test_repetitions(self, service, say):
        """With an idempotency key the adapter repeats by itself, and the service does it once."""
        assert_repetitions(*service, say)

    def test_takeovers_behind_the_door(self, database, say):
        """A request of the old owner that has come through the door is refused at the database."""
        assert_takeovers("HTTP, behind the door", places.Behind(database), say, ("release",))

    def test_a_service_without_a_check_is_caught(self, database):
        """The sweeps find it by the first request that comes late."""
        with places.wsgi_service(database.dsn, gate=places.Open(), write=places.unguarded) as url:
            place = places.Service(url, places.Alchemy(database))
            assert broken(late_takeovers(place)) == {"D1", "D9"}
            assert broken(late_pairs(place)) == {"D1", "D9"}

    def test_a_door_alone_is_caught(self, database):
        """The sweep finds the window between the door and COMMIT."""
        assert broken(late_takeovers(places.DoorAlone(database))) == {"D1", "D9"}

    def test_a_service_that_ignores_the_key_is_caught(self, database):
        """The sweep finds the second effect of a repeated request."""
        with places.wsgi_service(database.dsn, write=places.without_key) as url:
            place = places.Service(url, places.Alchemy(database))
            assert broken(late_repetitions(place)) == {"D4"}
