"""Workers that agree, and one that is slower."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Bootstrap, Estimate
from specbench.analysis.workers import SlowWorker
from specbench.types import Record
from tests.analysis.run_factory import FakeRun, header, record

METHODS = ("vanilla", "pld")


def records(paces: Mapping[str, float], num_samples: int = 60) -> list[Record]:
    """Samples on workers in turn; `paces` scales a step's 10 ms by worker."""
    draw, made = random.Random(5), []
    for sample in range(num_samples):
        worker = [*paces][sample % len(paces)]
        for method in METHODS:
            lengths = [1 if method == "vanilla" else 2] * draw.randint(20, 60)
            step_s = 0.010 * paces[worker] * draw.lognormvariate(0, 0.03)
            one = record(method, str(sample), decode_s=step_s * len(lengths),
                         prefill_s=0.01, accept_lengths=lengths)  # fmt: skip
            made.append(replace(one, worker=worker))
    return made


def measured(made: list[Record]) -> RunMetrics:
    return measure(FakeRun(made, header(METHODS, ["gsm8k"])), Bootstrap(200))


def slow(metrics: RunMetrics) -> list[SlowWorker]:
    return [one for one in metrics.warnings if isinstance(one, SlowWorker)]


def test_workers_that_agree_are_not_named() -> None:
    assert slow(measured(records({"a": 1.0, "b": 1.0, "c": 1.0}))) == []


@pytest.mark.parametrize("others", [("a",), ("a", "c", "d")])
def test_a_slow_worker_is_named_with_its_size_and_no_other_is(others: tuple[str, ...]) -> None:
    metrics = measured(records({**dict.fromkeys(others, 1.0), "b": 1.2}))
    (found,) = slow(metrics)
    assert (found.worker, found.num_prompts) == ("b", 60 // (1 + len(others)))
    assert found.slower == pytest.approx(0.2, abs=0.05)
    assert "longer on b than on the other workers" in found.message(metrics.info)


def test_a_difference_too_small_to_matter_is_not_named() -> None:
    assert slow(measured(records({"a": 1.0, "b": 1.02}, num_samples=2000))) == []


def test_few_prompts_name_no_worker() -> None:
    assert slow(measured(records({"a": 1.0, "b": 1.5}, num_samples=12))) == []


def test_a_slow_worker_changes_no_speedup() -> None:
    key = CellKey("pld", 0.0, "gsm8k")
    paces = ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 3.0})
    even, odd = (measured(records(one)).cells[key].speedup for one in paces)
    assert isinstance(even, Estimate) and isinstance(odd, Estimate)
    assert odd.value == pytest.approx(even.value, rel=0.02)


def test_records_of_another_worker_are_no_baseline() -> None:
    """A run that was killed while it wrote a sample, and resumed."""
    made = records({"a": 1.0})
    split = [replace(one, worker="b") if one.key.method == "pld" else one for one in made[:2]]
    cell = measured([*split, *made[2:]]).cells[CellKey("pld", 0.0, "gsm8k")]
    assert (cell.num_done, cell.num_pairs) == (60, 59)
