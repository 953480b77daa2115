"""Bootstrap intervals of ratios of sums."""

from dataclasses import astuple
from math import sqrt
from zlib import crc32

import numpy as np
import pytest
from scipy.stats import norm, t

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.combining import mean, quotient
from specbench.analysis.stats.estimates import Estimate, Interval, interval


def estimate(ratio: Ratio, bootstrap: Bootstrap | None = None, stream: str = "a") -> Estimate:
    return Draws(bootstrap or Bootstrap(), stream).estimate(ratio)


def spread(num_clusters: int, seed: int) -> Ratio:
    """Ratios of about 1.5, drawn cluster by cluster."""
    generator = np.random.default_rng(seed)
    bottom = generator.uniform(20, 128, (num_clusters, 1))
    ratios = generator.lognormal(0.4, 0.3, (num_clusters, 1))
    return Ratio(bottom * ratios, bottom)


def slow_interval(ratio: Ratio, bootstrap: Bootstrap, stream: str) -> Interval:
    """A slow reference of the bootstrap: a loop over resamples and clusters."""
    num_clusters = len(ratio.top)
    generator = np.random.default_rng([bootstrap.seed, crc32(stream.encode())])
    of_all = ratio.top.sum() / ratio.bottom.sum()

    # effective = 1 / sum of squared shares. A cluster's share is the mean of its shares of the
    # sums of top and bottom.
    top_shares = ratio.top / ratio.top.sum()
    bottom_shares = ratio.bottom / ratio.bottom.sum()
    shares = top_shares / 2 + bottom_shares / 2
    effective = 1 / (shares**2).sum()

    # Logarithms of ratios are widened by sqrt(effective / (effective - 1)).
    widening = sqrt(effective / (effective - 1))
    resamples = []
    for _ in range(bootstrap.num_resamples):
        drawn = generator.integers(num_clusters, size=num_clusters)
        top = sum(ratio.top[cluster, 0] for cluster in drawn)
        bottom = sum(ratio.bottom[cluster, 0] for cluster in drawn)
        change = top / bottom / of_all
        resamples.append(of_all * change**widening)

    tail = norm.cdf(-t.ppf(0.975, effective - 1))
    low, high = np.quantile(resamples, [tail, 1 - tail])
    return Interval(low, high)


def test_a_ratio_is_the_product_of_top_sums_over_the_product_of_bottom_sums() -> None:
    top = np.array([[1.0, 2.0], [3.0, 4.0]])
    bottom = np.array([[1.0, 1.0], [1.0, 3.0]])
    top_product = (1 + 3) * (2 + 4)
    bottom_product = (1 + 1) * (1 + 3)
    assert Ratio(top, bottom).estimate.value == top_product / bottom_product


@pytest.mark.parametrize("num_clusters", [8, 30])
def test_the_bootstrap_equals_a_slow_reference(num_clusters: int) -> None:
    ratio = spread(num_clusters, 1)
    bootstrap = Bootstrap(300, seed=5)
    fast = estimate(ratio, bootstrap, "gsm8k").interval
    slow = slow_interval(ratio, bootstrap, "gsm8k")
    assert fast
    assert astuple(fast) == pytest.approx(astuple(slow), rel=1e-12)


def test_an_interval_is_fixed_by_seed_and_stream() -> None:
    ratio = spread(12, 2)
    of_seed_3 = estimate(ratio, Bootstrap(seed=3))
    assert estimate(ratio, Bootstrap(seed=3)) == of_seed_3
    assert estimate(ratio, Bootstrap(seed=4)).interval != of_seed_3.interval
    assert estimate(ratio, Bootstrap(seed=3), "b").interval != of_seed_3.interval


def test_ratios_resampled_together_or_alone_are_equal() -> None:
    ratios = [spread(9, 3), spread(9, 4), spread(5, 5), spread(1, 6)]
    draws = Draws(Bootstrap(), "s")
    together = [draws.estimate(ratio) for ratio in ratios]
    alone = [estimate(ratio, stream="s") for ratio in ratios]
    assert together == alone


