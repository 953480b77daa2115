"""Ratios of sums and their intervals."""

from math import sqrt
from zlib import crc32

import numpy as np
import pytest
from scipy.stats import norm, t

from specbench.analysis.stats import (
    Bootstrap,
    Draws,
    Estimate,
    FloatArray,
    Interval,
    Ratio,
    mean,
    quotient,
)


def column(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float64)[:, None]


def estimate(ratio: Ratio, bootstrap: Bootstrap | None = None, stream: str = "a") -> Estimate:
    return Draws(bootstrap or Bootstrap(), stream).estimates({"it": ratio})["it"]


def spread(num_clusters: int, seed: int) -> Ratio:
    generator = np.random.default_rng(seed)
    bottom = generator.uniform(20, 128, (num_clusters, 1))
    return Ratio(bottom * generator.lognormal(0.4, 0.3, (num_clusters, 1)), bottom)


def slow_interval(ratio: Ratio, bootstrap: Bootstrap, stream: str) -> Interval:
    """The bootstrap as one would write it down: a loop over resamples and clusters."""
    num_clusters = len(ratio.top)
    generator = np.random.default_rng([bootstrap.seed, crc32(stream.encode())])
    value = ratio.top.sum() / ratio.bottom.sum()
    resamples = []
    for _ in range(bootstrap.num_resamples):
        drawn = generator.integers(num_clusters, size=num_clusters)
        top = sum(ratio.top[i, 0] for i in drawn)
        bottom = sum(ratio.bottom[i, 0] for i in drawn)
        resamples.append(value * (top / bottom / value) ** sqrt(num_clusters / (num_clusters - 1)))
    tail = norm.cdf(-t.ppf(0.975, num_clusters - 1))
    return Interval(*np.quantile(resamples, [tail, 1 - tail]))


def test_a_ratio_is_the_product_of_top_sums_over_the_product_of_bottom_sums() -> None:
    top = np.array([[1.0, 2.0], [3.0, 4.0]])
    bottom = np.array([[1.0, 1.0], [1.0, 3.0]])
    assert Ratio(top, bottom).estimate.value == (1 + 3) * (2 + 4) / ((1 + 1) * (1 + 3))


@pytest.mark.parametrize("num_clusters", [4, 7, 30])
def test_the_bootstrap_equals_a_slow_reference(num_clusters: int) -> None:
    ratio, bootstrap = spread(num_clusters, 1), Bootstrap(300, seed=5)
    interval = estimate(ratio, bootstrap, "gsm8k").interval
    slow = slow_interval(ratio, bootstrap, "gsm8k")
    assert interval is not None
    assert interval.low == pytest.approx(slow.low, rel=1e-12)
    assert interval.high == pytest.approx(slow.high, rel=1e-12)


def test_an_interval_is_fixed_by_seed_and_stream() -> None:
    ratio = spread(12, 2)
    first = estimate(ratio, Bootstrap(seed=3))
    assert estimate(ratio, Bootstrap(seed=3)) == first
    assert estimate(ratio, Bootstrap(seed=4)).interval != first.interval
    assert estimate(ratio, Bootstrap(seed=3), "b").interval != first.interval


def test_ratios_resampled_together_get_what_each_gets_alone() -> None:
    ratios = {"a": spread(9, 3), "b": spread(9, 4), "c": spread(5, 5), "d": spread(1, 6)}
    together = Draws(Bootstrap(), "s").estimates(ratios)
    alone = {name: estimate(ratio, stream="s") for name, ratio in ratios.items()}
    assert together == alone


def test_equal_sides_have_the_interval_one_to_one() -> None:
    same = column(0.3, 0.7, 0.1, 0.9, 0.2)
    assert estimate(Ratio(same, same)) == Estimate(1.0, Interval(1.0, 1.0))


def test_fewer_than_four_clusters_give_no_interval() -> None:
    assert estimate(spread(1, 1)).interval is None
    assert estimate(spread(3, 1)).interval is None
    assert estimate(spread(4, 1)).interval is not None


def test_a_mean_of_tasks_with_few_clusters_each_has_an_interval_all_the_same() -> None:
    parts = [estimate(spread(3, i), stream=str(i)) for i in range(6)]
    assert mean(parts).interval is not None


def test_a_mean_has_no_interval_when_one_of_its_parts_tells_nothing_of_its_spread() -> None:
    parts = [estimate(spread(9, 1), stream="a"), estimate(spread(1, 2), stream="b")]
    assert mean(parts) == Estimate((parts[0].value + parts[1].value) / 2)


def test_a_mean_over_tasks_is_surer_than_its_parts() -> None:
    parts = [estimate(spread(20, i), stream=str(i)) for i in range(6)]
    widths = [part.interval.half_width for part in parts if part.interval]
    interval = mean(parts).interval
    assert interval is not None
    assert interval.half_width == pytest.approx(np.mean(widths) / sqrt(6), rel=0.15)


def test_a_quotient_on_one_stream_is_paired() -> None:
    slow = spread(30, 1)
    fast = Ratio(slow.top * 1.05, slow.bottom)
    ratio = quotient(estimate(fast), estimate(slow))
    assert ratio.value == pytest.approx(1.05)
    assert ratio.interval is not None
    assert ratio.interval.low == pytest.approx(1.05)
    apart = quotient(estimate(fast, stream="b"), estimate(slow))
    assert apart.interval is not None
    assert 1.0 in apart.interval


@pytest.mark.slow
@pytest.mark.parametrize("num_clusters", [10, 80])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(num_clusters: int) -> None:
    generator = np.random.default_rng(11)
    truth, hits, num_runs = np.exp(0.5 - 0.045), 0, 1000
    for run in range(num_runs):
        tokens = generator.integers(20, 128, num_clusters).astype(float)
        base_s = tokens * 1e-3 * generator.lognormal(0, 0.05, num_clusters)
        own_s = tokens * 1e-3 / generator.lognormal(0.5, 0.3, num_clusters)
        ratio = Ratio(np.stack([base_s, tokens], 1), np.stack([tokens, own_s], 1))
        interval = estimate(ratio, Bootstrap(500, seed=run)).interval
        assert interval is not None
        hits += truth in interval
    assert 0.92 <= hits / num_runs <= 0.975
