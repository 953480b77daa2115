"""The passes of a run over its prompts: their number, and the end of --until-ci."""

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
"""Passes over the prompts for tiny and stand-ins, so that intervals cover the machine too."""
MAX_PASSES = 20
"""Passes of a run that ends when its intervals are narrow enough (--until-ci)."""
MIN_PASSES = 3
"""Passes before --until-ci may end a run: with fewer, their variance is hardly known."""


def default_passes(spec: RunSpec, *, is_ours: bool) -> int:
    """Default number of passes over the prompts.

    With --until-ci it is MAX_PASSES, and the run may end earlier. It is one for servers
    (`spec.backend`), and three for tiny and stand-ins (`is_ours`), so that intervals cover the
    machine. Else it is two, since one pass does not show how times differ between passes; but one
    over a paper's whole datasets, which takes hours. `spec.limit` is the number of prompts to use
    per task, None for all; `spec.prompts` is their source ("bundled" has few).
    """
    if spec.until_ci:
        return MAX_PASSES
    if spec.backend:
        return 1
    if is_ours:
        return OUR_PASSES
    is_short = bool(spec.limit) or spec.prompts == "bundled"
    return 2 if is_short else 1


@dataclass(frozen=True, slots=True)
class Width:
    """The width of the mean speedups' intervals after some passes."""

    num_passes: int
    goal: float
    """The value of --until-ci."""
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
    """The width of the speedups' intervals after whole passes; None without --until-ci.

    A width is relative: the half width of an interval divided by its speedup. The widest interval
    counts. `half_width` is None while a speedup has no interval. `header` and `records` are the
    run's so far.
    """
    from specbench.analysis.metrics import measure  # imports numpy

    goal = header.spec.values.until_ci  # the half width to reach; 0.02 is 2 %
    if goal is None:
        return None
    metrics = measure(Run(header, tuple(records)))  # all that a report shows
    # Mean speedups over vanilla: `rankings` by temperature, `speedups` by method.
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
    num_passes = metrics.scope.number  # passes that the intervals cover
    return Width(num_passes, goal, largest_half_width)


def check_goal(spec: RunSpec, num_methods: int, num_prompts: Sequence[int]) -> None:
    """Refuse --until-ci if the run cannot have an interval.

    `num_methods` counts vanilla too; `num_prompts` has the number of prompts per task [tasks].
    `spec.until_ci` is the relative half width to reach (0.02 is 2 %), `spec.repeats` the most
    passes over the prompts; both may be None.

    Raises:
        UserError: no method to compare with vanilla, too few prompts, or too few passes.
    """
    if spec.until_ci is None:
        return
    goal_text = f"--until-ci {100 * spec.until_ci:g}%"
    if num_methods < 2 or not spec.is_baseline_run:
        raise UserError(f"{goal_text} needs vanilla and another method.", "Name one: --method pld.")
    if spec.repeats and spec.repeats < MIN_PASSES:
        raise UserError(
            f"{goal_text} needs {MIN_PASSES} passes, and --repeats {spec.repeats} allows fewer.",
            f"Leave out --repeats, or give the most passes: {MIN_PASSES} or more.",
        )
    if not has_interval(num_prompts):
        total = sum(num_prompts)
        raise UserError(
            f"{goal_text} cannot be reached: too few prompts for an interval ({total} in all).",
            f"Use {least_prompts(len(num_prompts))} prompts per task or more (--limit, --dataset).",
        )


def has_interval(num_prompts: Iterable[int]) -> bool:
    """True if tasks with these numbers of prompts give the mean an interval."""
    return sum(number - 1 for number in num_prompts) > MIN_DEGREES


def least_prompts(num_tasks: int) -> int:
    """The fewest prompts per task that give an interval."""
    return 2 + MIN_DEGREES // num_tasks


def finished_header(header: RunHeader, records: Sequence[Record]) -> RunHeader:
    """The header of a complete run: with --until-ci, it has the number of passes that it took."""
    spec = header.spec
    if spec.values.until_ci is None:
        return header
    # Passes count from 0.
    num_passes = 1 + max((record.key.repeat for record in records), default=0)
    # `values` are in effect; `asked`, if there, are the user's, which may be `auto`.
    asked = spec.asked and replace(spec.asked, repeats=num_passes)
    spec = replace(spec, values=replace(spec.values, repeats=num_passes), asked=asked)
    warnings = header.warnings
    width = width_after(header, records)  # width of the widest interval of a mean speedup
    if width and not width.is_enough:
        warnings = (*warnings, f"The goal of --until-ci was not reached: {width}.")
    return replace(header, spec=spec, num_records=len(records), warnings=warnings)
