"""The error rates of the gate: how often it gives false alarms, and how often it finds slowdowns.

    python benchmarks/gate_errors.py [NUM_PAIRS]

It simulates pairs of runs with nine methods and six tasks. The time of each completion has noise
with a spread of 5 %, and every fiftieth completion takes a third longer. The times of a whole run
drift by 1 %. Equal pairs differ only by noise, and in 1 % of their greedy answers, as if near-ties
had flipped. In slow pairs, one method is 10 % slower in one of the two runs.

If no loss is allowed, any number that is slightly worse counts as a regression. Equal pairs are
then simulated without drift, so every alarm is false, and the share of alarms is the error rate.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from specbench.judge.allowed import Allowed
from specbench.judge.checks import CheckedRun
from specbench.judge.gate import check
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.log.spec import SpecHeader, SpecValues
from specbench.log.store import read_header
from specbench.types import Record, RecordKey

METHODS = {
    "vanilla": 1.0, "sps": 2.2, "pld": 1.7, "lookahead": 1.6, "medusa": 2.6, "hydra": 3.4,
    "eagle": 3.8, "eagle2": 4.6, "eagle3": 5.4,
}  # fmt: skip
"""Mean accepted tokens of each method."""
RECORDED = Path(__file__).parent.parent / "results/recorded/amd-epyc-2-cores"
TASKS = ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm", "natural_questions")
NOISE, DRIFT, HELD_UP, FLIPPED = 0.05, 0.01, 0.02, 0.01
"""Standard deviations of the logarithms of a completion's time and of a run's times; shares of slow
completions and of changed answers.
"""


class Simulator:
    """Simulates runs over the same prompts, one per seed."""

    def __init__(
        self,
        num_samples: int,
        methods: Sequence[str] = tuple(METHODS),
        drift: float = DRIFT,
        bursts: float = 0.0,
    ) -> None:
        self._methods = methods
        self._drift, self._bursts = drift, bursts
        self.num_samples = num_samples
        generator = np.random.default_rng(0)
        self._answers = {
            (task, sample): [_answer(generator) for _ in range(2)]
            for task in TASKS
            for sample in range(num_samples)
        }

    def run(self, seed: int, slowdowns: Mapping[str, float] | None = None) -> Run:
        """Simulate a run. `slowdowns` are the additional shares of time that methods take."""
        generator = np.random.default_rng(seed)
        drift = np.exp(generator.normal(0, self._drift))
        slower = {method: 1 + (slowdowns or {}).get(method, 0.0) for method in self._methods}
        records = []
        for (task, sample), answers in self._answers.items():
            answer = answers[int(generator.random() < FLIPPED)]
            noise = np.exp(generator.normal(0, NOISE, len(self._methods)))
            noise *= np.where(generator.random(len(self._methods)) < HELD_UP, 1.33, 1.0)
            if self._bursts:
                noise *= np.where(generator.random(len(self._methods)) < self._bursts, 3.0, 1.0)
            for method, factor in zip(self._methods, noise, strict=True):
                lengths = answer[method]
                seconds = float(0.02 * len(lengths) * factor * drift * slower[method])
                records.append(_record(method, task, sample, lengths, seconds))
        return Run(simulated_header(self._methods), tuple(records))


def _answer(generator: np.random.Generator) -> dict[str, tuple[int, ...]]:
    """The numbers of tokens that each method's steps emit for a text of random length."""
    num_tokens = int(generator.integers(40, 128))
    ease = np.exp(generator.normal(0, 0.15))
    return {m: _lengths(generator, num_tokens, mat * ease) for m, mat in METHODS.items()}


def _lengths(generator: np.random.Generator, num_tokens: int, mat: float) -> tuple[int, ...]:

    if mat <= 1.2:
        return (1,) * num_tokens
    drawn = 1 + generator.poisson(mat - 1, num_tokens)
    ends = drawn.cumsum()
    steps = int(ends.searchsorted(num_tokens)) + 1
    lengths = drawn[:steps]
    lengths[-1] -= ends[steps - 1] - num_tokens
    return tuple(lengths.tolist())


def _record(
    method: str, task: str, sample: int, lengths: tuple[int, ...], seconds: float
) -> Record:
    return Record(
        key=RecordKey(method, 0.0, task, f"{task}/{sample}", 0, 0),
        status="ok",
        prompt_tokens=10,
        token_ids=tuple(range(1 + sum(lengths))),
        stop_reason="budget",
        prefill_s=0.01,
        decode_s=seconds,
        accept_lengths=lengths,
    )


