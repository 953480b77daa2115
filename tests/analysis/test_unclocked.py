"""Time that methods hide from their own clock, and bursts of other programs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.analysis.records import make_table
from specbench.analysis.unclocked import hidden_time
from specbench.types import Record
from tests.analysis.run_factory import record

HIDING = 0.3
"""Seconds that the outer clock sees beyond the completion's own second."""


def answers(method: str, num: int, num_longer: int) -> list[Record]:
    """Answers of a second, some of which took longer by the outer clock."""
    return [
        replace(
            record(method, str(number), decode_s=1.0),
            outer_s=1.0 + (HIDING if number < num_longer else 0.0005),
        )
        for number in range(num)
    ]


def named(*records: Sequence[Record]) -> set[str]:
    table = make_table([answer for group in records for answer in group])
    return {method for method, _ in hidden_time(table)}


def test_a_method_that_hides_time_in_all_answers_is_named() -> None:
    assert named(answers("vanilla", 12, 0), answers("pld", 12, 12)) == {"pld"}
    assert named(answers("vanilla", 12, 0), answers("pld", 12, 9), answers("sps", 12, 0)) == {"pld"}


@pytest.mark.parametrize("num_longer", [4, 8, 12])
def test_bursts_of_another_program_name_nobody(num_longer: int) -> None:
    """One-token answers on a busy machine: 4 of 12 lost 33 to 53 ms between the two clocks."""
    busy = [answers(method, 12, num_longer) for method in ("vanilla", "pld", "sps")]
    assert named(*busy) == set()
    assert named(answers("vanilla", 12, num_longer), answers("pld", 12, 0)) == set()


def test_a_few_more_than_vanilla_are_chance() -> None:
    assert named(answers("vanilla", 12, 1), answers("pld", 12, 4)) == set()


def test_nothing_is_said_without_vanilla() -> None:
    assert named(answers("pld", 12, 12)) == set()
