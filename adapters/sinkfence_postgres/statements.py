"""What the sink sends to the server, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sinkfence.sinks import Bearer, token_of
from sinkfence.tokens import Token

MAX_JOBS: Final = 1000
"""How many jobs one transaction may guard: each takes two places in the server's lock table."""


@dataclass(frozen=True, slots=True)
class Query:
    """One statement with its parameters. Its names are qualified: no search_path can redirect them."""

    sql: str
    """With `:name` where a parameter goes, as SQLAlchemy's text() has it."""
    params: Mapping[str, Any]
    rows: int | None = 1
    """How many rows the answer has, None where that is to be learnt. All are fetched: a cursor that hands
    them out one by one would also evaluate them so."""

    @property
    def pyformat(self) -> str:
        """The same with `%(name)s`, as psycopg has it."""
        return _pyformat(self.sql)


@lru_cache
def _pyformat(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)


FROM_TOKENS: Final = (
    " FROM ROWS FROM (pg_catalog.unnest(cast(:job_ids AS pg_catalog.text[])), "
    "pg_catalog.unnest(cast(:generations AS bigint[])), "
    "pg_catalog.unnest(cast(:owners AS pg_catalog.text[]))) AS t (job_id, generation, owner)"
)


def arm(token: Token, lock_timeout: str | None = None) -> Query:
    """Raise the mark. A `lock_timeout` ("100ms") holds for this transaction; else the session's, or 5 s."""
    call = "SELECT sinkfence.arm(:job_id, :generation, :owner)"
    if lock_timeout is None:
        return Query(call, named(token))
    # FROM is evaluated before the select list.
    wait = " FROM pg_catalog.set_config('lock_timeout', :lock_timeout, true)"
    return Query(call + wait, {**named(token), "lock_timeout": lock_timeout})


def evict(token: Token) -> Query:
    """End the sessions of the caller's own login in which an earlier owner's transaction is open."""
    return Query("SELECT sinkfence.evict(:job_id, :generation, :owner)", named(token))


def recognise(token: Token) -> Query:
    """Refuse the token as a guard does, and raise or hold nothing."""
    return Query("SELECT sinkfence.recognise(:job_id, :generation, :owner)", named(token))


def named(token: Token) -> dict[str, Any]:
    """Return the token as parameters."""
    return {"job_id": token.job_id, "generation": token.generation, "owner": token.owner}


def guard(tokens: Iterable[Token], lock: bool = False) -> Query:
    """Guard the open transaction for all tokens, in their order, in one round trip."""
    return _each("sinkfence.guard(t.job_id, t.generation, t.owner, :lock)", tokens, lock=lock)


def confirm(tokens: Iterable[Token]) -> Query:
    """Ask whether the open transaction is the one that was guarded for all tokens, and can still commit."""
    return _each("sinkfence.confirm(t.job_id, t.generation, t.owner)", tokens)


def _each(call: str, tokens: Iterable[Token], **params: Any) -> Query:
    tokens = list(tokens)
    if len(tokens) == 1:  # most have one, and this is parsed and planned in a fifth less of the whole time
        return Query("SELECT " + call.replace("t.", ":"), {**params, **named(tokens[0])})
    return Query(
        "SELECT " + call + FROM_TOKENS,
        {
            **params,
            "job_ids": [token.job_id for token in tokens],
            "generations": [token.generation for token in tokens],
            "owners": [token.owner for token in tokens],
        },
        rows=len(tokens),
    )


def shown(bearers: Iterable[Bearer]) -> dict[Token, Bearer]:
    """Read each bearer's token, in bytewise order of the jobs: transactions that share jobs meet them alike.

    Raises:
        ValueError: no bearer, or more than 1,000.
        TypeError: one is no bearer, as a list of them.
        LeaseLost: of a bearer whose term is over.
    """
    bearers = tuple(bearers)
    if not 1 <= len(bearers) <= MAX_JOBS:
        raise ValueError(f"a transaction guards 1 to {MAX_JOBS} bearers, not {len(bearers)}")
    tokens = {token_of(bearer): bearer for bearer in bearers}
    return dict(sorted(tokens.items(), key=lambda item: (item[0].job_id.encode(), item[0].generation)))
