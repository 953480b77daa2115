"""Statistics of plain arrays: intervals and tests."""

MIN_DEGREES = 4
"""Degrees of freedom that an interval needs: about six samples of different lengths.

With fewer, intervals miss the truth more often than they claim (simulated).
"""
