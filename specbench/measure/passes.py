"""The end of a run's passes over the prompts: all were made, or intervals are narrow enough."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import structs

from specbench.analysis.stats import MIN_DEGREES
from specbench.errors import UserError
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.measure.spec import RunSpec
from specbench.types import Record

LEAST_PASSES = 3
"""Passes before --until-ci may end a run: with fewer, their variance is hardly known."""
MANY = 10**9
"""Prompts of a task whose number is unknown."""


@dataclass(frozen=True, slots=True)
class Width:
    """The widest relative half interval of the mean speedups after some passes; None without one.

    `goal` is the value of --until-ci.
    """

    passes: int
    goal: float
    half: float | None

    @property
    def is_enough(self) -> bool:
        return self.passes >= LEAST_PASSES and self.half is not None and self.half <= self.goal

    def __str__(self) -> str:
        half = "no interval yet" if self.half is None else f"± {self.half:.1%}"
        reached = ", reached" if self.is_enough else ""
        return f"pass {self.passes}: {half}, --until-ci ± {self.goal:.1%}{reached}"


def width_after(header: RunHeader, records: Sequence[Record]) -> Width | None:
    """The width after the records of whole passes; None without --until-ci."""
    from specbench.analysis.metrics import measure  # imports numpy

    goal = header.spec.values.until_ci
    if goal is None:
        return None
    metrics = measure(Run(header, tuple(records)))
    means = [value for one in metrics.rankings.values() for value in one.speedups.values()]
    halves = [one.interval.half_width / one.value for one in means if one.interval is not None]
    is_known = bool(means) and len(halves) == len(means)
    return Width(metrics.scope.number, goal, max(halves) if is_known else None)


def check_goal(spec: RunSpec, num_methods: int, prompts: Sequence[int]) -> None:
    """Refuse --until-ci where no interval can come: `prompts` are the numbers of each task.

    Raises:
        UserError: no method to compare with vanilla, too few prompts, or too few passes.
    """
    if spec.until_ci is None:
        return
    asked = f"--until-ci {spec.until_ci:.0%}"
    if num_methods < 2 or not spec.is_baseline_run:
        raise UserError(f"{asked} needs vanilla and another method.", "Name one: --method pld.")
    if spec.repeats and spec.repeats < LEAST_PASSES:
        raise UserError(
            f"{asked} needs {LEAST_PASSES} passes, and --repeats {spec.repeats} allows fewer.",
            f"Leave out --repeats, or give the most passes: {LEAST_PASSES} or more.",
        )
    if not has_interval(prompts):
        raise UserError(
            f"{asked} cannot be reached: too few prompts for an interval ({sum(prompts)} in all).",
            f"Use {least_prompts(len(prompts))} prompts a task or more (--limit, --dataset).",
        )


def has_interval(prompts: Iterable[int]) -> bool:
    """True if tasks with these numbers of prompts give the mean an interval."""
    return sum(number - 1 for number in prompts) > MIN_DEGREES


def least_prompts(num_tasks: int) -> int:
    """The fewest prompts a task that give an interval."""
    return 2 + MIN_DEGREES // num_tasks


def finished_header(header: RunHeader, records: Sequence[Record]) -> RunHeader:
    """The header of a complete run: after --until-ci, with the passes that it took."""
    spec = header.spec
    if spec.values.until_ci is None:
        return header
    repeats = 1 + max((record.key.repeat for record in records), default=0)
    asked = spec.asked and structs.replace(spec.asked, repeats=repeats)
    values = structs.replace(spec.values, repeats=repeats)
    spec = structs.replace(spec, values=values, asked=asked)
    width, told = width_after(header, records), header.warnings
    if width and not width.is_enough:
        told = (*told, f"The goal of --until-ci was not reached: {width}.")
    return structs.replace(header, spec=spec, num_records=len(records), warnings=told)
