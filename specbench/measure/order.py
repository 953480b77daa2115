"""The order of the methods at each request: balanced Williams designs, drawn with the run's seed.

In a design every method takes every place equally often, and follows every other method
equally often, so that neither a place nor what a method leaves behind (heat, caches) favours
one (Williams 1949). Each block of requests draws another design.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.log.loads import Load


@dataclass(frozen=True, slots=True)
class MethodOrder:
    """The orders of a run's methods, the same for the same seed."""

    labels: tuple[str, ...]
    seed: int

    def at(self, number: int, temperature: float, load: Load) -> tuple[str, ...]:
        """The order at the request of this number among those of its temperature and load."""
        rows = williams_rows(len(self.labels))
        block, row = divmod(number, len(rows))
        draw = random.Random(repr((self.seed, temperature, *load, block)))
        labels = draw.sample(self.labels, len(self.labels))
        return tuple(labels[place] for place in draw.sample(rows, len(rows))[row])


def williams_rows(number: int) -> Sequence[tuple[int, ...]]:
    """A Williams design of this many treatments: a row for each order [number or 2 * number]."""
    first = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(number)]
    rows = [tuple((step + shift) % number for step in first) for shift in range(number)]
    return rows if number % 2 == 0 else [*rows, *(row[::-1] for row in rows)]
