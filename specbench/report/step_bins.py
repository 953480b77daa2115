"""Make the table of mean accepted tokens by position in answers, by context and by turn."""

from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.step_bins import LEAST_PROMPTS, Axis, StepBin
from specbench.report import formats
from specbench.report.results import Block, MethodResults, Report
from specbench.report.table import Cell, Column, Table
from specbench.report.task_tables import groups

HEADINGS: dict[Axis, str] = {"position": "answer", "context": "context", "turn": "turn"}
"""The first lines of the headings, by axis. An axis is the number of answer tokens before a step,
the number of prompt and answer tokens before it, or the turn.
"""


def step_bin_table(report: Report, block: Block) -> Table:
    """Return the table of MAT with a row per method and a column per bin of steps.

    A bin is the steps in a range of an axis: answer tokens before the step, context tokens, or
    turn. A bin has a column if a method has a number in it, and if its axis has a second such bin,
    since a single bin says no more than the MAT of all steps. Therefore the table may have no
    columns. `block` has the results at a temperature.
    """
    # A bin for each column, from any method. Its axis and range are the same for all methods.
    shown_bins = [step_bin for axis in HEADINGS for step_bin in _bins_of_axis(block, axis)]
    columns = tuple(
        Column(f"{HEADINGS[shown_bin.axis]}\n{shown_bin.range_text}") for shown_bin in shown_bins
    )

    def cells(method: MethodResults) -> list[Cell]:
        """Return the MATs of a method, or a dash where it has no steps or too few prompts."""
        # the method's bins, by axis and by the start of their range
        bin_of_method = {(step_bin.axis, step_bin.low): step_bin for step_bin in method.step_bins}
        return [_cell(bin_of_method.get((column.axis, column.low))) for column in shown_bins]

    title = (
        "MAT by position in the answer, by context length and by turn "
        f"(all tasks, at least {LEAST_PROMPTS} prompts)"
    )
    with_bins = block.only(lambda method: bool(method.step_bins))
    return Table(title, columns, groups(report, with_bins, cells))


def _bins_of_axis(block: Block, axis: Axis) -> list[StepBin]:
    """Return the bins of an axis in which a method has a number, unless there is only one.

    Each bin is that of the first method with a number, since the range is the same for all.
    """
    first_by_low: dict[int, StepBin] = {}
    for method in block.methods:
        for step_bin in method.step_bins:
            if step_bin.axis == axis and isinstance(step_bin.mat, Estimate):
                first_by_low.setdefault(step_bin.low, step_bin)
    step_bins = [first_by_low[low] for low in sorted(first_by_low)]
    return step_bins if len(step_bins) > 1 else []


def _cell(step_bin: StepBin | None) -> Cell:
    if step_bin is None:  # the method has no step there
        return Cell(formats.NONE)
    return Cell(formats.mat(step_bin.mat) + formats.plus_minus(step_bin.mat))
