"""The warning about steps beyond the positions that a method's weights were made for."""

from collections.abc import Iterable

from specbench.analysis.records import CELL_KEY, RecordTable
from specbench.analysis.step_bins import locate_steps
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader


def find_long_prompts(table: RecordTable, header: RunHeader) -> Iterable[RunWarning]:
    """Methods with steps after more tokens than their weights have positions.

    A warning has the share of these steps among all steps, and MAT of these and of the others.
    """
    rows_by_subject = table.frame.groupby(CELL_KEY[:2], observed=True, sort=False).indices
    for (method, temperature), rows in rows_by_subject.items():
        execution = header.execution.get(method)
        if execution is None or not execution.num_positions:
            continue
        steps = locate_steps(table, rows)
        is_beyond = steps.places["context"] > execution.num_positions  # [steps]
        if is_beyond.any():
            within = steps.emitted[~is_beyond]
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "positions": execution.num_positions,
                "share": float(is_beyond.mean()),
                "mat_beyond": float(steps.emitted[is_beyond].mean()),
                "mat_within": float(within.mean()) if len(within) else None,
            }
            yield RunWarning("long_prompts", warning_numbers)
