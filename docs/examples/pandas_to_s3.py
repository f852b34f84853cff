"""Sum up a day's sales, and replace a fenced Parquet object in S3 with them.

    python pandas_to_s3.py sales.csv 2026-05-01

BUCKET names a bucket; boto3 finds credentials and endpoint as always. LEASES_URL names the lease store: a
file, for as long as all workers are on one host.
"""

import os
import sys

import boto3
import pandas as pd

from sinkfence import LeaseLost, Leases, StaleToken
from sinkfence.stores.sql import SqlStore
from sinkfence_s3 import FencedBucket

store = SqlStore(os.environ.get("LEASES_URL", "sqlite:///leases.db"))
bucket = FencedBucket(boto3.client("s3"), os.environ["BUCKET"], prefix="daily/")
totals = bucket.object("totals.parquet")


def main(path: str, day: str) -> str:
    """Replace the totals, unless a newer owner is at it; return what became of it."""
    store.create_schema()  # harmless to repeat
    with Leases(store, ttl=30) as leases:
        try:
            with leases.hold("daily/totals", wait=60, arm=[totals]) as lease:
                sales = pd.read_csv(path)
                sums = sales.groupby("shop", as_index=False)["euros"].sum()
                # No time of day in it, and the rows in a fixed order: a repetition has the same bytes.
                with totals.open(lease, step=f"totals {day}") as file:
                    sums.to_parquet(file, index=False)
        except (LeaseLost, StaleToken) as gone:
            return f"left to a newer owner: {gone}"
    with totals.get() as file:  # not by an s3:// address: before the content stands a header
        return str(pd.read_parquet(file).to_string(index=False))


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
