"""Runs with and without warnings."""

import math
import random
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.speed_warnings import Disagreement, FewSamples, NotSignificant
from specbench.analysis.stats.trend import Series, relative_change, slow_start
from specbench.analysis.warnings import Drift, Outliers, SlowFirst, UnsteadyStart
from specbench.types import Record
from tests.analysis.run_factory import FakeRun, header, record

METHODS, TASKS = ("vanilla", "pld"), ("gsm8k", "alpaca")


def run(pace: Callable[[str, int], float], num_samples: int = 40) -> RunMetrics:
    """Two tasks, one after the other; `pace` of (method, place) scales a step's 10 ms."""
    draw = random.Random(3)
    records: list[Record] = []
    for task in TASKS:
        for sample in range(num_samples):
            for method in METHODS:
                lengths = [1 if method == "vanilla" else draw.choice((1, 3))] * draw.randint(20, 60)
                task_s = 0.010 if task == "gsm8k" else 0.013
                step_s = task_s * pace(method, len(records)) * draw.lognormvariate(0, 0.03)
                seconds = step_s * len(lengths)
                made = record(method, str(sample), task=task, decode_s=seconds,
                              prefill_s=0.01, accept_lengths=lengths)  # fmt: skip
                records.append(made)
    return measure(FakeRun(records, header(METHODS, TASKS)))


def kinds(metrics: RunMetrics) -> set[type]:
    return {type(warning) for warning in metrics.warnings}


def test_a_steady_run_raises_no_warning() -> None:
    assert run(lambda method, place: 1.0).warnings == ()


def test_a_baseline_that_slows_is_drift_of_a_known_size() -> None:
    metrics = run(lambda method, place: 1 + 0.2 * place / 160)
    (drift,) = [one for one in metrics.warnings if isinstance(one, Drift)]
    assert drift.change.value == pytest.approx(0.2, abs=0.05)
    assert drift.change.interval is not None
    assert drift.change.value in drift.change.interval
    assert "slower" in drift.message(metrics.info)
    assert "idle" in drift.message(metrics.info)


def test_a_slow_task_that_comes_later_is_no_drift() -> None:
    """Steps of the second task always take 1.3 times as long."""
    assert Drift not in kinds(run(lambda method, place: 1.0))


def test_a_start_that_is_not_steady_is_named_with_its_samples() -> None:
    metrics = run(lambda method, place: 1.25 if place < 24 else 1.0)
    (start,) = [one for one in metrics.warnings if isinstance(one, UnsteadyStart)]
    assert start.num_slow == 24
    assert start.last.sample_id == "gsm8k/11"
    assert start.ratio == pytest.approx(1.25, abs=0.03)
    assert "first 24 of 160 completions, up to gsm8k/11 in pass 1" in start.message(metrics.info)


def test_a_slow_end_is_no_slow_start() -> None:
    assert UnsteadyStart not in kinds(run(lambda method, place: 1.25 if place > 120 else 1.0))


def test_a_steady_start_is_rarely_doubted_under_noise_that_comes_and_goes() -> None:
    draw, doubted = np.random.default_rng(1), 0
    for _ in range(200):
        load = draw.normal(0, 0.04, 400)
        for i in range(1, 400):
            load[i] += 0.95 * load[i - 1]
        doubted += slow_start(load + draw.normal(0, 0.03, 400), 0.05) > 0
    assert doubted <= 6


def test_a_first_completion_that_is_slow_is_named() -> None:
    metrics = run(lambda method, place: 2.0 if place == 1 else 1.0)
    (first,) = metrics.warnings
    assert isinstance(first, SlowFirst)
    assert first.key.method == "pld"
    assert first.ratio == pytest.approx(2.0, abs=0.2)


def test_speedups_that_slow_completions_decide_stand_beside_those_of_the_median() -> None:
    """Every fifth completion of a method takes three times as long, which costs it 1.4 times."""
    metrics = run(lambda method, place: 3.0 if method == "pld" and place // 2 % 5 == 0 else 1.0)
    (found,) = [one for one in metrics.warnings if isinstance(one, Disagreement)]
    assert set(found.cells) == {("pld", "gsm8k"), ("pld", "alpaca")}
    for value, median in found.cells.values():
        assert median == pytest.approx(1.4 * value, rel=0.1)
    assert "By the median of the paired step times" in found.message(metrics.info)


def test_outliers_are_counted_and_the_worst_is_named() -> None:
    metrics = run(lambda method, place: {50: 2.0, 91: 4.0}.get(place, 1.0))
    (outliers,) = metrics.warnings
    assert isinstance(outliers, Outliers)
    assert (outliers.num_slow, outliers.num_measured) == (2, 160)
    assert outliers.worst_ratio == pytest.approx(4.0, abs=0.4)
    assert outliers.worst.method == METHODS[91 % 2]


def test_one_small_outlier_among_many_gives_no_warning() -> None:
    assert run(lambda method, place: 1.8 if place == 50 else 1.0).warnings == ()


def test_too_few_samples_are_named_with_their_tasks() -> None:
    (few,) = [d for d in run(lambda *_: 1.0, 3).warnings if isinstance(d, FewSamples)]
    assert few.tasks == {"gsm8k": 3, "alpaca": 3}


def test_a_speedup_that_is_not_significant_says_how_many_samples_would_do() -> None:
    records: list[Record] = []
    for sample, repeat in product(range(30), range(3)):
        seconds = (1.5 if sample % 2 else 0.6) * (1 + 0.001 * repeat)
        records += [
            record(sample=str(sample), repeat=repeat),
            record("pld", str(sample), repeat=repeat, decode_s=seconds),
        ]
    metrics = measure(FakeRun(records, header(METHODS, ("gsm8k",))))
    (weak,) = [d for d in metrics.warnings if isinstance(d, NotSignificant)]
    assert weak.methods["pld"] > 1
    assert "for PLD with" in weak.message(metrics.info)


def test_the_interval_of_a_trend_covers_it_about_as_often_as_its_level() -> None:
    generator, hits = np.random.default_rng(2), 0
    at = np.linspace(0, 1, 30)
    for _ in range(400):
        groups = [
            Series(at[i::3], np.exp(0.1 * at[i::3] + generator.standard_t(3, 10) * 0.05) * (i + 1))
            for i in range(3)
        ]
        change = relative_change(groups)
        assert change is not None
        assert change.interval is not None
        hits += np.expm1(0.1) in change.interval
    assert 0.92 <= hits / 400 <= 0.985


def test_a_group_of_thousands_is_thinned_and_its_trend_kept() -> None:
    at = np.linspace(0, 1, 20_000)
    change = relative_change([Series(at, np.exp(0.3 * at))])
    assert change is not None
    assert change.value == pytest.approx(np.expm1(0.3), rel=1e-3)


def test_methods_that_no_number_of_prompts_tells_apart_are_named_for_themselves() -> None:
    info = FakeRun([], header((*METHODS, "sps"), ("gsm8k",))).header
    text = NotSignificant(0.0, {"pld": 3.24, "sps": math.inf}).message(info)
    assert "A difference would show for PLD with 3.2x as many prompts." in text
    assert "No number of prompts would show one for SpS: use more passes or runs." in text
