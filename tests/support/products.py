"""Products of cases. `make test` runs a part of them, and `make test-all` all."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def each_once(*axes: Sequence[Any]) -> list[ParameterSet]:
    """All rows of the product of the axes. Rows are marked slow if the others cover all values.

    For axes of 3 and 2 values, the rows that are not slow have the indices (0, 0), (1, 1) and (2,
    0).
    """
    kept = {tuple(index % len(axis) for axis in axes) for index in range(max(map(len, axes)))}
    return [
        pytest.param(
            *(axis[index] for axis, index in zip(axes, row, strict=True)),
            marks=() if row in kept else pytest.mark.slow,
        )
        for row in product(*(range(len(axis)) for axis in axes))
    ]
