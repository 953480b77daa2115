"""The cells of a gate's checks."""

from specbench.analysis.cells import CellKey
from specbench.judge.checks import Check, CheckedRun


def cell(check: Check) -> CellKey:
    assert check.cell
    return check.cell


def failed_cells(gate: CheckedRun, name: str) -> set[tuple[str, str]]:
    """The method and task of each failed check with this name."""
    cells = [cell(failure) for failure in gate.failures if failure.name == name]
    return {(failed.method, failed.task) for failed in cells}


def of_cells(gate: CheckedRun) -> list[Check]:
    return [check for check in gate.checks if check.cell]
