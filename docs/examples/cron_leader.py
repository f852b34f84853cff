"""A nightly job that cron starts on every host, and that is done once.

    0 3 * * *  python cron_leader.py

DATABASE_URL (postgresql+psycopg://...) names a database in which `sinkfence_postgres.install` and
`SqlStore(engine).create_schema()` were run. Hosts whose clocks differ come one after the other: the lease
keeps those apart that come at once, and the name of the step tells a late one that the night is done.
"""

import os
import sys
from datetime import UTC, datetime

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from sinkfence import LeaseHeld, LeaseLost, Leases, StaleToken
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink, once, transaction

engine = create_engine(os.environ["DATABASE_URL"])
ledger = PostgresSink(engine)


def close_the_day(session: Session, day: str) -> int:
    """Do the work, and return how many orders there were."""
    done = session.execute(
        text("UPDATE orders SET closed_on = :day WHERE closed_on IS NULL RETURNING id"), {"day": day}
    )
    return len(done.all())


def main(day: str) -> int:
    """Close the day, if nobody else is at it; return the exit code."""
    with Leases(SqlStore(engine), ttl=30) as leases:
        try:
            with (
                leases.hold("close-the-day", arm=[ledger]) as lease,
                Session(engine) as session,
                transaction(session, lease),
            ):
                closed = once(session, lease, f"close {day}", lambda: close_the_day(session, day))
        except LeaseHeld:
            print("another host is at it")
        except (LeaseLost, StaleToken) as gone:
            print(f"left to a newer owner: {gone}")
            return 1
        else:
            print(f"{day} is closed, with {closed} orders")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else datetime.now(UTC).date().isoformat()))
