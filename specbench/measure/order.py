"""The order of the methods at each request: balanced Williams designs, drawn with the run's seed.

In a design every method takes every position equally often, and follows every other method
equally often, so that neither a position nor the traces of a method (heat, caches) favour another
one (Williams 1949). Each block of requests draws another design.
"""

import random
from collections.abc import Sequence

from specbench.log.run import Load


def method_order(
    labels: Sequence[str], seed: int, number: int, temperature: float, load: Load
) -> tuple[str, ...]:
    """The methods' order at a request: `number` counts requests of equal temperature and load."""
    orders = williams_rows(len(labels))
    block, order_in_block = divmod(number, len(orders))
    draw = random.Random(repr((seed, temperature, *load, block)))
    shuffled_labels = draw.sample(labels, len(labels))
    shuffled_orders = draw.sample(orders, len(orders))
    return tuple(shuffled_labels[i] for i in shuffled_orders[order_in_block])


def williams_rows(num_methods: int) -> Sequence[tuple[int, ...]]:
    """A Williams design: a row for each order, [num_methods or 2 * num_methods].

    The first row is 0, 1, n-1, 2, n-2, ... for n methods; the others add 1, 2, ... to it,
    modulo n. With an odd n, all rows follow once more, reversed.
    """
    first_row = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(num_methods)]
    rows = [
        tuple((method + shift) % num_methods for method in first_row)
        for shift in range(num_methods)
    ]
    if num_methods % 2 == 0:
        return rows
    return [*rows, *(row[::-1] for row in rows)]
