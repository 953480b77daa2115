"""The warning about steps beyond the positions that a method's weights were made for."""

from collections.abc import Iterable

from specbench.analysis.records import CELL_KEY, RecordTable
from specbench.analysis.step_bins import locate_steps
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader


def find_long_prompts(table: RecordTable, header: RunHeader) -> Iterable[RunWarning]:
    """Warnings about methods with steps beyond the positions that their draft weights have.

    These are the positions that the checkpoint was made for (`num_positions`). A step is beyond if
    more tokens precede it. A warning has the share of steps beyond among the method's steps at a
    temperature, and the MAT of the steps beyond and within the positions.
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
            emitted_within = steps.emitted[~is_beyond]  # tokens of each step
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "positions": execution.num_positions,
                "share": float(is_beyond.mean()),
                "mat_beyond": float(steps.emitted[is_beyond].mean()),
                "mat_within": float(emitted_within.mean()) if len(emitted_within) else None,
            }
            yield RunWarning("long_prompts", warning_numbers)
