"""The break-even load: its place between two loads, its interval, and how a report states it."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from specbench.analysis.break_even import break_even, crossing
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Interval
from specbench.log.run import Load, Run
from specbench.report.build import make_report
from specbench.report.load_notes import _interval_text
from specbench.types import Record
from tests.analysis.test_serving import answer, block, run
from tests.judge.changing import with_header

LOADS = (1, 4, 16)
SERVERS = {
    label: {"url": "http://127.0.0.1:1", "software": "", "model": "tiny", "protocol": "openai"}
    for label in ("vanilla", "eagle3")
}


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.5, 1.2, 0.8), 8.0),  # halfway from 4 to 16 on a logarithmic scale
        ((1.5, 1.0, 0.8), 4.0),
        ((1.25, 0.75, 1.3), 2.0),  # the first crossing
        ((0.9, 1.2, 0.8), 0.0),
        ((1.5, 1.2, 1.1), math.inf),
    ],
)
def test_the_crossing_lies_on_a_line_in_the_logarithm_of_the_load(
    ratios: Sequence[float], expected: float
) -> None:
    assert crossing(LOADS, ratios) == pytest.approx(expected)


def noisy(mean: float, random: np.random.Generator) -> Estimate:
    """A ratio with 5 % noise, and resamples around it."""
    measured = mean * math.exp(random.normal(0, 0.05))
    return Estimate(measured, resamples=measured * np.exp(random.normal(0, 0.05, 400)))


def test_intervals_cover_the_true_crossing() -> None:
    random = np.random.default_rng(7)
    truth = crossing(LOADS, (1.6, 1.3, 0.7))
    num_inside = 0
    for _ in range(100):
        result = break_even(
            {load: noisy(mean, random) for load, mean in zip(LOADS, (1.6, 1.3, 0.7), strict=True)}
        )
        assert result.interval is not None
        num_inside += truth in result.interval
    assert 88 <= num_inside <= 100
    assert (result.last_faster, result.first_slower) == (4, 16)


def test_an_interval_may_go_beyond_the_measured_loads() -> None:
    random = np.random.default_rng(3)
    result = break_even({1: noisy(1.5, random), 8: noisy(1.0, random)})
    assert result.interval is not None and math.isinf(result.interval.high)
    assert break_even({1: Estimate(1.5), 8: Estimate(0.9)}).interval is None


def served_run(ratios: dict[int, float]) -> Run:
    """A run of EAGLE-3 with the ratio of its throughput to vanilla's at each load."""
    loads = [Load(concurrency=load) for load in ratios]
    records: list[Record] = []
    blocks = []
    for repeat in (0, 1):
        for load, ratio in zip(loads, ratios.values(), strict=True):
            for method, seconds in (("vanilla", 4.0), ("eagle3", 4.0 / ratio)):
                blocks.append(block(method, load, duration_s=seconds, repeat=repeat))
                records += [
                    answer(method, prompt, load, wall_s=seconds / 4, repeat=repeat)
                    for prompt in range(4)
                ]
    return with_header(run(records, blocks, loads, repeats=2), servers=SERVERS)


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        ({1: 1.5, 4: 1.2, 16: 0.8}, "falls to 1 at about 8 requests at once, between the measured"),
        ({64: 1.2, 256: 0.8}, "It falls to 1 at about 128 requests at once, between the"),
        ({1: 1.01, 4: 0.5}, "It falls to 1 at about 1 request at once, between the"),
        ({1: 1.5, 16: 1.2}, "It is above 1 at all measured loads, up to 16."),
        ({1: 0.9, 16: 0.8}, "It is not above 1 at any measured load, from 1 up."),
    ],
)
def test_a_report_says_up_to_which_load_a_method_pays(
    ratios: dict[int, float], sentence: str
) -> None:
    notes = make_report(served_run(ratios), Bootstrap(50)).notes
    (text,) = [note.text for note in notes if note.key == "loads"]
    load, first = next(iter(ratios.items()))
    assert (
        f" / throughput of vanilla: {first:.2f}x at {load} request (TTFT {1 / first - 1:+.0%}"
        in (text.replace(" %", "%").replace("requests (", "request ("))
    )
    assert sentence in text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0, 1.001, "1 request"),
        (0.0, 1.0, "1 request or fewer"),
        (1.0, math.inf, "1 request or more"),
        (1.0, 2.5, "1 to 2.5 requests"),
    ],
)
def test_an_interval_of_loads_is_written_in_words(low: float, high: float, text: str) -> None:
    assert _interval_text(Interval(low, high)) == text


def test_a_run_at_one_load_has_no_break_even() -> None:
    notes = make_report(served_run({4: 1.5}), Bootstrap(50)).notes
    assert not [note for note in notes if note.key == "loads"]
