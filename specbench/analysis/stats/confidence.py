"""Define the confidence level of intervals, and the quantiles that give their widths."""

import math

LEVEL = 0.95
"""The share of intervals that contain the true value."""

UPPER_END = (1 + LEVEL) / 2
"""The probability below the upper end of an interval."""

MIN_DEGREES = 4
"""The degrees of freedom that a claim needs: about six samples of different lengths.

A simulation shows that, with fewer, intervals miss the true value more often than they should.
"""

SHOWN_DEGREES = 2 + 1e-6
"""The degrees of freedom that an interval needs to be shown: four samples, since three have 2 or
less. With fewer, a single sample or task decides the result.
"""


def quantile(degrees: float, probability: float = UPPER_END) -> float:
    """Compute a quantile of Student's t, or of the normal distribution if `degrees` is infinite.

    The default is the quantile at the upper end of an interval.
    """
    from scipy.special import ndtri, stdtrit

    if math.isfinite(degrees):
        return float(stdtrit(degrees, probability))
    return float(ndtri(probability))
