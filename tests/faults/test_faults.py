"""The short version of the fault suite, and tests of the suite itself."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faults.suite import Area, area_names, load_area, run_area, table


@pytest.mark.parametrize("name", area_names())
def test_the_program_withstands(name: str) -> None:
    area = load_area(name)
    result = run_area(area, area.scaled(0.01))
    assert not result.failures


def test_a_failure_is_counted_under_the_seed_that_repeats_it() -> None:
    def attack(random: Random, folder: Path) -> None:
        assert not list(folder.iterdir())
        (folder / "left").write_text("over")
        assert random.random() < 0.9, "too large"

    area = Area("large numbers", 1000, attack)
    result = run_area(area, area.scaled(0.1), seed=5)
    assert result.failures
    assert all(Random(seed).random() >= 0.9 for seed in result.failures)
    assert f"100{len(result.failures):10}      5 to 104" in table([result])
