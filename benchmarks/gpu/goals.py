"""All goals in one place, and their verdicts from the figures of the parts."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

_IS_MET = {">=": operator.ge, "<": operator.lt, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure. `part` and `figure` are patterns; dots join names of nested figures."""

    text: str
    part: str
    figure: str
    comparison: str
    bound: float
    unit: str = ""

    def shown(self, value: float) -> str:
        """A value in the goal's unit."""
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        return f"{value:.4g} {self.unit}".strip()


_VANILLA = ("vanilla's share of the bandwidth", "vanilla_bandwidth_share")
_LATE = "captures while samples are timed"

GOALS = (
    Goal(_VANILLA[0], "suite-vicuna-13b", _VANILLA[1], ">=", 0.85, "%"),
    Goal(_VANILLA[0], "suite-llama3-8b", _VANILLA[1], ">=", 0.80, "%"),
    Goal(_VANILLA[0], "suite-vicuna-7b", _VANILLA[1], ">=", 0.80, "%"),
    Goal("EAGLE-2 against its limit", "suite-*", "methods.eagle2.share_of_limit", ">=", 0.80, "%"),
    Goal("EAGLE-3 against its limit", "suite-*", "methods.eagle3.share_of_limit", ">=", 0.80, "%"),
    Goal("others against their limit", "suite-*", "methods.*.share_of_limit", ">=", 0.75, "%"),
    Goal("the host's share of a step", "suite-vicuna-13b", "host.*.share", "<", 0.03, "%"),
    Goal("time to build the stand-in", "suite-vicuna-13b", "build_s", "<", 20, "s"),
    Goal("all captures, with a warm cache", "suite-*", "capture_s", "<", 60, "s"),
    Goal(_LATE, "suite-*", "num_late", "=", 0),
    Goal(_LATE, "sampling-*", "num_late", "=", 0),
    Goal(
        "greedy answers that differ from eager, float32", "checks",
        "graphs against eager at T=0.value.num_differing", "=", 0,
    ),
    Goal("methods that differ from eager beyond near-ties", "suite-*", "num_wrong", "=", 0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal in one part, with the name and value of its worst figure; None if not measured."""

    goal: Goal
    part: str
    name: str | None = None
    value: float | None = None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "PASS" if _IS_MET[self.goal.comparison](self.value, self.goal.bound) else "FAIL"


def judge(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[Judged]:
    """Every goal in each part that it applies to. A figure counts for the first goal that names it.

    `figures` maps each part's name to its figures.
    """
    flat = {part: dict(_flat(own)) for part, own in figures.items()}
    taken: set[tuple[str, str]] = set()
    for goal in GOALS:
        found: dict[str, dict[str, float]] = {}
        for part, own in flat.items():
            for name, value in own.items():
                is_meant = fnmatchcase(part, goal.part) and fnmatchcase(name, goal.figure)
                if is_meant and (part, name) not in taken:
                    taken.add((part, name))
                    found.setdefault(part, {})[name] = value
        for part, values in found.items():
            worst = min(values, key=values.__getitem__)
            if goal.comparison != ">=":
                worst = max(values, key=values.__getitem__)
            yield Judged(goal, part, worst, values[worst])
        if not found:
            yield Judged(goal, goal.part)


def _flat(figures: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Every number, with the dotted path of its names."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}", float(value)
