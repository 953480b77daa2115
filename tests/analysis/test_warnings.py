"""Runs with and without warnings.

Methods are compared on the requests that all of them finished.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.estimates import Estimate, Interval, Missing
from specbench.analysis.warnings import _few_samples, not_significant
from specbench.log.run import Run
from specbench.report.texts import make_note
from specbench.types import Record
from tests.analysis.run_factory import full_run, header, make_run, number, record, warnings_of
from tests.judge.changing import broken

GPU_WITH_CLOCKS = {"sm_clock_mhz": {"min": 900, "mean": 1200, "max": 1400}}
METHODS = ("vanilla", "pld")
TASKS = ("gsm8k", "alpaca")
TASK_STEP_S = {"gsm8k": 0.010, "alpaca": 0.013}


def run(
    pace: Callable[[str, int], float],
    num_samples: int = 40,
    *,
    has_clocks: bool = False,
    machine_in: str = "",
) -> RunMetrics:
    """Two tasks, one after the other. `pace(method, place)` scales the seconds of a step.

    `machine_in` is the field of a record that distinguishes the first half of each task's samples
    from the second.
    """
    draw = random.Random(3)
    records: list[Record] = []
    for task, sample, method in product(TASKS, range(num_samples), METHODS):
        length = 1 if method == "vanilla" else draw.choice((1, 3))
        num_steps = draw.randint(20, 60)
        noise = draw.lognormvariate(0, 0.03)
        step_s = TASK_STEP_S[task] * pace(method, len(records)) * noise
        timed = record(
            method,
            str(sample),
            task=task,
            decode_s=step_s * num_steps,
            prefill_s=0.01,
            accept_lengths=[length] * num_steps,
        )
        if machine_in:
            half: Any = str(2 * sample // num_samples)
            timed = replace(timed, **{machine_in: half})
        records.append(timed)
    gpu = GPU_WITH_CLOCKS if has_clocks else None
    return measure(make_run(records, header(METHODS, TASKS, gpu=gpu)))


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_a_steady_run_and_one_that_gets_faster_raise_no_warning(gain: float) -> None:
    assert run(lambda method, place: 1.2 - gain * (place % 80) / 80).warnings == ()


@pytest.mark.parametrize("has_clocks", [False, True])
def test_a_baseline_that_slows_may_be_throttled(
    has_clocks: bool,
) -> None:
    metrics = run(lambda method, place: 1 + 0.2 * (place % 80) / 80, has_clocks=has_clocks)
    throttled = warnings_of(metrics, "throttling")
    assert len(throttled) == (not has_clocks)
    for warning in throttled:
        assert warning.numbers["change"] == pytest.approx(0.13, abs=0.04)


@pytest.mark.parametrize("machine_in", ["", "origin", "worker"])
def test_a_slower_second_machine_is_not_throttled(machine_in: str) -> None:
    metrics = run(lambda _, place: 1.2 if place % 80 >= 40 else 1.0, machine_in=machine_in)
    assert len(warnings_of(metrics, "throttling")) == (not machine_in)


def test_speedups_of_means_are_compared_with_medians() -> None:
    """Every fifth completion of PLD takes three times as long, so all together take 1.4 times."""

    def pace(method: str, place: int) -> float:
        is_fifth = place // 2 % 5 == 0
        return 3.0 if method == "pld" and is_fifth else 1.0

    (warning,) = warnings_of(run(pace), "disagreement")
    assert {cell["task"] for cell in warning.numbers["cells"]} == {"gsm8k", "alpaca"}
    for cell in warning.numbers["cells"]:
        assert cell["method"] == "pld"
        assert cell["median"] == pytest.approx(1.4 * cell["speedup"], rel=0.1)


def test_tasks_with_too_few_samples_are_counted() -> None:
    (few,) = warnings_of(run(lambda *_: 1.0, num_samples=3), "few_samples")
    assert few.numbers == {"tasks": [], "bare": 3, "few": None, "methods": [], "needed": 6}
    (few,) = warnings_of(run(lambda *_: 1.0, num_samples=4), "few_samples")
    assert few.numbers == {"tasks": [], "bare": None, "few": 4, "methods": [], "needed": 6}


def test_a_task_with_an_interval_of_mat_is_not_without_intervals() -> None:
    metrics = run(lambda *_: 1.0, num_samples=3)
    mat = Estimate(2.0, wide_interval=Interval(1.0, 3.0))
    cells = {key: replace(cell, mat=mat) for key, cell in metrics.cells.items()}
    (few,) = _few_samples(cells, metrics.rankings)
    assert (few.numbers["bare"], few.numbers["few"]) == (None, 3)


def test_a_task_with_one_sample_is_named_beside_tasks_with_nine() -> None:
    even = full_run(num_samples=9)
    records = [
        record
        for record in even.records
        if record.key.task != "gsm8k" or record.key.sample_id.endswith("/0")
    ]
    uneven = measure(make_run(records, even.header))
    (few,) = warnings_of(uneven, "few_samples")
    assert few.numbers["tasks"] == [{"task": "gsm8k", "samples": 1}]


def test_an_insignificant_speedup_has_the_number_of_samples_needed() -> None:
    records: list[Record] = []
    for sample, repeat in product(range(30), range(3)):
        sample_s = 1.5 if sample % 2 else 0.6
        seconds = sample_s * (1 + 0.001 * repeat)
        records.append(record(sample=str(sample), repeat=repeat))
        records.append(record("pld", str(sample), repeat=repeat, decode_s=seconds))
    metrics = measure(make_run(records, header(METHODS, ("gsm8k",))))
    (weak,) = warnings_of(metrics, "not_significant")
    assert weak.numbers["possible"][0]["factor"] > 1


def test_inseparable_methods_have_their_own_sentence() -> None:
    metrics = measure(make_run([], header((*METHODS, "sps"), ("gsm8k",))))
    warning = not_significant(0.0, {"pld": 3.24, "sps": math.inf})
    note = make_note(warning.key, metrics.info, **warning.numbers).text
    assert "Such a difference would be significant with 3.2x as many prompts for PLD." in note
    assert "No number of prompts is enough for SpS: use more passes or runs." in note


def survivors_run(num_failed: int) -> Run:
    """EAGLE and PLD are equally fast, at speedups from 0.5 to 2. EAGLE fails on its slowest
    answers.
    """
    records: list[Record] = []
    for i in range(16):
        speed = 0.5 + i / 10
        pld = record("pld", str(i), decode_s=1 / speed)
        eagle = record("eagle", str(i), decode_s=1 / speed)
        if i < num_failed:
            eagle = broken(eagle)
        records += [record("vanilla", str(i)), pld, eagle]
    return make_run(records, header(["vanilla", "pld", "eagle"], ("gsm8k",)))


def test_failing_on_the_worst_prompts_moves_no_method_ahead() -> None:
    metrics = measure(survivors_run(num_failed=4))
    pld = number(metrics.overall["pld", 0.0].speedup)
    eagle = number(metrics.overall["eagle", 0.0].speedup)
    assert eagle == pytest.approx(pld)
    cells = [metrics.cell(method, 0.0, "gsm8k") for method in ("pld", "eagle")]
    counts = [(cell.num_done, cell.num_failed, cell.num_samples) for cell in cells]
    assert counts == [(16, 0, 12), (12, 4, 12)]  # only 12 requests are compared
    without_failures = measure(survivors_run(num_failed=0))
    assert eagle > number(without_failures.overall["pld", 0.0].speedup)
    (warning,) = warnings_of(metrics, "survived")
    assert warning.numbers == {"shared": 12, "requests": 16}


def test_a_request_with_a_pause_is_left_out_for_all_methods() -> None:
    whole = survivors_run(0)
    slow = replace(record("pld", "3", decode_s=1e6), is_paused=True)
    records = [slow if record.key == slow.key else record for record in whole.records]
    paused = measure(make_run(records, whole.header))
    rest = [record for record in whole.records if record.key.sample_id != slow.key.sample_id]
    without = measure(make_run(rest, whole.header))
    for method in ("pld", "eagle"):
        assert paused.overall[method, 0.0].speedup == without.overall[method, 0.0].speedup
    (warning,) = warnings_of(paused, "pauses")
    assert warning.numbers == {"paused": 1, "requests": 16}
    assert not warnings_of(paused, "survived")


@pytest.mark.parametrize(
    ("num_failed", "reason"), [(9, "not comparable: finished 7 of 16"), (16, "all failed")]
)
def test_a_method_that_fails_on_most_prompts_is_not_compared(num_failed: int, reason: str) -> None:
    metrics = measure(survivors_run(num_failed))
    assert metrics.cell("eagle", 0.0, "gsm8k").speedup == Missing(reason)
    assert metrics.cell("pld", 0.0, "gsm8k").num_samples == 16
    assert "eagle" not in metrics.rankings[0.0].methods


def test_a_sample_counts_only_if_all_methods_finished_it() -> None:
    whole = survivors_run(0)
    metrics = measure(make_run([*whole.records, record("vanilla", "new")], whole.header))
    for method in ("pld", "vanilla"):
        assert metrics.cell(method, 0.0, "gsm8k").num_samples == 16
