"""How long this side waits for the store's answer: who waits, for what."""

from __future__ import annotations

from typing import Final

LEAVING: Final = 15.0
"""Seconds, of who gives a job back: enough to find a connection dead and use another."""

LEAVING_LOST: Final = 3.0
"""The same where the lease is known to be over: the release is for who comes next."""

LEAVING_THEIRS: Final = 0.2
"""The same where a transaction of the caller's has ended the lease: it may be open, and lock the row."""

RELEASE: Final = 1.0
"""Of `LEAVING`, what is kept for the release where the store is raised above a mark before."""

BATCH: Final = 0.25
"""Of the shortest ttl in a batch of renewals: then there is time for another batch."""

BATCH_AT_LEAST: Final = 0.5
"""Seconds. Where the machine is slow, a short lease must not have its batches left behind all the time."""
