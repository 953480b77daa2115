"""The goals for a GPU, and their verdicts from the runs of the suite."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run

_IS_MET = {">=": operator.ge, "<": operator.lt, "=": operator.eq}
"""The operator of each comparison. It is called with the value and the bound."""
GOAL_CARD = "H100"
"""The card that goals in milliseconds are for. Goals that are shares hold for any card."""


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
    card: str = ""
    """Part of the name of the card that the bound is for. Empty if the bound is for any card."""


RECORD = "record-vicuna-13b"
PHASES = "phases-vicuna-13b"
GOALS = (
    Goal("vanilla, ms per step (H100)", RECORD, "step_ms.vanilla", "<", 8.7, card=GOAL_CARD),
    Goal("prompts of up to 64 tokens, ms (H100)", RECORD, "prompt_ms.vanilla", "<", 11.0,
         card=GOAL_CARD),
    Goal("vanilla's share of the nominal bandwidth", RECORD, "nominal.vanilla", ">=", 0.82),
    Goal("vanilla's share of the nominal bandwidth", "[rs]*", "nominal.vanilla", ">=", 0.73),
    Goal("EAGLE-2's share of the nominal bandwidth", RECORD, "nominal.eagle2*", ">=", 0.63),
    Goal("EAGLE-2's step, 6 levels, vanilla steps", RECORD, "step.eagle2", "<", 1.32),
    Goal("EAGLE-3's step, 6 levels, vanilla steps", RECORD, "step.eagle3", "<", 1.32),
    Goal("verifying 60 rows, vanilla steps", PHASES, "verify.eagle*", "<", 1.05),
    Goal("drafting 6 levels, vanilla steps", PHASES, "draft.eagle*", "<", 0.25),
    Goal("commit and host, vanilla steps", PHASES, "rest.*", "<", 0.02),
    Goal("methods' shares of their bandwidth bounds", "[rs]*", "share_of_bound.*", ">=", 0.75),
    Goal("seconds of all captures, with a warm cache", "r*", "warm_up_s", "<", 60),
    Goal("parts of kernels left to torch", "[rs]*", "num_fallbacks", "=", 0),
    Goal("methods that were not captured", "*", "num_eager", "=", 0, is_bug=True),
    Goal("samples that failed", "*", "num_failed", "=", 0, is_bug=True),
    Goal("captures while samples are timed", "*", "num_late", "=", 0, is_bug=True),
)  # fmt: skip
SHORT_PROMPT = 64
"""Most tokens of a short prompt."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal and its worst figure in a row of the suite."""

    goal: Goal
    row: str
    value: float | None = None
    """The worst figure, or None if the goal was not measured."""
    card: str = ""
    """Name of the run's card."""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        if self.goal.card not in self.card:
            return f"no goal for {self.card or 'a CPU'}"
        return "PASS" if _IS_MET[self.goal.comparison](self.value, self.goal.bound) else "FAIL"

    @property
    def is_bug(self) -> bool:
        return self.goal.is_bug and self.verdict == "FAIL"

    @property
    def line(self) -> str:
        bound, value = f"{self.goal.comparison} {self.goal.bound:g}", self.value
        worst = "-" if value is None else f"{value:.3g}"
        return f"{self.goal.text:<44}{self.row:<24}{bound:>9}{worst:>9}  {self.verdict}"


def judge(runs: Mapping[str, Path]) -> Iterator[Judged]:
    """Judge every goal in each run that it applies to. A figure counts only for its first goal."""
    stored = {name: path for name, path in runs.items() if (path / HEADER).exists()}
    remaining = {name: figures(path) for name, path in stored.items()}
    for goal in GOALS:
        is_judged = False
        for row, of_run in remaining.items():
            names = [name for name in of_run if fnmatchcase(name, goal.figure)]
            if fnmatchcase(row, goal.row) and names:
                values = [of_run.pop(name) for name in names]
                is_judged = True
                worst = min(values) if goal.comparison == ">=" else max(values)
                yield Judged(goal, row, worst, card_of(stored[row]) if goal.card else "")
        if not is_judged:
            yield Judged(goal, goal.row)


def card_of(path: Path) -> str:
    """The name of a run's GPU, or "" for a run on a CPU."""
    names = read_run(path).header.environment.torch.devices
    return names[0] if names else ""


def cards_of(runs: Mapping[str, Path]) -> list[str]:
    """The GPUs that the runs were made on."""
    paths = [path for path in runs.values() if (path / HEADER).exists()]
    return sorted({card_of(path) for path in paths} - {""})


def figures(path: Path) -> dict[str, float]:
    """The measured figures of a run that have goals."""
    run = read_run(path)
    header, metrics = run.header, measure(run)
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
        values[f"share_of_bound.{method}"] = cost.reached
        values[f"nominal.{method}"] = cost.nominal_share or None  # 0: not reported
        values[f"step.{method}"] = cost.relative
        values[f"prompt_ms.{method}"] = _prompt_ms(run, method)
        if isinstance(cost.step_s, Estimate):
            values[f"step_ms.{method}"] = 1e3 * cost.step_s.value
        if phases := cost.relative_phases:  # in steps of vanilla
            values[f"verify.{method}"] = phases.verify_s
            values[f"draft.{method}"] = phases.draft_s
            values[f"rest.{method}"] = phases.commit_s + phases.host_s
    numbers = {
        name: figure.value if isinstance(figure, Estimate) else figure
        for name, figure in values.items()
    }
    return {
        name: float(number) for name, number in numbers.items() if isinstance(number, int | float)
    }


def _prompt_ms(run: Run, method: str) -> float | None:
    """Median milliseconds of a method's prefills of short prompts, or None without any."""
    seconds = [
        record.prefill_s
        for record in run.records
        if record.key.method == method
        and record.prefill_s is not None
        and record.prompt_tokens <= SHORT_PROMPT
    ]
    return 1e3 * median(seconds) if seconds else None
