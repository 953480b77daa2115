"""Bootstrap intervals of ratios of sums."""

from dataclasses import astuple
from math import sqrt
from zlib import crc32

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student_t

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.combining import mean, quotient
from specbench.analysis.stats.estimates import Estimate, Interval, interval


def estimate(ratio: Ratio, bootstrap: Bootstrap | None = None, stream: str = "a") -> Estimate:
    return Draws(bootstrap or Bootstrap(), stream).estimate(ratio)


def random_ratio(num_clusters: int, seed: int) -> Ratio:
    """A ratio of about 1.5. Each cluster has its own, drawn from a lognormal distribution."""
    generator = np.random.default_rng(seed)
    shape = (num_clusters, 1)
    bottom = generator.uniform(20, 128, shape)
    ratios = generator.lognormal(0.4, 0.3, shape)
    return Ratio(bottom * ratios, bottom)


def slow_interval(ratio: Ratio, bootstrap: Bootstrap, stream: str) -> Interval:
    """A slow reference of the bootstrap: a loop over resamples and clusters."""
    num_clusters = len(ratio.top)
    generator = np.random.default_rng([bootstrap.seed, crc32(stream.encode())])
    tops = ratio.top[:, 0]  # [clusters]
    bottoms = ratio.bottom[:, 0]  # [clusters]
    of_all = tops.sum() / bottoms.sum()

    # effective = 1 / sum of squared shares. A cluster's share is the mean of its shares of the
    # sums of top and bottom.
    top_shares = tops / tops.sum()
    bottom_shares = bottoms / bottoms.sum()
    shares = top_shares / 2 + bottom_shares / 2
    effective = 1 / (shares**2).sum()
    degrees = effective - 1  # degrees of freedom

    # Logarithms of ratios are widened by sqrt(effective / (effective - 1)).
    widening = sqrt(effective / degrees)
    resamples = []
    for _ in range(bootstrap.num_resamples):
        drawn = generator.integers(num_clusters, size=num_clusters)
        top = sum(tops[cluster] for cluster in drawn)
        bottom = sum(bottoms[cluster] for cluster in drawn)
        change = top / bottom / of_all
        resamples.append(of_all * change**widening)

    # The tail is the probability of a normal variable below -t, instead of 0.025.
    t_quantile = student_t.ppf(0.975, degrees)
    tail = norm.cdf(-t_quantile)
    low, high = np.quantile(resamples, [tail, 1 - tail])
    return Interval(low, high)


def test_a_ratio_is_the_product_of_top_sums_over_the_product_of_bottom_sums() -> None:
    top = np.array([[1.0, 2.0], [3.0, 4.0]])  # [clusters, 2]
    bottom = np.array([[1.0, 1.0], [1.0, 3.0]])
    top_product = (1 + 3) * (2 + 4)
    bottom_product = (1 + 1) * (1 + 3)
    assert Ratio(top, bottom).estimate.value == top_product / bottom_product


@pytest.mark.parametrize("num_clusters", [8, 30])
def test_the_bootstrap_equals_a_slow_reference(num_clusters: int) -> None:
    ratio = random_ratio(num_clusters, seed=1)
    bootstrap = Bootstrap(300, seed=5)
    fast = estimate(ratio, bootstrap, "gsm8k").interval
    slow = slow_interval(ratio, bootstrap, "gsm8k")
    assert fast
    assert astuple(fast) == pytest.approx(astuple(slow), rel=1e-12)


def test_an_interval_is_fixed_by_seed_and_stream() -> None:
    ratio = random_ratio(12, seed=2)
    of_seed_3 = estimate(ratio, Bootstrap(seed=3), stream="a")
    assert estimate(ratio, Bootstrap(seed=3), stream="a") == of_seed_3
    assert estimate(ratio, Bootstrap(seed=4), stream="a").interval != of_seed_3.interval
    assert estimate(ratio, Bootstrap(seed=3), stream="b").interval != of_seed_3.interval


def test_ratios_resampled_together_or_alone_are_equal() -> None:
    ratios = [
        random_ratio(9, seed=3),
        random_ratio(9, seed=4),
        random_ratio(5, seed=5),
        random_ratio(1, seed=6),
    ]
    draws = Draws(Bootstrap(), "s")
    together = [draws.estimate(ratio) for ratio in ratios]
    assert together == [estimate(ratio, stream="s") for ratio in ratios]


def test_equal_sides_have_an_interval_of_width_zero() -> None:
    seconds = np.array([[0.3, 0.7, 0.5, 0.9, 0.4, 0.6]]).T  # [clusters, 1]
    assert estimate(Ratio(seconds, seconds)) == Estimate(1.0, Interval(1.0, 1.0))


