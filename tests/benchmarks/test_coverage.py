"""The short form of benchmarks/coverage.py: intervals cover, and false claims are rare."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coverage import (
    DESIGNS,
    NOISES,
    UNTIL,
    Design,
    Generator,
    Shares,
    Simulator,
    by_pass,
    measure,
)
from specbench.analysis.stats.bootstrap import FloatArray

ROOT = Path(__file__).parents[2]
NUM_RUNS = 60
ONCE, THREE, FIVE, RUNS = DESIGNS


def shares(design: Design, noise: str) -> Shares:
    return measure(partial(Simulator(8).run, design, NOISES[noise]), NUM_RUNS)


def test_one_pass_covers_prompts_and_no_machine_and_claims_nothing() -> None:
    assert shares(ONCE, "no other noise").covered > 0.88
    found = shares(ONCE, "passes differ by 5 %")
    assert found.covered < 0.75
    assert found.coloured == found.said == 0.0


@pytest.mark.parametrize("noise", ["no other noise", "load that comes and goes", "bursts"])
def test_three_passes_cover_what_changes_within_a_run(noise: str) -> None:
    found = shares(THREE, noise)
    assert found.covered > 0.88
    assert max(found.coloured, found.said) < 0.14  # of 60 runs, at 5 %: once in a thousand times


def test_passes_that_differ_are_covered_by_passes_and_runs_by_runs() -> None:
    assert shares(THREE, "passes differ by 5 %").covered > 0.86
    assert shares(THREE, "runs differ by 5 %").covered < 0.8
    found = shares(RUNS, "runs differ by 5 %")
    assert found.covered > 0.88
    assert max(found.coloured, found.said) < 0.14


def test_passes_that_end_by_the_intervals_width_cover_too() -> None:
    run = partial(Simulator(24).until, UNTIL, by_pass(0.02))
    assert measure(run, 30).covered > 0.86


def test_a_real_difference_is_claimed() -> None:
    """All methods take 20 % less time than in the other tests, vanilla does not."""

    def faster(generator: Generator, shape: tuple[int, int, int, int]) -> FloatArray:
        logs = np.zeros(shape)
        logs[..., 1:] = -0.2
        return logs

    assert measure(partial(Simulator(24).run, FIVE, faster), 10).coloured == 1.0


def test_the_documented_table_is_of_these_noises() -> None:
    text = (ROOT / "docs/methodology.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| \d+ \|(?: \d+ / \d+ / \d+ \|){4}$", text, re.M)
    assert list(dict.fromkeys(rows)) == [*NOISES]
