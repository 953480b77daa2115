"""Passes and runs are a second random effect beside prompts.

A plan says how many prompts and passes show a difference. Regressions are tested for significance.
"""

import math

import numpy as np
import pytest
from scipy import stats

from specbench.analysis.metrics import measure
from specbench.analysis.planning import Pilot, pilot
from specbench.analysis.ranking import pooled_variance
from specbench.analysis.ratios import RowGroups, log_ratios
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.combining import mean, quotient
from specbench.analysis.stats.estimates import (
    Estimate,
    Missing,
    Value,
    with_interval,
    without_spread,
)
from specbench.analysis.stats.scope import PROMPTS_ONLY
from specbench.analysis.stats.significance import differs, holm, slower
from specbench.analysis.stats.variance import EXACT, Variance, of_groups, of_mean, total
from tests.analysis.run_factory import header, make_run, record

_DRAWS = np.random.default_rng(0).normal(size=2000)
NORMAL = (_DRAWS - _DRAWS.mean()) / _DRAWS.std()
"""Draws with mean 0 and standard deviation 1."""
MEASURED = [0.1, 0.2, 0.6]
"""The logarithms of a value in three passes."""


def estimate_of(middle: float, sd: float, *units: float, degrees: float = 30) -> Estimate:
    """An estimate with this spread over prompts, and these values in its passes."""
    log_units = (np.log(np.array(units)),) if units else ()
    resamples = middle * np.exp(NORMAL * sd)
    return with_interval(Estimate(middle, None, resamples, degrees, log_units, None))


def variance_of_mean(speeds: list[float]) -> float:
    """The variance of the mean of the logarithms."""
    logs = np.log(speeds)
    return float(logs.var(ddof=1)) / len(logs)


def test_the_variance_of_a_mean_is_that_of_a_unit_over_their_number() -> None:
    variance = of_mean(np.array([*MEASURED, np.nan]))
    assert variance is not None
    assert variance.degrees == 2
    assert variance.value == pytest.approx(np.var(MEASURED, ddof=1) / 3)
    assert of_mean(np.array([0.1, np.nan])) is None


def test_degrees_of_freedom_follow_welch_and_satterthwaite() -> None:
    variance = total([Variance(2.0, 10), Variance(1.0, 2)])
    assert variance.value == 3.0
    # (a + b)^2 / (a^2 / 10 + b^2 / 2)
    assert variance.degrees == pytest.approx(3.0**2 / (2.0**2 / 10 + 1.0**2 / 2))
    assert total([EXACT, Variance(1.0, 5)]) == Variance(1.0, 5)
    assert total([EXACT]) == EXACT
    assert of_groups([np.array([0.1]), np.array([0.2, 0.3])]) is None


def test_an_interval_is_students_t_over_prompts_and_passes() -> None:
    passes = [1.9, 2.0, 2.1]
    estimate = estimate_of(2.0, 0.03, *passes)
    of_prompts = 0.03**2
    of_passes = variance_of_mean(passes)
    variance = of_prompts + of_passes
    # Welch and Satterthwaite: (a + b)^2 / (a^2 / 30 + b^2 / 2)
    degrees = variance**2 / (of_prompts**2 / 30 + of_passes**2 / 2)
    half_width = stats.t.ppf(0.975, degrees) * math.sqrt(variance)
    assert estimate.interval is not None
    assert math.log(estimate.interval.high / 2) == pytest.approx(half_width)
    assert math.log(estimate.interval.low / 2) == pytest.approx(-half_width)


def test_the_p_value_agrees_with_the_interval() -> None:
    for middle in np.linspace(0.8, 1.25, 40):
        units = middle * np.array([0.97, 1.0, 1.04])
        estimate = estimate_of(float(middle), 0.03, *units)
        p_value = differs(estimate, without_spread(1.0), estimate.machine)
        assert estimate.interval is not None and p_value is not None
        assert (p_value < 0.05) == (1.0 not in estimate.interval)


def test_a_mean_combines_the_passes_of_its_tasks() -> None:
    first_task = estimate_of(1.0, 0.02, 0.9, 1.1)
    second_task = estimate_of(3.0, 0.02, 2.9, 3.1)
    average = mean([first_task, second_task])
    assert np.exp(average.units[0]) == pytest.approx([1.9, 2.1])


