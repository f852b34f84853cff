"""Holding: the lease manager and what stands behind it. Read `manager` first, then `holder` and `tenure`."""

from sinkfence.leases.lease import Lease
from sinkfence.leases.manager import Leases

__all__ = ["Lease", "Leases"]