@pytest.mark.parametrize(
    ("num_clusters", "has_interval"),
    [
        (1, False),
        (4, False),
        (8, True),
    ],
)
def test_too_few_clusters_give_no_interval(num_clusters: int, has_interval: bool) -> None:
    bounds = estimate(random_ratio(num_clusters, seed=1)).interval
    assert (bounds is not None) is has_interval


def test_a_cluster_that_outweighs_all_others_leaves_no_interval() -> None:
    weights = [1.0] * 20 + [1000.0]
    bottom = np.array([weights]).T  # [clusters, 1]
    generator = np.random.default_rng(1)
    noise = generator.lognormal(0, 0.3, bottom.shape)
    assert estimate(Ratio(bottom * noise, bottom)).interval is None


def test_nan_degrees_of_freedom_give_no_interval() -> None:
    assert interval(resamples=np.ones(9), degrees=np.nan) is None


def test_a_mean_of_parts_with_few_clusters_has_an_interval() -> None:
    ratios = [random_ratio(4, seed) for seed in range(6)]
    independent = [estimate(ratio, stream=str(task)) for task, ratio in enumerate(ratios)]
    assert mean(independent).interval is not None


def test_a_part_without_spread_leaves_a_mean_without_an_interval() -> None:
    of_nine_clusters = estimate(random_ratio(9, seed=1), stream="a")
    without_spread = estimate(random_ratio(1, seed=2), stream="b")
    mean_value = (of_nine_clusters.value + without_spread.value) / 2
    assert mean([of_nine_clusters, without_spread]) == Estimate(mean_value)


SLOW = random_ratio(30, seed=1)
FAST = Ratio(SLOW.top * 1.05, SLOW.bottom)
"""A ratio that is 1.05 times as large as `SLOW` in every cluster."""


def test_a_quotient_on_one_stream_is_paired() -> None:
    paired = quotient(estimate(FAST), estimate(SLOW))
    assert paired.value == pytest.approx(1.05)
    assert paired.interval
    assert paired.interval.low == pytest.approx(1.05)


def test_a_quotient_of_two_streams_is_unpaired() -> None:
    slow = estimate(SLOW, stream="a")
    fast = estimate(FAST, stream="b")
    unpaired = quotient(fast, slow)
    assert unpaired.interval
    assert 1.0 in unpaired.interval


BASE_STEP_S = 0.020
METHOD_STEP_S = 0.022
MEDIAN_ACCEPTED = 2.0
"""Tokens per step of the method. Half of the answers have more."""


def timing_noise(generator: np.random.Generator, size: int) -> FloatArray:
    """Factors [size] that vary by a few percent, with occasional spikes of 50 %."""
    sigma = 0.03
    is_spike = generator.random(size) < 0.03
    spikes = is_spike * generator.exponential(0.5, size)
    noise = generator.lognormal(-(sigma**2) / 2, sigma, size)  # of mean 1
    return noise * (1 + spikes)


def random_speedup(generator: np.random.Generator, num_answers: int, sigma: float) -> Ratio:
    """The speedup of a method over simulated answers, each of which is a cluster.

    Answers differ widely in length, times have heavy tails, and acceptance varies by sample.
    """
    lengths = generator.lognormal(4.5, 0.6, num_answers)
    num_tokens = lengths.clip(8, 512).round()
    # tokens per step: median * lognormal(0, sigma)
    accepted = MEDIAN_ACCEPTED * generator.lognormal(0, sigma, num_answers)
    num_steps = num_tokens / accepted
    base_s = num_tokens * BASE_STEP_S * timing_noise(generator, num_answers)
    method_s = num_steps * METHOD_STEP_S * timing_noise(generator, num_answers)
    # speedup = (sum of base_s / sum of tokens) * (sum of tokens / sum of method_s)
    top = np.stack([base_s, num_tokens], 1)  # [answers, 2]
    bottom = np.stack([num_tokens, method_s], 1)
    return Ratio(top, bottom)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.15, 0.3])
@pytest.mark.parametrize("num_clusters", [6, 8, 12, 24, 80])
def test_the_coverage_of_an_interval_is_close_to_its_level(num_clusters: int, sigma: float) -> None:
    """Runs without an interval do not count.

    All runs use the same draws, since their data are independent.
    """
    generator = np.random.default_rng(11)
    draws = Draws(Bootstrap(), "s")
    # E[1 / accepted] = exp(sigma^2 / 2) / median, for accepted = median * lognormal(0, sigma)
    steps_per_token = np.exp(sigma**2 / 2) / MEDIAN_ACCEPTED
    truth = BASE_STEP_S / (METHOD_STEP_S * steps_per_token)
    num_covered = 0
    num_given = 0
    for _ in range(2500):
        bounds = draws.estimate(random_speedup(generator, num_clusters, sigma)).interval
        if bounds is not None:
            num_given += 1
            num_covered += truth in bounds
    assert num_given > 200
    assert 0.93 <= num_covered / num_given <= 0.97