def test_only_a_quotient_in_one_run_pairs_passes() -> None:
    top = estimate_of(2.0, 0.02, 1.8, 2.0, 2.2)
    bottom = estimate_of(1.0, 0.02, 0.9, 1.0, 1.1)
    paired = quotient(top, bottom)
    assert paired.machine is not None
    assert paired.machine.value == pytest.approx(0, abs=1e-12)
    unpaired = quotient(top, bottom, is_one_run=False)
    assert unpaired.machine is not None
    of_each_run = variance_of_mean([0.9, 1.0, 1.1])
    assert unpaired.machine.value == pytest.approx(2 * of_each_run)


def test_missing_requests_do_not_count_as_noise() -> None:
    requests = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    units = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3])
    top = np.array([2.0, 4, 9, 2, 5, 1, 3, 5, 7])
    bottom = np.ones(9)
    (logs,) = log_ratios(RowGroups(requests, units, requests, 4), [top], [bottom])
    assert np.exp(logs[:3]) == pytest.approx([3.0, 3.5, 4.0])
    assert np.isnan(logs[3])
    in_one_unit = RowGroups(requests, np.zeros_like(units), requests, 1)
    assert log_ratios(in_one_unit, [top], [bottom]) == ()


def test_the_pooled_variance_is_that_of_two_methods() -> None:
    generator = np.random.default_rng(1)
    sd = 0.05
    num_methods = 400
    num_passes = 4
    rests = generator.normal(0, sd, (num_methods, num_passes))
    of_vanilla = rests[0]
    speedups = []
    for of_method in rests:
        log_speedups = generator.normal(0, sd) - of_method + of_vanilla  # [passes]
        speedups.append(Estimate(1.0, units=(log_speedups,), machine=None))
    variance = pooled_variance(speedups)
    assert variance is not None
    assert variance.value == pytest.approx(2 * sd**2 / num_passes, rel=0.1)
    assert variance.degrees == num_methods * (num_passes - 1)


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        ([8], PROMPTS_ONLY),
        ([8, 8, 5], "prompts and 3 passes"),
        ([8, 8, 4], "prompts and 2 passes"),
    ],
)
def test_a_run_is_labelled_by_what_its_intervals_cover(passes: list[int], text: str) -> None:
    methods = ["vanilla", "pld"]
    records = [
        record(method, str(sample), repeat=repeat)
        for repeat, num_samples in enumerate(passes)
        for sample in range(num_samples)
        for method in methods
    ]
    run = make_run(records, header(methods, ("gsm8k",)))
    assert measure(run).scope.text == text


PILOT = Pilot(num_prompts=48, prompt_variance=0.02**2, unit_sd=0.03)


def test_a_plan_has_the_fewest_prompts_or_none_if_passes_differ_by_more() -> None:
    needed = PILOT.prompts_for(0.10, 5)
    assert needed is not None
    assert PILOT.smallest(needed, 5) <= 0.10 < PILOT.smallest(needed - 1, 5)
    assert PILOT.prompts_for(0.02, 3) is None
    assert PILOT.prompts_for(0.10, 20) is not None
    assert PILOT.smallest(1e9, 3) > 0.02


def test_a_planned_experiment_has_the_promised_power() -> None:
    """With the plan's number of prompts, 80 % of simulated tests find a difference of 10 %."""
    num_units = 5
    needed = PILOT.prompts_for(0.10, num_units)
    assert needed is not None
    sd = 0.02 * np.sqrt(48 / needed)
    generator = np.random.default_rng(0)
    num_found = 0
    for _ in range(500):
        of_passes = generator.normal(0, 0.03, num_units)
        of_prompts = generator.normal(0, sd)
        log_units = np.log(1.10) + of_passes + of_prompts
        middle = float(np.exp(log_units.mean()))
        estimate = estimate_of(middle, sd, *np.exp(log_units), degrees=needed - 1)
        p_value = differs(estimate, without_spread(1.0), estimate.machine)
        if p_value is not None and p_value < 0.05:
            num_found += 1
    assert 0.72 < num_found / 500 < 0.9


def test_a_pilot_gives_the_variances_of_a_plan() -> None:
    units = (0.98, 1.0, 1.03)
    plan = pilot([estimate_of(1.0, 0.05, *units)], num_prompts=30, num_units=3)
    assert plan is not None
    assert plan.unit_sd == pytest.approx(np.log(units).std(ddof=1))
    single = pilot([estimate_of(1.0, 0.05)], num_prompts=30, num_units=1)
    assert single is not None
    assert single.unit_sd is None
    assert pilot([Estimate(1.0)], num_prompts=30, num_units=3) is None


