"""The idea as a machine that is small enough to try everything in it."""
