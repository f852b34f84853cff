"""What tests of code that uses sinkfence need."""

from sinkfence.testing.clock import HandClock

__all__ = ["HandClock"]