def test_equal_sides_have_an_interval_of_width_zero() -> None:
    seconds = np.array([[0.3, 0.7, 0.5, 0.9, 0.4, 0.6]]).T
    assert estimate(Ratio(seconds, seconds)) == Estimate(1.0, Interval(1.0, 1.0))


def test_too_few_or_unequal_clusters_give_no_interval() -> None:
    assert estimate(spread(1, 1)).interval is None
    assert estimate(spread(4, 1)).interval is None
    assert estimate(spread(8, 1)).interval is not None

    weights = [1.0] * 20 + [1000.0]
    bottom = np.array([weights]).T  # [clusters, 1]
    noise = np.random.default_rng(1).lognormal(0, 0.3, bottom.shape)
    heavy = Ratio(bottom * noise, bottom)
    assert estimate(heavy).interval is None


def test_nan_degrees_of_freedom_give_no_interval() -> None:
    assert interval(np.ones(9), np.nan) is None


def test_a_part_without_spread_leaves_a_mean_without_an_interval() -> None:
    of_few_clusters = [estimate(spread(4, seed), stream=str(seed)) for seed in range(6)]
    assert mean(of_few_clusters).interval is not None

    of_nine = estimate(spread(9, 1), stream="a")
    without_spread = estimate(spread(1, 2), stream="b")
    mean_value = (of_nine.value + without_spread.value) / 2
    assert mean([of_nine, without_spread]) == Estimate(mean_value)


def test_a_quotient_on_one_stream_is_paired() -> None:
    slow = spread(30, 1)
    fast = Ratio(slow.top * 1.05, slow.bottom)
    paired = quotient(estimate(fast), estimate(slow))
    assert paired.value == pytest.approx(1.05)
    assert paired.interval
    assert paired.interval.low == pytest.approx(1.05)
    unpaired = quotient(estimate(fast, stream="b"), estimate(slow))
    assert unpaired.interval
    assert 1.0 in unpaired.interval


def spiked(generator: np.random.Generator, size: int) -> FloatArray:
    """Timing noise of a few percent, with occasional spikes of 50 %."""
    sigma = 0.03
    is_spike = generator.random(size) < 0.03
    spikes = is_spike * generator.exponential(0.5, size)
    noise = generator.lognormal(-(sigma**2) / 2, sigma, size)  # of mean 1
    return noise * (1 + spikes)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.15, 0.3])
@pytest.mark.parametrize("num_clusters", [6, 8, 12, 24, 80])
def test_the_coverage_of_an_interval_is_close_to_its_level(num_clusters: int, sigma: float) -> None:
    """Answers differ widely in length, times have heavy tails, and acceptance varies by sample.

    Runs without an interval do not count. All runs use the same draws, since their data are
    independent.
    """
    generator = np.random.default_rng(11)
    draws = Draws(Bootstrap(), "s")
    base_step_s = 0.020
    step_s = 0.022
    mat = 2.0
    # E[1 / accepted] = exp(sigma^2 / 2) / mat, for accepted = mat * lognormal(0, sigma)
    truth = base_step_s / step_s * mat * np.exp(-(sigma**2) / 2)
    num_covered = num_given = 0
    for _ in range(2500):
        tokens = generator.lognormal(4.5, 0.6, num_clusters).clip(8, 512).round()
        accepted = mat * generator.lognormal(0, sigma, num_clusters)
        num_steps = tokens / accepted
        base_s = tokens * base_step_s * spiked(generator, num_clusters)
        method_s = num_steps * step_s * spiked(generator, num_clusters)
        top = np.stack([base_s, tokens], 1)  # [clusters, 2]
        bottom = np.stack([tokens, method_s], 1)
        bounds = draws.estimate(Ratio(top, bottom)).interval
        if bounds is not None:
            num_given += 1
            num_covered += truth in bounds
    assert num_given > 200
    assert 0.93 <= num_covered / num_given <= 0.97
