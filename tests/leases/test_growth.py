"""What thousands of renewals leave behind in PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest

from sinkfence.stores.sql import SqlStore

LEASES = 100
SIZE = "select pg_relation_size('sinkfence_lease'), pg_indexes_size('sinkfence_lease')"
UPDATES = "select n_tup_hot_upd from pg_stat_user_tables where relname = 'sinkfence_lease' and n_tup_upd = %s"


def renew(store: SqlStore, tokens: list, beats: int) -> None:
    """Let the heartbeat's statement be sent so many times."""
    for _ in range(beats):
        assert len(store.renew_many([(token, 300.0) for token in tokens]).renewed) == len(tokens)


@pytest.mark.parametrize("beside", ["nobody", "read committed", "repeatable read"])
def test_renewals_are_hot(pg: SqlStore, pg_url: str, admin: psycopg.Connection, beside: str) -> None:
    """C78: a renewal touches no index, and takes the place of an earlier one unless a snapshot may see that.

    A session that is idle in a transaction keeps a snapshot above READ COMMITTED alone.
    """
    tokens = [pg.acquire(f"job/{n}", f"a:{n}", 300.0).token for n in range(LEASES)]
    with psycopg.connect(pg_url) as idle:
        if beside != "nobody":
            idle.execute(f"set transaction isolation level {beside}")
            idle.execute("select 1")
        renew(pg, tokens, 30)
        before = sum(admin.execute(SIZE).fetchone())
        renew(pg, tokens, 30)
        grown = sum(admin.execute(SIZE).fetchone()) - before
    if beside == "repeatable read":
        assert grown < 30 * LEASES * 150  # bytes: a version of a row, and room
        return
    assert grown == 0
    pg.close()  # a session tells the statistics at its end
    while not (hot := admin.execute(UPDATES, (60 * LEASES,)).fetchone()):
        admin.execute("select pg_sleep(0.02)")
    assert hot[0] > 0.95 * 60 * LEASES  # the first ones find their pages full
