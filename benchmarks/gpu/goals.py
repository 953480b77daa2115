"""The goals for a GPU, and their verdicts from the runs of the suite."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from specbench.analysis.cells import BASELINE
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.log.store import HEADER, read_run

_IS_MET = {">=": operator.ge, "<": operator.lt, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on figures of runs; `row` and `figure` are patterns."""

    text: str
    row: str
    figure: str
    comparison: str
    bound: float


GOALS = (
    Goal("vanilla's share of the bandwidth", "run-vicuna-13b", "vanilla_share", ">=", 0.85),
    Goal("vanilla's share of the bandwidth", "run-*", "vanilla_share", ">=", 0.80),
    Goal("EAGLE-2 against its limit", "run-*", "share_of_limit.eagle2", ">=", 0.80),
    Goal("EAGLE-3 against its limit", "run-*", "share_of_limit.eagle3", ">=", 0.80),
    Goal("others against their limit", "run-*", "share_of_limit.*", ">=", 0.75),
    Goal("the host's share of a step", "phases-*", "host_share.*", "<", 0.03),
    Goal("seconds to build the stand-in", "run-*", "load_s", "<", 20),
    Goal("seconds of all captures, with a warm cache", "run-*", "warm_up_s", "<", 60),
    Goal("captures while samples are timed", "[rs]*", "num_late", "=", 0),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal and its worst figure in one row; None if it was not measured."""

    goal: Goal
    row: str
    value: float | None = None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "PASS" if _IS_MET[self.goal.comparison](self.value, self.goal.bound) else "FAIL"

    @property
    def line(self) -> str:
        bound, value = f"{self.goal.comparison} {self.goal.bound:g}", self.value
        worst = "-" if value is None else f"{value:.3g}"
        return f"{self.goal.text:<42}{self.row:<22}{bound:>9}{worst:>9}  {self.verdict}"


def judge(runs: Mapping[str, Path]) -> Iterator[Judged]:
    """Every goal in each run it applies to. A figure counts for the first goal that names it."""
    found = {name: figures(path) for name, path in runs.items() if (path / HEADER).exists()}
    for goal in GOALS:
        is_judged = False
        for row, own in found.items():
            names = [name for name in own if fnmatchcase(name, goal.figure)]
            if fnmatchcase(row, goal.row) and names:
                values = [own.pop(name) for name in names]
                is_judged = True
                yield Judged(goal, row, min(values) if goal.comparison == ">=" else max(values))
        if not is_judged:
            yield Judged(goal, goal.row)


def figures(path: Path) -> dict[str, float]:
    """The figures of a run that goals are about, as far as it was measured."""
    run = read_run(path)
    metrics, prepared = measure(run), run.header.preparation
    found: dict[str, Value | float | None] = {"vanilla_share": _vanilla_share(metrics)}
    if prepared is not None and prepared.warm_up_s is not None:
        found["load_s"], found["warm_up_s"] = prepared.load_s, prepared.warm_up_s
        found["num_late"] = prepared.num_late
    for method in metrics.methods:
        cost = metrics.cost(method, metrics.temperatures[0])
        found[f"share_of_limit.{method}"] = cost.reached
        if phases := cost.phases:
            total = phases.draft_s + phases.verify_s + phases.commit_s + phases.host_s
            found[f"host_share.{method}"] = phases.host_s / total
    values = {k: v.value if isinstance(v, Estimate) else v for k, v in found.items()}
    return {name: float(v) for name, v in values.items() if isinstance(v, int | float)}


def _vanilla_share(metrics: RunMetrics) -> Value:
    """The share of the bandwidth that vanilla's steps use."""
    if isinstance(metrics.roofline, Missing):
        return metrics.roofline
    cost = metrics.cost(BASELINE, metrics.temperatures[0])
    return metrics.roofline.bandwidth_share(cost.step_s)