def simulated_header(methods: Sequence[str]) -> RunHeader:
    """The header of a run of these methods on all tasks."""
    spec = SpecHeader(values=SpecValues(device="cpu", methods=tuple(methods)))
    header = replace(read_header(RECORDED), id="simulated", spec=spec, prompts=(), num_records=None)
    return replace(header, columns={task: task for task in TASKS})


def is_blamed(gate: CheckedRun, method: str) -> bool:
    """True if the gate reports this method as slower."""
    return any(
        failure.name == "speed" and failure.cell is not None and failure.cell.method == method
        for failure in gate.failures
    )


def main() -> None:
    """Simulate and print."""
    num_pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    default = Allowed(max_mismatch=0.1)
    at_zero = Allowed(max_slowdown=0.0, max_mat_drop=0.0, max_mismatch=0.1)
    _false_alarms(num_pairs, Simulator(8), default)
    _false_alarms(num_pairs, Simulator(80), default)
    _false_alarms(num_pairs, Simulator(80, drift=0.0), at_zero)
    _caught(num_pairs, Simulator(8), default)
    _caught(num_pairs, Simulator(80), default)
    for by in (0.02, 0.05, 0.10):
        _caught(num_pairs, Simulator(24, drift=0.0), at_zero, by)
    for drift in (0.01, 0.03, 0.06, 0.15):
        _five_baselines(num_pairs, Simulator(8, drift=drift, bursts=0.05), default, drift)


def _false_alarms(num_pairs: int, simulator: Simulator, allowed: Allowed) -> None:
    pairs = ((simulator.run(2 * i), simulator.run(2 * i + 1)) for i in range(num_pairs))
    alarms = [
        gate.failures for run, other in pairs if not (gate := check(run, other, allowed)).is_passed
    ]
    kinds = Counter(failure.name for failures in alarms for failure in failures)
    losses = f"{allowed.max_slowdown:.0%} slower, {allowed.max_mat_drop:.0%} lower MAT allowed"
    print(f"equal, {simulator.num_samples} samples per task, {losses}: "
          f"{len(alarms)}/{num_pairs} alarms {dict(kinds) or ''}", flush=True)  # fmt: skip


def _caught(num_pairs: int, simulator: Simulator, allowed: Allowed, by: float = 0.10) -> None:
    caught = others = 0
    for i in range(num_pairs):
        slow = [*METHODS][i % len(METHODS)]
        gate = check(simulator.run(2 * i, {slow: by}), simulator.run(2 * i + 1), allowed)
        caught += is_blamed(gate, slow)
        others += any(is_blamed(gate, method) for method in METHODS if method != slow)
    print(f"one method {by:.0%} slower, {allowed.max_slowdown:.0%} allowed, "
          f"{simulator.num_samples} samples per task: caught "
          f"{caught}/{num_pairs}, another one blamed {others}/{num_pairs}", flush=True)  # fmt: skip


def _five_baselines(num_runs: int, simulator: Simulator, allowed: Allowed, drift: float) -> None:
    """Compare runs with five baselines. 5 % of the completions take 3 times as long."""
    stopped = caught = others = unclear = 0
    for i in range(num_runs):
        seeds = range(10 * i + 100_000, 10 * i + 100_005)
        baselines = [simulator.run(seed) for seed in seeds]
        slow = [*METHODS][i % len(METHODS)]
        first, *more = baselines
        seed = 10 * i + 100_009
        equal = check(simulator.run(seed), first, allowed, more=more)
        slower = check(simulator.run(seed, {slow: 0.20}), first, allowed, more=more)
        stopped += any(failure.name == "speed" for failure in equal.failures)
        unclear += any(result.text.startswith("cannot tell") for result in equal.checks)
        caught += is_blamed(slower, slow)
        others += any(is_blamed(slower, method) for method in METHODS if method != slow)
    print(
        f"five baselines, bursts, runs differ by {drift:.0%}, {simulator.num_samples} samples per "
        f"task: equal runs stopped {stopped}/{num_runs} (cannot tell: {unclear}), 20 % slower "
        f"caught {caught}/{num_runs}, another blamed {others}/{num_runs}",
        flush=True,
    )


if __name__ == "__main__":
    main()
