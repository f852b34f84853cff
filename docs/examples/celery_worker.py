"""A Celery worker that charges an invoice once, however often its task is delivered.

    celery -A celery_worker worker

BROKER_URL names your broker, and DATABASE_URL (postgresql+psycopg://...) a database in which
`sinkfence_postgres.install` and `SqlStore(engine).create_schema()` were run.
"""

import os
from typing import Any

from celery import Celery
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sinkfence import JobCompleted, LeaseHeld, LeaseLost, Leases, StaleToken
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink, transaction

# At module level, before Celery forks: none of these lines opens a connection.
engine = create_engine(os.environ["DATABASE_URL"])
leases = Leases(SqlStore(engine), ttl=30)
ledger = PostgresSink(engine)

app = Celery("celery_worker", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_acks_late=True,  # a worker that dies leaves its message to another,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)


class Base(DeclarativeBase):
    """Your tables."""


class Charge(Base):
    """An invoice that was charged."""

    __tablename__ = "charge"
    id: Mapped[int] = mapped_column(primary_key=True)
    invoice: Mapped[int]
    amount: Mapped[int]


@app.task(bind=True, max_retries=None)
def charge(self: Any, invoice: int, amount: int) -> str:
    """Charge an invoice: the row and the job's completion are there together, or neither is."""
    try:
        with leases.hold(f"charge/{invoice}", arm=[ledger]) as lease:
            with Session(engine) as session, transaction(session, lease):
                session.add(Charge(invoice=invoice, amount=amount))
                lease.complete(conn=session)
            return "charged"
    except JobCompleted:
        return "was charged before"
    except LeaseHeld as held:  # another worker is at it, and may die: look again when its lease is over
        raise self.retry(exc=held, countdown=held.retry_after) from None
    except (LeaseLost, StaleToken):
        return "left to a newer owner"
