"""The confidence level of intervals, and the quantiles of Student's t that give their widths."""

import math

LEVEL = 0.95
"""Share of intervals that hold the true value."""

UPPER_END = (1 + LEVEL) / 2
"""The probability below the upper end of an interval."""

MIN_DEGREES = 4
"""Degrees of freedom that a claim needs: about six samples of different lengths.

With fewer, intervals miss the truth more often than they claim (simulated).
"""

SHOWN_DEGREES = 2 + 1e-6
"""Degrees of freedom that an interval needs to be shown: four samples, since three have 2 or less.
With fewer, one sample or task decides.
"""


def quantile(degrees: float, probability: float = UPPER_END) -> float:
    """Student's t, by default at an interval's upper end; the normal's with infinite degrees."""
    from scipy.special import ndtri, stdtrit

    if math.isfinite(degrees):
        return float(stdtrit(degrees, probability))
    return float(ndtri(probability))
