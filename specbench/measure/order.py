"""Draw the order of the methods for each request, in balanced designs, with the run's seed.

In a Williams design, every method takes every position equally often, and follows every other
method equally often. So no method gains from its position, or from heat or full caches that the
method before it leaves behind (Williams 1949). A new design is drawn for each block of requests.
"""

import random
from collections.abc import Sequence

from specbench.log.run import Load


def method_order(
    labels: Sequence[str], seed: int, number: int, temperature: float, load: Load
) -> tuple[str, ...]:
    """The labels of the methods in the order in which they complete a request.

    `labels` are the methods in table order. `number` is the number of earlier requests at this
    temperature and load. A block has as many requests as a design has orders, so that each order is
    used once per block.
    """
    orders = williams_rows(len(labels))  # each order is a tuple of the methods' indices
    block, order_in_block = divmod(number, len(orders))
    generator = random.Random(repr((seed, temperature, *load, block)))
    shuffled_labels = generator.sample(labels, len(labels))
    shuffled_orders = generator.sample(orders, len(orders))
    return tuple(shuffled_labels[method] for method in shuffled_orders[order_in_block])


def williams_rows(num_methods: int) -> Sequence[tuple[int, ...]]:
    """A Williams design of n methods. Each row is an order of the methods' indices.

    The first row is 0, 1, n-1, 2, n-2, ...; each further row adds 1 to the row before it, modulo n.
    There are n rows if n is even. If n is odd, the same n rows follow again, each reversed.
    """
    first_row = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(num_methods)]
    rows = [
        tuple((method + shift) % num_methods for method in first_row)
        for shift in range(num_methods)
    ]
    if num_methods % 2 == 0:
        return rows
    return [*rows, *(row[::-1] for row in rows)]
