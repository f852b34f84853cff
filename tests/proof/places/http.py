"""A service behind its door, reached by requests; and a service's database, as the destination behind it."""

from __future__ import annotations

from dataclasses import dataclass

import requests
from sweep import Diary, Effect

from places.addresses import by_way_of, upstream_of
from places.postgres import Alchemy
from places.services import guarded, unguarded, wsgi_service
from sinkfence.tokens import Token
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink


@dataclass
class Service:
    """The messages between a client and the service at `url`, which writes into the table."""

    url: str
    table: Alchemy
    posts: int = 2
    """How many an owner sends without a step."""

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.url)

    def greet(self, address: tuple[str, int]) -> None:
        pass

    def before(self, token: Token, diary: Diary) -> None:
        diary.issued(token)

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        url = f"http://{address[0]}:{address[1]}"
        with requests.Session() as session:
            session.trust_env = False

            def arm() -> None:
                with diary.arming(token):
                    HttpSink(session, url).arm(token)

            def post() -> None:
                # With a key the adapter repeats by itself what gets no answer.
                headers = {"Idempotency-Key": token.key(diary.step)} if diary.step else {}
                with diary.writing(token) as attempt:
                    reply = session.post(f"{url}/{token.job_id}", attempt, headers=headers, timeout=60)
                    reply.raise_for_status()

            diary.answered(arm)
            session.mount(url, FencedAdapter(token))
            for _ in range(1 if diary.step else self.posts):
                diary.answered(post)

    def truth(self, job: str) -> list[Effect]:
        return self.table.truth(job)


class Behind(Alchemy):
    """The messages between a service and its database: each owner calls another instance of the service."""

    write = staticmethod(guarded)

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        with wsgi_service(by_way_of(self.direct.dsn, address), write=self.write) as url:
            Service(url, self, posts=1).tenure(upstream_of(url), token, diary)


class DoorAlone(Behind):
    """The service leaves the check to its door."""

    write = staticmethod(unguarded)
