"""Holding: the lease manager and what stands behind it.

    Leases               manager.py, sinkfence/aio.py: what the user makes; opens nothing, survives a fork
    └── PerProcess       per_process.py: finds its half in this process
        └── Holder       holder.py: that half; acquires, arms and leaves, as flows (sinkfence/flows.py)
            ├── Heartbeat    heartbeat.py: renews and watches the tenures, tells of losses
            └── Held         one acquisition:
                ├── Lease    lease.py: what the user gets; holds no state
                └── Tenure   tenure.py: its state, shared with the heartbeat
                    └── Term     sinkfence/terms.py: until when the store's last answer counts

    Hold     hold.py: what `hold()` returns, to be entered once
    Means    means.py: in what threads and asyncio differ; one for all of the above
    └── Asking   asking.py (InThreads), loops.py (InLoop): how the store is asked for a grant or a release
    Grant    sinkfence/grants.py: what the store answers to an acquisition

Read `manager` first, then `holder` and `tenure`.
"""

from sinkfence.leases.lease import Lease
from sinkfence.leases.manager import Leases

__all__ = ["Lease", "Leases"]
