"""Statistics of plain arrays: intervals and tests."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.intp]
BoolArray: TypeAlias = NDArray[np.bool_]

MIN_DEGREES = 4
"""Degrees of freedom that an interval needs: about six samples of different lengths.

With fewer, intervals miss the truth more often than they claim (simulated).
"""
