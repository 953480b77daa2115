"""The order of methods is balanced over places and neighbours, and seeded."""

from collections import Counter
from itertools import pairwise

import pytest

from specbench.log.loads import NO_LOAD
from specbench.measure.runner import MethodOrder, williams_rows

LABELS = ("vanilla", "sps", "pld", "medusa", "hydra", "eagle", "eagle2", "eagle3")


@pytest.mark.parametrize("number", range(1, 11))
def test_a_design_balances_places_and_neighbours(number: int) -> None:
    rows = williams_rows(number)
    assert all(sorted(row) == [*range(number)] for row in rows)
    for place in range(number):
        assert len({*Counter(row[place] for row in rows).values()}) == 1
    follows = Counter(pair for row in rows for pair in pairwise(row))
    assert len(follows) == number * (number - 1)
    assert len({*follows.values()}) <= 1


@pytest.mark.parametrize("num_methods", [7, 8])
def test_vanilla_takes_every_place_and_follows_every_method(num_methods: int) -> None:
    order = MethodOrder(LABELS[:num_methods], seed=3)
    rows = [order.at(number, 1.0, NO_LOAD) for number in range(168)]
    places = Counter(row.index("vanilla") for row in rows)
    assert places == dict.fromkeys(range(num_methods), 168 // num_methods)
    before = Counter(row[row.index("vanilla") - 1] for row in rows if row[0] != "vanilla")
    assert len(before) == num_methods - 1
    assert max(before.values()) - min(before.values()) <= 3


def test_orders_are_fixed_by_the_seed_and_differ_between_blocks_and_temperatures() -> None:
    def rows(seed: int, temperature: float, first: int = 0) -> list[tuple[str, ...]]:
        order = MethodOrder(LABELS, seed)
        return [order.at(number, temperature, NO_LOAD) for number in range(first, first + 8)]

    assert rows(1, 0.0) == rows(1, 0.0)
    assert rows(1, 0.0) != rows(2, 0.0)
    assert rows(1, 0.0) != rows(1, 1.0)
    assert rows(1, 0.0) != rows(1, 0.0, first=8)
