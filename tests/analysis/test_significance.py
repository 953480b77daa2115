"""Significance tests of regressions."""

import numpy as np
import pytest
from scipy import stats

from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Estimate, Missing, Ratio
from specbench.analysis.stats.significance import below, claims, sign_test


def estimate(value: float, spread: float, degrees: float = 40) -> Estimate:
    """An estimate whose resamples have exactly this spread on the log scale."""
    normal = np.random.default_rng(0).normal(size=2000)
    normal = (normal - normal.mean()) / normal.std()
    return Estimate(value, None, value * np.exp(normal * spread), degrees)


def test_the_p_value_is_students_of_the_distance_in_spreads() -> None:
    p_value = below(estimate(0.90, 0.02, degrees=7), 0.95)
    assert p_value == pytest.approx(stats.t.cdf(np.log(0.90 / 0.95) / 0.02, df=7))
    assert below(estimate(0.95, 0.02), 0.95) == pytest.approx(0.5)


def test_a_number_above_its_limit_is_never_significant() -> None:
    p_value = below(estimate(1.2, 0.001), 0.95)
    assert p_value is not None
    assert p_value > 0.99


def test_numbers_equal_in_every_sample_need_no_spread() -> None:
    """An example is the acceptance of a greedy run made twice."""
    same = Ratio(np.full((8, 1), 3.0), np.full((8, 1), 3.0))
    worse = Ratio(np.full((8, 1), 2.7), np.full((8, 1), 3.0))
    draws = Draws(Bootstrap(200), "task")
    found = draws.estimates({"same": same, "worse": worse})
    assert below(found["same"], 1.0) == 1.0
    assert below(found["worse"], 0.95) == 0.0


@pytest.mark.parametrize("value", [Missing("not run"), Estimate(0.5), estimate(0.5, 0.1, 0.0)])
def test_a_number_without_spread_is_not_tested(value: Estimate | Missing) -> None:
    assert below(value, 0.95) is None


def test_holm_claims_no_more_than_the_number_of_tests_allows() -> None:
    assert claims({"a": 0.004, "b": 0.006, "c": 0.9}, 0.01) == set()  # 0.004 > 0.01 / 3
    assert claims({"a": 0.003, "b": 0.006, "c": 0.9}, 0.01) == {"a"}  # 0.006 > 0.01 / 2
    assert claims({"a": 0.003, "b": 0.005, "c": 0.009}, 0.01) == {"a", "b", "c"}
    assert claims({}) == set()


def test_as_many_better_as_worse_is_chance() -> None:
    assert sign_test(0, 0) == 1.0
    assert sign_test(3, 3) > 0.5
    assert sign_test(7, 0) == pytest.approx(0.5**7)
    assert sign_test(20, 2) == pytest.approx(stats.binomtest(20, 22, alternative="greater").pvalue)
