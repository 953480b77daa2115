"""The short form of benchmarks/coverage.py: intervals cover, and false claims are rare."""

import re
from functools import partial

import numpy as np
import pytest

from benchmarks.coverage import (
    DESIGNS,
    NOISES,
    UNTIL,
    Design,
    Generator,
    Simulator,
    by_pass,
    measure,
)
from specbench.analysis.stats.arrays import FloatArray
from tests.support.paths import ROOT

ONCE, THREE, FIVE, RUNS = DESIGNS


@pytest.mark.parametrize(
    ("design", "noise", "least", "most", "claims"),
    [
        (ONCE, "no other noise", 0.88, 1, 0),  # one pass supports no claims
        (ONCE, "passes differ by 5 %", 0, 0.75, 0),
        (THREE, "no other noise", 0.88, 1, 0.14),  # at a rate of 5 %, more is 0.1 % likely
        (THREE, "load that comes and goes", 0.88, 1, 0.14),
        (THREE, "bursts", 0.88, 1, 0.14),
        (THREE, "passes differ by 5 %", 0.86, 1, 1),
        (THREE, "runs differ by 5 %", 0, 0.8, 1),
        (RUNS, "runs differ by 5 %", 0.88, 1, 0.14),
    ],
)
def test_intervals_cover_and_false_claims_are_rare(
    design: Design, noise: str, least: float, most: float, claims: float
) -> None:
    coverage = measure(partial(Simulator(8).run, design, NOISES[noise]), 60)
    assert least < coverage.covered <= most
    assert max(coverage.coloured, coverage.said) <= claims


def test_passes_that_end_by_the_intervals_width_cover_too() -> None:
    run = partial(Simulator(24).until, UNTIL, by_pass(0.02))
    assert measure(run, 30).covered > 0.86


def test_a_real_difference_is_claimed() -> None:
    """All methods except vanilla take 20 % less time than in the other tests."""

    def faster(generator: Generator, shape: tuple[int, int, int, int]) -> FloatArray:
        logs = np.zeros(shape)
        logs[..., 1:] = -0.2
        return logs

    assert measure(partial(Simulator(24).run, FIVE, faster), 10).coloured == 1.0


def test_the_documented_table_is_of_these_noises() -> None:
    text = (ROOT / "docs/methodology.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| \d+ \|(?: \d+ / \d+ / \d+ \|){4}$", text, re.M)
    assert list(dict.fromkeys(rows)) == [*NOISES]
