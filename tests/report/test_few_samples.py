"""Intervals of few samples: equal samples are treated equally, and claims need more samples."""

from collections.abc import Mapping, Sequence
from itertools import product

import pytest

from specbench.analysis.columns import value_columns
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.estimates import Estimate
from specbench.log.run import Run
from specbench.report.build import make_report
from tests.analysis.run_factory import estimate, header, make_run, record
from tests.report.drawing import drawn

TASKS = ("gsm8k", "alpaca", "mt_bench")
NOISES: Mapping[str, Sequence[float]] = {
    "vanilla": (0.0, 0.0, 0.0),
    "pld": (0.2, 0.2, 0.2),
    "sps": (0.2, 0.001, 0.001),
}
"""The spread of a method's times over the prompts of each task. For SpS, one task decides the
mean."""


def noisy(
    num_samples: int, *, num_available: int = 40, repeats: int = 3, source: str = "bundled"
) -> Run:
    """Methods with equal prompts and passes, and with times that alternate by half the spread."""
    prompts = [
        {"task": task, "num_available": num_available, "num_prompts": num_samples} for task in TASKS
    ]
    described = header([*NOISES], TASKS, prompts=prompts)
    described["spec"]["values"] |= {"repeats": repeats, "prompts": source, "limit": num_samples}
    records = []
    for sample, repeat in product(range(num_samples), range(repeats)):
        for number, (method, spreads) in enumerate(NOISES.items()):
            pass_s = (1.0 if method == "vanilla" else 0.5) * (1 + 0.001 * (repeat * number % 3))
            for task, spread in zip(TASKS, spreads, strict=True):
                seconds = pass_s * (1 + spread * (-0.5) ** sample)
                records.append(
                    record(method, str(sample), task=task, repeat=repeat, decode_s=seconds)
                )
    return make_run(records, described)


def mean(run: RunMetrics, method: str) -> Estimate:
    return estimate(run.overall[method, 0.0].speedup)


def rows(text: str) -> Mapping[str, str]:
    """The lines of the first table, by their first words."""
    return {line.split()[0]: line for line in reversed(text.splitlines()) if line.strip()}


def note(run: Run) -> str:
    texts: Sequence[str] = [
        note.text for note in make_report(run).notes if note.key == "few_samples"
    ]
    (text,) = texts
    return text


def test_methods_with_the_same_samples_all_have_intervals_and_claims_need_more() -> None:
    run = noisy(4)
    metrics = measure(run)
    narrow, wide = mean(metrics, "pld"), mean(metrics, "sps")
    assert narrow.degrees > 4 > wide.degrees > 2
    assert narrow.interval and not narrow.wide_interval
    assert wide.wide_interval and not wide.interval
    text = drawn(run, is_full=False)
    assert "±?" not in rows(text)["PLD"] + rows(text)["SpS"]
    assert rows(text)["SpS"].count("±") == rows(text)["PLD"].count("±") == 4
    assert "too few samples for a claim" in text
    ranking = metrics.rankings[0.0]
    assert ranking.against_baseline["pld"] is not None
    assert ranking.against_baseline["sps"] is None
    assert note(run).startswith("Use --limit 6: 4 prompts per task give wide intervals")


def test_a_mean_that_one_task_dominates_is_marked() -> None:
    run = noisy(2)
    assert mean(measure(run), "sps").shown_interval is None
    text = drawn(run, is_full=False)
    assert rows(text)["SpS"].count("±?") == 1 and "±?" not in rows(text)["PLD"]
    assert note(run) == (
        "Use --limit 6: with 2 prompts per task, no task has an interval. One task dominates the "
        "mean speedup (±?) of SpS."
    )
    assert "x ±? (one task dominates)" in drawn(run)


def test_a_first_look_marks_only_its_means() -> None:
    text = drawn(noisy(3, repeats=1), 120, is_full=False)
    # Only the mean of each method has a sign, not its tasks.
    assert rows(text)["PLD"].count("±") == rows(text)["SpS"].count("±?") == 1
    assert text.count("Use --limit 6: with 3 prompts per task, no task has an interval.") == 1


@pytest.mark.parametrize(
    ("source", "available", "advice"),
    [
        ("bundled", 6, "--limit 6"),
        ("bundled", 5, "--prompts paper --limit 6"),
        ("paper", 5, "about 6 prompts per task"),
    ],
)
def test_the_advice_fits_the_prompts(source: str, available: int, advice: str) -> None:
    assert note(noisy(3, num_available=available, source=source)).startswith(f"Use {advice}: ")


def test_files_have_wide_intervals() -> None:
    columns = value_columns("speedup", mean(measure(noisy(4)), "sps"))
    assert columns["speedup_low"] < columns["speedup"] < columns["speedup_high"]
