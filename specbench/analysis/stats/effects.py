"""Variances of the logarithm of a number from independent sources, added up.

Prompts are one source, and the passes over them, or the runs, another: both are random
effects, drawn from more than were measured.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.intp]
BoolArray: TypeAlias = NDArray[np.bool_]


class Variance(NamedTuple):
    """A variance of a logarithm, with its degrees of freedom."""

    value: float
    degrees: float


EXACT = Variance(0.0, math.inf)
"""The variance of a number that is the same on every machine at all times."""


def of_mean(logs: FloatArray) -> Variance | None:
    """The variance of the mean of these logarithms [units]; NaN stands for one that is unknown.

    None with fewer than two.
    """
    known = logs[np.isfinite(logs)]
    if len(known) < 2:
        return None
    return Variance(float(known.var(ddof=1)) / len(known), len(known) - 1)


def total(parts: Iterable[Variance]) -> Variance:
    """The sum of independent variances, with the degrees of Welch and Satterthwaite (1946)."""
    known = [part for part in parts if part.value > 0]
    value = math.fsum(part.value for part in known)
    inverse = math.fsum((part.value / value) ** 2 / part.degrees for part in known)
    return Variance(value, 1 / inverse if inverse else math.inf)


def of_groups(groups: Sequence[FloatArray]) -> Variance | None:
    """The variance that independent groups of units add; None if one has fewer than two."""
    parts = [of_mean(group) for group in groups]
    known = [part for part in parts if part is not None]
    return total(known) if parts and len(known) == len(parts) else None