ONE = without_spread(1.0)
ALLOWED_RISE = 1 / 0.95 - 1
"""The rise in time per token that lowers the speed by the factor 0.95."""


@pytest.mark.parametrize(
    ("machine", "sd", "degrees"),
    [
        pytest.param(EXACT, 0.03, 7, id="prompts alone"),
        # Welch and Satterthwaite: sd^4 / (prompts' sd^4 / 7 + machine's sd^4 / 2)
        pytest.param(
            Variance(0.04**2, 2), 0.05, 0.05**4 / (0.03**4 / 7 + 0.04**4 / 2), id="with machine"
        ),
    ],
)
def test_the_p_value_uses_the_spreads_of_prompts_and_machine(
    machine: Variance, sd: float, degrees: float
) -> None:
    speed = estimate_of(0.90, 0.03, degrees=7)
    p_value = slower(speed, ONE, ALLOWED_RISE, machine)
    distance = np.log(0.90 / 0.95) / sd
    assert p_value == pytest.approx(stats.t.cdf(distance, df=degrees))
    at_the_limit = estimate_of(0.95, 0.03)
    assert slower(at_the_limit, ONE, ALLOWED_RISE, EXACT) == pytest.approx(0.5)


def test_numbers_equal_in_every_sample_need_no_spread() -> None:
    """An example is the acceptance of a repeated greedy run."""
    accepted_before = np.full((8, 1), 3.0)
    same = Ratio(accepted_before, accepted_before)
    worse = Ratio(np.full((8, 1), 2.7), accepted_before)
    draws = Draws(Bootstrap(200), "task")
    assert slower(draws.estimate(same), ONE, 0.0, EXACT) == 0.5
    assert slower(draws.estimate(worse), ONE, ALLOWED_RISE, EXACT) == 0.0


@pytest.mark.parametrize(
    ("speed", "machine"),
    [
        (Missing("not run"), EXACT),
        (Estimate(0.5), EXACT),
        (estimate_of(0.5, 0.1, degrees=0), EXACT),
        (estimate_of(0.5, 0.01), None),
    ],
)
def test_without_the_spread_of_prompts_or_of_the_machine_nothing_is_tested(
    speed: Value, machine: Variance | None
) -> None:
    assert slower(speed, ONE, 0.0, machine) is None
    assert differs(speed, ONE, machine) is None


def test_the_p_value_of_a_difference_is_twice_that_of_a_slowdown() -> None:
    fast = estimate_of(1.1, 0.04)
    slow = estimate_of(1 / 1.1, 0.04)
    assert differs(fast, ONE, EXACT) == pytest.approx(differs(slow, ONE, EXACT))
    p_value = slower(slow, ONE, 0.0, EXACT)
    assert p_value is not None
    assert differs(slow, ONE, EXACT) == pytest.approx(2 * p_value)
    assert differs(ONE, ONE, EXACT) == 1.0


def test_a_method_exactly_at_the_limit_rarely_fails() -> None:
    generator = np.random.default_rng(4)
    speeds = np.exp(generator.normal(-np.log(1.05), 0.02, 400))
    p_values = [slower(estimate_of(float(speed), 0.02), ONE, 0.05, EXACT) for speed in speeds]
    num_found = sum(p_value is not None and p_value <= 0.05 for p_value in p_values)
    assert num_found == pytest.approx(0.05 * 400, abs=14)


@pytest.mark.parametrize(
    ("p_values", "claimed"),
    [
        ({"a": 0.004, "b": 0.006, "c": 0.9}, set()),  # 0.004 > 0.01 / 3
        ({"a": 0.003, "b": 0.006, "c": 0.9}, {"a"}),  # 0.006 > 0.01 / 2
        ({"a": 0.003, "b": 0.005, "c": 0.009}, {"a", "b", "c"}),
        ({"a": 0.009, "b": None}, {"a"}),
    ],
)
def test_holm_claims_no_more_than_the_number_of_tests_allows(
    p_values: dict[str, float | None], claimed: set[str]
) -> None:
    corrected = holm(p_values)
    assert {key for key, p in corrected.items() if p is not None and p <= 0.01} == claimed


def test_holm_corrects_p_values_and_keeps_missing_ones() -> None:
    assert holm({"a": 0.02, "b": None, "c": 0.015}) == {"a": 0.03, "b": None, "c": 0.03}
    assert holm({}) == {}
