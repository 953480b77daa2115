"""Detection of speedups that change between repeats of the same prompts."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table
from specbench.analysis.repeats import RepeatSpeedups, find_changing_speedups
from specbench.analysis.warnings import ChangingSpeedups
from specbench.types import Record
from tests.analysis.run_factory import FakeRun, failed, header, record

METHODS = ("vanilla", "pld", "sps")


def changing(records: list[Record]) -> list[RepeatSpeedups]:
    return find_changing_speedups(make_table(records).frame)


def repeats_of(
    pace: Callable[[str, int], float],
    *,
    num_repeats: int = 3,
    num_samples: int = 30,
    seed: int = 0,
    temperature: float = 0.0,
) -> list[Record]:
    """Samples that differ in length and speedup, the same in every repeat.

    `pace` scales the seconds of (method, repeat).
    """
    prompts, noise = random.Random(seed), random.Random(seed + 1000)
    made: list[Record] = []
    lengths = [[1] * prompts.randint(20, 60) for _ in range(num_samples)]
    gains = [prompts.uniform(0.5, 1.0) for _ in range(num_samples)]
    for repeat in range(num_repeats):
        for sample in range(num_samples):
            for method in METHODS:
                usual = len(lengths[sample]) * (1.0 if method == "vanilla" else gains[sample])
                seconds = usual * pace(method, repeat) * noise.lognormvariate(0, 0.05)
                made.append(
                    record(method, str(sample), repeat=repeat, temperature=temperature,
                           decode_s=seconds, accept_lengths=lengths[sample])
                )  # fmt: skip
    return made


def test_a_steady_machine_changes_nothing() -> None:
    assert changing(repeats_of(lambda method, repeat: 1.0)) == []


def test_a_machine_that_slows_all_methods_alike_changes_no_speedup() -> None:
    assert changing(repeats_of(lambda method, repeat: 1.0 + repeat / 2)) == []


@pytest.mark.parametrize("num_repeats", [2, 3])
def test_a_speedup_that_changes_between_repeats_is_found_with_its_values(num_repeats: int) -> None:
    records = repeats_of(
        lambda method, repeat: 1.15 if (method, repeat) == ("pld", 1) else 1.0,
        num_repeats=num_repeats,
    )
    (found,) = changing(records)
    assert (found.method, found.temperature) == ("pld", 0.0)
    assert len(found.speedups) == num_repeats
    assert found.speedups[0] / found.speedups[1] == pytest.approx(1.15, abs=0.08)
    metrics = measure(FakeRun(records, header(METHODS, ("gsm8k",))))
    (warning,) = [one for one in metrics.warnings if isinstance(one, ChangingSpeedups)]
    assert f"PLD {found.speedups[0]:.2f}x, {found.speedups[1]:.2f}x" in warning.message(
        metrics.info
    )
    assert "at T=0" in warning.message(metrics.info)


def test_prompts_that_one_repeat_lacks_are_left_out_of_all() -> None:
    records = repeats_of(lambda method, repeat: 1.0, num_repeats=2)
    slow = [
        record(method, "cut", repeat=0, decode_s=seconds, accept_lengths=[1] * 30)
        for method, seconds in (("vanilla", 30.0), ("pld", 3000.0))
    ]
    assert changing([*records, *slow]) == []


def test_few_prompts_one_repeat_and_no_baseline_give_no_warning() -> None:
    def pace(method: str, repeat: int) -> float:
        return 2.0 if (method, repeat) == ("pld", 1) else 1.0

    assert changing(repeats_of(pace, num_samples=7)) == []
    assert changing(repeats_of(pace, num_repeats=1)) == []
    alone = [one for one in repeats_of(pace) if one.key.method != "vanilla"]
    assert changing(alone) == []
    assert measure(FakeRun([failed("pld")], header(METHODS, ("gsm8k",)))).warnings == ()


def test_temperatures_are_tested_apart() -> None:
    records = repeats_of(lambda *_: 1.0) + repeats_of(
        lambda method, repeat: 1.3 if (method, repeat) == ("sps", 2) else 1.0, temperature=1.0
    )
    assert [(one.method, one.temperature) for one in changing(records)] == [("sps", 1.0)]


@pytest.mark.no_cover
def test_false_warnings_are_as_rare_as_their_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.analysis.repeats.LEAST_SPREAD", 0.0)
    monkeypatch.setattr("specbench.analysis.repeats.ALPHA", 0.05)
    runs = [repeats_of(lambda *_: 1.0, num_samples=12, seed=seed) for seed in range(150)]
    found: list[list[RepeatSpeedups]] = [changing(records) for records in runs]
    assert np.mean([bool(one) for one in found]) <= 0.10
