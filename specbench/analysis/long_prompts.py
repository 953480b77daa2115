"""Warn about steps beyond the positions for which a method's draft weights were made."""

from collections.abc import Iterable

from specbench.analysis.records import CELL_KEY, RecordTable
from specbench.analysis.step_bins import locate_steps
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader


def find_long_prompts(table: RecordTable, header: RunHeader) -> Iterable[RunWarning]:
    """Yield warnings about methods with steps beyond the positions of their draft weights.

    `num_positions` is the number of positions for which the checkpoint was made. A step is beyond
    them if more tokens precede it. A warning has the share of such steps among the method's steps
    at a temperature, and the MAT of the steps beyond and within the positions.
    """
    # (method, temperature) -> numbers of records
    rows_by_subject = table.frame.groupby(CELL_KEY[:2], observed=True, sort=False).indices
    for (method, temperature), rows in rows_by_subject.items():
        execution = header.execution.get(method)  # how the method ran
        if execution is None or not execution.num_positions:  # unknown
            continue
        steps = locate_steps(table, rows)
        # "context": number of tokens of prompt and answer before each step
        is_beyond = steps.places["context"] > execution.num_positions  # [steps]
        if is_beyond.any():
            emitted_within = steps.emitted[~is_beyond]  # tokens emitted by each step within
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "positions": execution.num_positions,
                "share": float(is_beyond.mean()),
                "mat_beyond": float(steps.emitted[is_beyond].mean()),
                "mat_within": float(emitted_within.mean()) if len(emitted_within) else None,
            }
            yield RunWarning("long_prompts", warning_numbers)
