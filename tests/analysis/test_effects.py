"""Passes and runs as a second random effect beside prompts."""

import math

import numpy as np
import pytest
from scipy import stats

from specbench.analysis.metrics import measure
from specbench.analysis.ranking import pooled_variance, rank
from specbench.analysis.ratios import Places, log_ratios
from specbench.analysis.stats.bootstrap import (
    Estimate,
    estimate,
    mean,
    quotient,
    without_spread,
)
from specbench.analysis.stats.effects import EXACT, Variance, of_groups, of_mean, total
from specbench.analysis.stats.significance import differs
from specbench.analysis.units import PROMPTS_ONLY
from tests.analysis.run_factory import header, make_run, record

NORMAL = np.random.default_rng(0).normal(size=2000)
NORMAL = (NORMAL - NORMAL.mean()) / NORMAL.std()


def made(value: float, sd: float, *units: float, degrees: float = 30) -> Estimate:
    """An estimate with this spread over prompts, and these values in its passes."""
    groups = (np.log(np.array(units)),) if units else ()
    return estimate(value, value * np.exp(NORMAL * sd), degrees, units=groups, machine=None)


def test_the_variance_of_a_mean_is_that_of_units_over_their_number() -> None:
    logs = np.array([0.1, 0.2, 0.6, np.nan])
    found = of_mean(logs)
    assert found is not None and found.degrees == 2
    assert found.value == pytest.approx(np.var([0.1, 0.2, 0.6], ddof=1) / 3)
    assert of_mean(np.array([0.1, np.nan])) is None


def test_degrees_of_a_sum_are_those_of_welch_and_satterthwaite() -> None:
    found = total([Variance(2.0, 10), Variance(1.0, 2)])
    assert found.value == 3.0
    assert found.degrees == pytest.approx(9 / (4 / 10 + 1 / 2))
    assert total([EXACT, Variance(1.0, 5)]) == Variance(1.0, 5)
    assert total([EXACT]) == EXACT
    assert of_groups([np.array([0.1]), np.array([0.2, 0.3])]) is None


def test_an_interval_is_students_over_prompts_and_passes() -> None:
    found = made(2.0, 0.03, 1.9, 2.0, 2.1)
    passes = np.log([1.9, 2.0, 2.1])
    variance = 0.03**2 + passes.var(ddof=1) / 3
    degrees = variance**2 / (0.03**4 / 30 + (passes.var(ddof=1) / 3) ** 2 / 2)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(variance)
    assert found.interval is not None
    assert math.log(found.interval.high / 2) == pytest.approx(half)
    assert math.log(found.interval.low / 2) == pytest.approx(-half)


def test_the_p_value_falls_below_5_percent_where_the_interval_leaves_1() -> None:
    for value in np.linspace(0.8, 1.25, 40):
        found = made(float(value), 0.03, *(value * np.array([0.97, 1.0, 1.04])))
        p_value = differs(found, without_spread(1.0), found.machine)
        assert found.interval is not None and p_value is not None
        assert (p_value < 0.05) == (1.0 not in found.interval)


def test_a_mean_combines_the_passes_of_its_tasks() -> None:
    found = mean([made(1.0, 0.02, 0.9, 1.1), made(3.0, 0.02, 2.9, 3.1)])
    assert np.exp(found.units[0]) == pytest.approx([1.9, 2.1])


def test_a_quotient_in_one_run_pairs_passes_and_of_two_runs_does_not() -> None:
    top, bottom = made(2.0, 0.02, 1.8, 2.0, 2.2), made(1.0, 0.02, 0.9, 1.0, 1.1)
    together, apart = quotient(top, bottom), quotient(top, bottom, is_one_run=False)
    assert together.machine is not None and apart.machine is not None
    assert together.machine.value == pytest.approx(0, abs=1e-12)
    assert apart.machine.value == pytest.approx(2 * np.log([0.9, 1.0, 1.1]).var(ddof=1) / 3)


def test_a_pass_without_all_requests_does_not_count_as_noise() -> None:
    units, requests = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0])
    top, bottom = np.array([2.0, 4, 2, 5, 9]), np.ones(5)
    (logs,) = log_ratios(Places(requests, units, requests, 3), [top], [bottom])
    assert np.exp(logs[:2]) == pytest.approx([3.0, 3.5])
    assert np.isnan(logs[2])
    assert log_ratios(Places(requests, units * 0, requests, 1), [top], [bottom]) == ()


def test_the_pooled_variance_is_that_of_two_methods_rests() -> None:
    generator = np.random.default_rng(1)
    sd, num_methods, num_passes = 0.05, 400, 4
    own = generator.normal(0, sd, (num_methods, num_passes))
    speedups = [
        Estimate(1.0, units=(generator.normal(0, sd) - row + own[0],), machine=None) for row in own
    ]
    found = pooled_variance(speedups)
    assert found is not None
    assert found.value == pytest.approx(2 * sd**2 / num_passes, rel=0.1)
    assert found.degrees == num_methods * (num_passes - 1)


def test_a_ranking_corrects_for_all_methods() -> None:
    one = {"vanilla": made(1, 0.01, 1, 1, 1), "a": made(1.06, 0.02, 1.05, 1.06, 1.07)}
    alone = rank(one, "vanilla").against_baseline["a"]
    many = {f"m{i}": made(1.0 + i / 1000, 0.02, 1.0, 1.01, 0.99) for i in range(7)}
    among = rank(one | many, "vanilla").against_baseline["a"]
    assert alone is not None and among is not None
    assert alone < 0.05 < among


@pytest.mark.parametrize(("num_passes", "text"), [(1, PROMPTS_ONLY), (3, "prompts and 3 passes")])
def test_a_run_is_labelled_by_what_its_intervals_cover(num_passes: int, text: str) -> None:
    records = [
        record(method, str(i), repeat=repeat)
        for repeat in range(num_passes)
        for i in range(8)
        for method in ("vanilla", "pld")
    ]
    assert measure(make_run(records, header(["vanilla", "pld"], ("gsm8k",)))).scope.text == text
