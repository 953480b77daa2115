"""Speedups that differ between passes over the same prompts are found, and only those."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from specbench.analysis.doubts import Unsteady
from specbench.analysis.metrics import measure
from specbench.analysis.passes import Passes, moved
from specbench.types import Record
from tests.analysis.run_factory import FakeRun, failed, header, record

METHODS = ("vanilla", "pld", "sps")


def passes_of(
    pace: Callable[[str, int], float], *, num_passes: int = 3, num_samples: int = 30, seed: int = 0,
    temperature: float = 0.0,
) -> list[Record]:  # fmt: skip
    """Samples of unlike length and speedup, the same in every pass; `pace` of (method, pass)."""
    prompts, noise = random.Random(seed), random.Random(seed + 1000)
    made: list[Record] = []
    lengths = [[1] * prompts.randint(20, 60) for _ in range(num_samples)]
    gains = [prompts.uniform(0.5, 1.0) for _ in range(num_samples)]
    for repeat in range(num_passes):
        for sample in range(num_samples):
            for method in METHODS:
                usual = len(lengths[sample]) * (1.0 if method == "vanilla" else gains[sample])
                seconds = usual * pace(method, repeat) * noise.lognormvariate(0, 0.05)
                made.append(
                    record(method, str(sample), repeat=repeat, temperature=temperature,
                           decode_s=seconds, accept_lengths=lengths[sample])
                )  # fmt: skip
    return made


def test_a_steady_machine_moves_nothing() -> None:
    assert moved("vanilla", passes_of(lambda method, repeat: 1.0)) == []


def test_a_machine_that_slows_all_methods_alike_moves_no_speedup() -> None:
    assert moved("vanilla", passes_of(lambda method, repeat: 1.0 + repeat / 2)) == []


@pytest.mark.parametrize("num_passes", [2, 3])
def test_a_speedup_that_differs_between_passes_is_told_with_its_values(num_passes: int) -> None:
    records = passes_of(
        lambda method, repeat: 1.15 if (method, repeat) == ("pld", 1) else 1.0,
        num_passes=num_passes,
    )
    (found,) = moved("vanilla", records)
    assert (found.method, found.temperature) == ("pld", 0.0)
    assert len(found.speedups) == num_passes
    assert found.speedups[0] / found.speedups[1] == pytest.approx(1.15, abs=0.08)
    metrics = measure(FakeRun(records, header(METHODS, ("gsm8k",))))
    (doubt,) = [doubt for doubt in metrics.doubts if isinstance(doubt, Unsteady)]
    assert f"PLD {found.speedups[0]:.2f}x, {found.speedups[1]:.2f}x" in doubt.sentence(metrics.info)
    assert "at T=0" in doubt.sentence(metrics.info)


def test_what_one_pass_lacks_is_left_out_of_all() -> None:
    records = passes_of(lambda method, repeat: 1.0, num_passes=2)
    slow = [
        record(method, "cut", repeat=0, decode_s=seconds, accept_lengths=[1] * 30)
        for method, seconds in (("vanilla", 30.0), ("pld", 3000.0))
    ]
    assert moved("vanilla", [*records, *slow]) == []


def test_few_prompts_one_pass_and_no_baseline_tell_nothing() -> None:
    def pace(method: str, repeat: int) -> float:
        return 2.0 if (method, repeat) == ("pld", 1) else 1.0

    assert moved("vanilla", passes_of(pace, num_samples=7)) == []
    assert moved("vanilla", passes_of(pace, num_passes=1)) == []
    alone = [one for one in passes_of(pace) if one.key.method != "vanilla"]
    assert moved("vanilla", alone) == []
    assert measure(FakeRun([failed("pld")], header(METHODS, ("gsm8k",)))).doubts == ()


def test_temperatures_are_told_apart() -> None:
    records = passes_of(lambda *_: 1.0) + passes_of(
        lambda method, repeat: 1.3 if (method, repeat) == ("sps", 2) else 1.0, temperature=1.0
    )
    assert [(one.method, one.temperature) for one in moved("vanilla", records)] == [("sps", 1.0)]


def test_claims_are_as_rarely_wrong_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.analysis.passes.LEAST_SPREAD", 0.0)
    monkeypatch.setattr("specbench.analysis.passes.ALPHA", 0.05)
    runs = [passes_of(lambda *_: 1.0, num_samples=12, seed=seed) for seed in range(150)]
    found: list[list[Passes]] = [moved("vanilla", records) for records in runs]
    assert np.mean([bool(one) for one in found]) <= 0.10
