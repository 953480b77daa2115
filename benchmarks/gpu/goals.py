"""The goals for a GPU, and their verdicts from the runs of the suite."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.store import HEADER, read_run

_IS_MET = {">=": operator.ge, "<": operator.lt, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on figures of runs; `row` and `figure` are patterns of names."""

    text: str
    row: str
    figure: str
    comparison: str
    bound: float
    is_bug: bool = False
    """True if a run that misses the goal shows a bug, not slow code."""


GOALS = (
    Goal("vanilla's share of the bandwidth", "run-vicuna-13b", "bandwidth.vanilla", ">=", 0.82),
    Goal("vanilla's share of the bandwidth", "run-*", "bandwidth.vanilla", ">=", 0.80),
    Goal("EAGLE-2's share of the bandwidth", "run-*", "bandwidth.eagle2", ">=", 0.63),
    Goal("EAGLE-2 against its limit", "run-*", "share_of_limit.eagle2", ">=", 0.75),
    Goal("others against their limit", "run-*", "share_of_limit.*", ">=", 0.75),
    Goal("the host's share of a step", "phases-*", "host_share.*", "<", 0.03),
    Goal("seconds of all captures, with a warm cache", "run-*", "warm_up_s", "<", 60),
    Goal("parts of kernels left to torch", "[rs]*", "num_fallbacks", "=", 0),
    Goal("methods that were not captured", "*", "num_eager", "=", 0, is_bug=True),
    Goal("samples that failed", "*", "num_failed", "=", 0, is_bug=True),
    Goal("captures while samples are timed", "*", "num_late", "=", 0, is_bug=True),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal and its worst figure in a row of the suite; None if it was not measured."""

    goal: Goal
    row: str
    value: float | None = None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "PASS" if _IS_MET[self.goal.comparison](self.value, self.goal.bound) else "FAIL"

    @property
    def is_bug(self) -> bool:
        return self.goal.is_bug and self.verdict == "FAIL"

    @property
    def line(self) -> str:
        bound, value = f"{self.goal.comparison} {self.goal.bound:g}", self.value
        worst = "-" if value is None else f"{value:.3g}"
        return f"{self.goal.text:<44}{self.row:<22}{bound:>9}{worst:>9}  {self.verdict}"


def judge(runs: Mapping[str, Path]) -> Iterator[Judged]:
    """Judge every goal in each run it applies to. A figure counts once, for its first goal."""
    remaining = {name: figures(path) for name, path in runs.items() if (path / HEADER).exists()}
    for goal in GOALS:
        is_judged = False
        for row, of_run in remaining.items():
            names = [name for name in of_run if fnmatchcase(name, goal.figure)]
            if fnmatchcase(row, goal.row) and names:
                values = [of_run.pop(name) for name in names]
                is_judged = True
                yield Judged(goal, row, min(values) if goal.comparison == ">=" else max(values))
        if not is_judged:
            yield Judged(goal, goal.row)


def figures(path: Path) -> dict[str, float]:
    """The figures of a run that have goals, without those that were not measured."""
    run = read_run(path)
    header, metrics, limits = run.header, measure(run), None
    if not isinstance(metrics.roofline, Missing):
        limits = metrics.roofline
    values: dict[str, Value | float | None] = {
        "num_failed": sum(record.status != "ok" for record in run.records)
    }
    if header.spec.values.device.startswith("cuda"):
        values["num_eager"] = sum(mode.reason is not None for mode in header.execution.values())
        values["num_fallbacks"] = bool(header.kernels and header.kernels.reason)
    if header.preparation and header.preparation.warm_up_s is not None:
        values["warm_up_s"] = header.preparation.warm_up_s
        values["num_late"] = header.preparation.num_late
    for method in metrics.methods:
        cost = metrics.cost(method, metrics.temperatures[0])
        values[f"share_of_limit.{method}"] = cost.reached
        if limits and isinstance(share := limits.bandwidth_share(cost.step_s), Estimate):
            draft = limits.draft_bytes.get(method, 0) / limits.target_bytes
            values[f"bandwidth.{method}"] = share.value * (1 + draft)
        if phases := cost.phases:
            total = phases.draft_s + phases.verify_s + phases.commit_s + phases.host_s
            values[f"host_share.{method}"] = phases.host_s / total
    numbers = {k: v.value if isinstance(v, Estimate) else v for k, v in values.items()}
    return {name: float(v) for name, v in numbers.items() if isinstance(v, int | float)}
