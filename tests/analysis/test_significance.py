"""Significance tests of regressions."""

import numpy as np
import pytest
from scipy import stats

from specbench.analysis.stats.bootstrap import (
    Bootstrap,
    Draws,
    Estimate,
    Missing,
    Ratio,
    Value,
    without_spread,
)
from specbench.analysis.stats.effects import EXACT, Variance
from specbench.analysis.stats.significance import differs, holm, slower

ONE = without_spread(1.0)


def below(ratio: Value, limit: float) -> float | None:
    """The p-value of "the true ratio is at or above the limit", on a machine that adds nothing."""
    return slower(ratio, ONE, 1 / limit - 1, EXACT)


def estimate(value: float, spread: float, degrees: float = 40) -> Estimate:
    """An estimate whose resamples have exactly this spread on the log scale."""
    normal = np.random.default_rng(0).normal(size=2000)
    normal = (normal - normal.mean()) / normal.std()
    return Estimate(value, None, value * np.exp(normal * spread), degrees)


def test_the_p_value_is_students_of_the_distance_in_spreads() -> None:
    p_value = below(estimate(0.90, 0.02, degrees=7), 0.95)
    assert p_value == pytest.approx(stats.t.cdf(np.log(0.90 / 0.95) / 0.02, df=7))
    assert below(estimate(0.95, 0.02), 0.95) == pytest.approx(0.5)


def test_numbers_equal_in_every_sample_need_no_spread() -> None:
    """An example is the acceptance of a greedy run made twice."""
    same = Ratio(np.full((8, 1), 3.0), np.full((8, 1), 3.0))
    worse = Ratio(np.full((8, 1), 2.7), np.full((8, 1), 3.0))
    draws = Draws(Bootstrap(200), "task")
    found = draws.estimates({"same": same, "worse": worse})
    assert below(found["same"], 1.0) == 0.5
    assert below(found["worse"], 0.95) == 0.0


@pytest.mark.parametrize("value", [Missing("not run"), Estimate(0.5), estimate(0.5, 0.1, 0.0)])
def test_a_number_without_spread_is_not_tested(value: Estimate | Missing) -> None:
    assert below(value, 0.95) is None


def test_a_machine_whose_variance_is_unknown_supports_no_test() -> None:
    assert slower(estimate(0.5, 0.01), ONE, 0.0, None) is None
    assert differs(estimate(0.5, 0.01), ONE, None) is None


def test_the_machines_variance_is_added_to_that_of_prompts() -> None:
    p_value = slower(estimate(0.90, 0.03, degrees=30), ONE, 0.0, Variance(0.04**2, 2))
    degrees = 0.05**4 / (0.03**4 / 30 + 0.04**4 / 2)
    assert p_value == pytest.approx(stats.t.cdf(np.log(0.90) / 0.05, df=degrees))


def test_what_is_slower_at_5_percent_on_either_side_differs_at_10() -> None:
    fast, slow = estimate(1.1, 0.04), estimate(1 / 1.1, 0.04)
    assert differs(fast, ONE, EXACT) == pytest.approx(differs(slow, ONE, EXACT))
    p_value = slower(slow, ONE, 0.0, EXACT)
    assert p_value is not None and differs(slow, ONE, EXACT) == pytest.approx(2 * p_value)
    assert differs(ONE, ONE, EXACT) == 1.0


def test_a_method_as_slow_as_the_limit_is_found_as_often_as_chance_allows() -> None:
    generator = np.random.default_rng(4)
    p_values = [
        slower(
            estimate(float(np.exp(generator.normal(-np.log(1.05), 0.02))), 0.02), ONE, 0.05, EXACT
        )
        for _ in range(400)
    ]
    assert sum(p is not None and p <= 0.05 for p in p_values) == pytest.approx(20, abs=14)


def test_holm_claims_no_more_than_the_number_of_tests_allows() -> None:
    def claims(p_values: dict[str, float | None]) -> set[str]:
        return {key for key, p in holm(p_values).items() if p is not None and p <= 0.01}

    assert claims({"a": 0.004, "b": 0.006, "c": 0.9}) == set()  # 0.004 > 0.01 / 3
    assert claims({"a": 0.003, "b": 0.006, "c": 0.9}) == {"a"}  # 0.006 > 0.01 / 2
    assert claims({"a": 0.003, "b": 0.005, "c": 0.009}) == {"a", "b", "c"}
    assert claims({"a": 0.009, "b": None}) == {"a"}
    assert holm({"a": 0.02, "b": None, "c": 0.015}) == {"a": 0.03, "b": None, "c": 0.03}
    assert holm({}) == {}
