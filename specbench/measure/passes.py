"""Decide how often a run passes over its prompts, and when --until-ci ends it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from specbench.analysis.stats.confidence import MIN_DEGREES
from specbench.errors import UserError
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.measure.spec import RunSpec
from specbench.types import Record

OUR_PASSES = 3
"""Default number of passes for tiny and stand-ins, so that intervals include the machine's
variation between passes.
"""
MAX_PASSES = 20
"""The most passes of a run with --until-ci, by default."""
MIN_PASSES = 3
"""The fewest passes after which --until-ci may end a run. Fewer hardly show their variance."""
_NOT_REACHED = "The goal of --until-ci was not reached"


def default_passes(spec: RunSpec, *, is_ours: bool) -> int:
    """The default number of passes over the prompts.

    `is_ours` is True for the embedded model (tiny) and for stand-ins. `spec.limit` and
    `spec.sample` are numbers of prompts per task that the user gave, or None. `spec.prompts` is
    their source: "bundled" has few.
    """
    if spec.until_ci:  # the run may end earlier
        return MAX_PASSES
    if spec.backend:  # servers
        return 1
    if is_ours:
        return OUR_PASSES
    is_short = bool(spec.limit or spec.sample) or spec.prompts == "bundled"
    # Two passes show how times differ between passes. A paper's whole datasets take hours.
    return 2 if is_short else 1


@dataclass(frozen=True, slots=True)
class Width:
    """The width of the confidence intervals of the mean speedups after some passes."""

    num_passes: int
    """The number of passes that the intervals of all mean speedups cover."""
    goal: float
    """The relative half width to reach (the value of --until-ci); 0.02 is 2 %."""
    half_width: float | None
    """The largest relative half width; None if a speedup has no interval."""

    @property
    def is_enough(self) -> bool:
        if self.half_width is None or self.num_passes < MIN_PASSES:
            return False
        return self.half_width <= self.goal

    def __str__(self) -> str:
        width = "no interval yet" if self.half_width is None else f"± {self.half_width:.1%}"
        reached = ", reached" if self.is_enough else ""
        return f"pass {self.num_passes}: {width}, --until-ci ± {self.goal:.1%}{reached}"


def width_after(header: RunHeader, records: Sequence[Record]) -> Width | None:
    """The width of the speedups' confidence intervals so far, or None without --until-ci.

    `header` and `records` are those of the run after some whole passes. A relative half width is
    the half width of an interval divided by its speedup. The `half_width` of the result is the
    largest of them, or None while some speedup has no interval. Methods without a mean speedup do
    not count.
    """
    from specbench.analysis.metrics import measure  # imports numpy

    goal = header.spec.values.until_ci  # the relative half width to reach; 0.02 is 2 %
    if goal is None:
        return None
    metrics = measure(Run(header, tuple(records)))  # all that a report shows
    # Mean speedups over vanilla. `rankings` are by temperature; `speedups` are by method, for the
    # methods that have one.
    speedups = [
        speedup for ranking in metrics.rankings.values() for speedup in ranking.speedups.values()
    ]
    half_widths = [
        speedup.interval.half_width / speedup.value
        for speedup in speedups
        if speedup.interval is not None
    ]
    largest_half_width = None
    if half_widths and len(half_widths) == len(speedups):
        largest_half_width = max(half_widths)
    # Passes with too few requests do not count.
    return Width(metrics.scope.number, goal, largest_half_width)


def check_goal(spec: RunSpec, num_methods: int, num_prompts: Sequence[int]) -> None:
    """Refuse --until-ci if the run cannot have a confidence interval of a mean speedup.

    `num_methods` counts vanilla too; `num_prompts` [tasks] has the number of prompts of each task.
    `spec.until_ci` is the relative half width to reach (0.02 is 2 %), None if the user gave none.
    `spec.repeats` is the largest number of passes over the prompts, None for the default.

    Raises:
        UserError: there is no method to compare with vanilla, or too few prompts or passes.
    """
    if spec.until_ci is None:
        return
    goal_text = f"--until-ci {100 * spec.until_ci:g}%"
    if num_methods < 2 or not spec.is_baseline_run:
        raise UserError(
            f"{goal_text} needs vanilla and another method.",
            "Name a method, such as --method pld, and leave out --no-baseline.",
        )
    if spec.repeats and spec.repeats < MIN_PASSES:
        raise UserError(
            f"{goal_text} needs {MIN_PASSES} passes, and --repeats {spec.repeats} allows fewer.",
            f"Leave out --repeats, or give {MIN_PASSES} passes or more.",
        )
    if not has_interval(num_prompts):
        total = sum(num_prompts)
        raise UserError(
            f"{goal_text} cannot be reached: too few prompts for an interval ({total} in all).",
            f"Use {least_prompts(len(num_prompts))} prompts per task or more (--limit, --dataset).",
        )


def has_interval(num_prompts: Iterable[int]) -> bool:
    """True if a mean over tasks with these numbers of prompts can have a confidence interval."""
    return sum(number - 1 for number in num_prompts) > MIN_DEGREES


def least_prompts(num_tasks: int) -> int:
    """The fewest prompts per task with which the mean has a confidence interval."""
    return 2 + MIN_DEGREES // num_tasks


def finished_header(header: RunHeader, records: Sequence[Record]) -> RunHeader:
    """The header of a complete run, with the numbers that are known only once --until-ci ended it.

    With --until-ci, the header gets the number of passes and of records that the run took, and a
    warning if the intervals are still too wide. Without --until-ci, the header stays as it is.
    `records` are all records of the run.
    """
    spec = header.spec
    if spec.values.until_ci is None:
        return header
    # The number of passes: `repeat` is a record's pass, counted from 0.
    num_passes = 1 + max((record.key.repeat for record in records), default=0)
    # `values` are the options in effect. `asked` are the options as the user asked for them, such
    # as "auto"; None if the header does not have them.
    asked = spec.asked and replace(spec.asked, repeats=num_passes)
    values = replace(spec.values, repeats=num_passes)
    width = width_after(header, records)  # width of the widest interval of a mean speedup
    # a resumed run may have the warning of an earlier end
    warnings = tuple(text for text in header.warnings if not text.startswith(_NOT_REACHED))
    if width and not width.is_enough:
        warnings = (*warnings, f"{_NOT_REACHED}: {width}.")
    return replace(
        header,
        spec=replace(spec, values=values, asked=asked),
        num_records=len(records),
        warnings=warnings,
    )
