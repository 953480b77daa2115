"""Products of cases: `make test` runs a part of them, and `make test-all` the rest."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def each_once(*axes: Sequence[Any]) -> list[ParameterSet]:
    """The product of the axes, marked slow except for rows that have each value at least once.

    The rows of axes of 3 and 2 values that are not slow: (0, 0), (1, 1) and (2, 0).
    """
    kept = {tuple(index % len(axis) for axis in axes) for index in range(max(map(len, axes)))}
    return [
        pytest.param(
            *(axis[index] for axis, index in zip(axes, row, strict=True)),
            marks=() if row in kept else pytest.mark.slow,
        )
        for row in product(*(range(len(axis)) for axis in axes))
    ]
