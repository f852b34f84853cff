"""A worker whose generations are counted by etcd, and whose writes are checked by PostgreSQL.

    python token_from_etcd.py account-17 40

ETCD_URL names a member of the cluster (http://127.0.0.1:2379). DATABASE_URL (postgresql+psycopg://...) names
a database in which `sinkfence_postgres.install` was run. There is no lease table, and nothing renews: the
work has to be shorter than TTL, or the next owner comes, and this one is refused.
"""

import base64
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from sqlalchemy import create_engine, text

from sinkfence import LeaseHeld, StaleToken, Token
from sinkfence_postgres import PostgresSink

TTL = 30  # seconds
engine = create_engine(os.environ["DATABASE_URL"])
ledger = PostgresSink(engine)


def etcd(what: str, **body: Any) -> Any:
    """Call etcd, by its JSON gateway."""
    answer = requests.post(f"{os.environ['ETCD_URL']}/v3/{what}", json=body, timeout=5)
    answer.raise_for_status()
    return answer.json()


@contextmanager
def turn(job_id: str) -> Iterator[Token]:
    """Hold the job's key; its generation is the revision in which the key was created."""
    owner = f"worker:{secrets.token_hex(16)}"  # fresh for each turn
    key, value = (base64.b64encode(word.encode()).decode() for word in (f"leases/{job_id}", owner))
    lease = etcd("lease/grant", TTL=TTL)["ID"]
    try:
        absent = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": 0}
        put = {"request_put": {"key": key, "value": value, "lease": lease}}
        answer = etcd("kv/txn", compare=[absent], success=[put])
        if not answer.get("succeeded"):
            raise LeaseHeld(job_id, None, float(TTL))
        yield Token(job_id, int(answer["header"]["revision"]), owner)
    finally:
        etcd("lease/revoke", ID=lease)


def main(account: str, amount: int) -> str:
    """Book an amount; return what became of it."""
    try:
        with turn(account) as token:
            ledger.arm(token)  # before anything is read
            with ledger.begin(token) as conn:
                row = {"account": account, "amount": amount}
                conn.execute(text("INSERT INTO booking VALUES (:account, :amount)"), row)
            return f"booked as generation {token.generation}"
    except LeaseHeld as held:
        return str(held)
    except StaleToken as stale:
        return f"left to a newer owner: {stale}"


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
