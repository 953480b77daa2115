"""Compare a cell of a published table with another cell, or with a run, without intervals."""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from specbench.analysis.columns import value_or_none
from specbench.analysis.metrics import measure
from specbench.errors.kinds import UserError, unknown_name
from specbench.judge.printer import BLANK, Part
from specbench.log.folders import read_runs
from specbench.report import facts
from specbench.report.published import PublishedValue, published_values, read_publication
from specbench.report.table import Cell, Row, Table, group_table
from specbench.report.texts import Note

NUMBERS = {
    "speedup": "speedup",
    "MAT": "mat",
    "tokens/s": "tokens_per_s",
    "acceptance rate": "acceptance_rate",
    "seconds to the first token": "time_to_first_token_s",
    "seconds per token after it": "time_per_token_s",
}
"""Names of numbers -> fields of a published value."""
_FORM = "TABLE:model/method/task[,temperature=0,load=8]"


class CellSide(NamedTuple):
    """One side of a comparison."""

    label: str
    """The side in words."""
    numbers: dict[str, float]
    """The known numbers, by their names in `NUMBERS`."""
    task: str
    method: str
    facts: dict[str, str]
    """Name in words -> a known condition."""
    rounding: dict[str, float]
    """Name of a number -> half of the last digit that the table prints; empty for a run."""


def is_cell(name: str) -> bool:
    """True if a name is that of a cell, and not of a folder."""
    return ":" in name and not Path(name).exists()


def find_cells(name: str) -> tuple[PublishedValue, ...]:
    """The published numbers of the cell of this name. There is one `PublishedValue`, or one per
    repetition of the measurement.

    The name has the form TABLE:model/method/task. TABLE is a name in results/published or a TOML
    file. Conditions may follow, such as ",temperature=0,load=8". A condition has a field of the
    cell, and the wanted value of the field.

    Raises:
        UserError: there is no such table or cell, or the name fits several cells.
    """
    table_name, _, path_and_conditions = name.partition(":")
    # A condition begins with a comma, a word and "=". Other commas are part of the path or of a
    # wanted value.
    path, *conditions = re.split(r",(?=\w+=)", path_and_conditions)
    table = _read_table(table_name)
    paths = [f"{cell.model}/{cell.method}/{cell.task}" for cell in table]
    cells = [cell for cell, cell_path in zip(table, paths, strict=True) if cell_path == path]
    if not cells:
        raise unknown_name("cell", path, {*paths}, f"The form is {_FORM}.", of=table_name)
    for condition in conditions:
        field, _, wanted = condition.partition("=")
        available = {str(getattr(cell, field, "")) for cell in cells}
        cells = [cell for cell in cells if _is_equal(getattr(cell, field, ""), wanted)]
        if not cells:
            raise unknown_name(
                field or "condition", wanted, available, f"The form is {_FORM}.", of=path
            )
    # Repetitions of a measurement are equal in these fields.
    variants = {
        (cell.temperature, cell.load, cell.num_draft_tokens, cell.settings) for cell in cells
    }
    if len(variants) > 1:
        raise UserError(
            f"{name} has {len(variants)} cells.",
            "Add temperature, load, num_draft_tokens or settings: " + _FORM,
        )
    return tuple(cells)


def _read_table(table_name: str) -> list[PublishedValue]:
    """The cells of the table with this name in results/published, or of this TOML file.

    Raises:
        UserError: there is neither.
    """
    cells = [cell for cell in published_values() if cell.publication.key == table_name]
    if not cells:
        file = Path(table_name).with_suffix(".toml")
        if not file.exists():
            raise unknown_name(
                "table", table_name, {cell.publication.key for cell in published_values()}
            )
        cells = [*read_publication(file)]
    return cells


def _is_equal(field_value: object, wanted: str) -> bool:
    """True if a field has the wanted value, as a user writes it. A number may be 8 or 8.0."""
    try:
        is_same_number = isinstance(field_value, float) and field_value == float(wanted)
        return is_same_number or str(field_value) == wanted
    except ValueError:  # the field is a number, but the wanted value is not
        return False


def compare_cells(texts: Sequence[str], methods: tuple[str, str] | None = None) -> list[CellSide]:
    """Read the two sides of a comparison, of which at least one is a cell. See `read_sides`.

    Raises:
        UserError: there are not two sides, a side is unknown, or a run lacks the method.
    """
    if len(texts) != 2:
        raise UserError(f"{len(texts)} sides cannot be compared with a cell.", "Name two.")
    return read_sides(texts, methods)


def read_sides(texts: Sequence[str], methods: tuple[str, str] | None = None) -> list[CellSide]:
    """Read the one or two sides that are compared or explained. At least one is a cell of a
    published table. The other may be a run.

    Args:
        texts: the name of a cell or the folder of a run, for each side.
        methods: a method per side, which is used if the side is a run. None stands for the first
            cell's method.

    Raises:
        UserError: a side is unknown, or a run lacks the method.
    """
    # the repetitions of each side's cell, one or more; empty for a run
    cells_of_sides = [find_cells(name) if is_cell(name) else () for name in texts]
    first_cell = next(repetitions[0] for repetitions in cells_of_sides if repetitions)
    sides = []
    for index, (name, repetitions) in enumerate(zip(texts, cells_of_sides, strict=True)):
        if repetitions:
            sides.append(_side_of_cell(name, repetitions))
        else:
            method = methods[index] if methods else first_cell.method
            sides.append(_side_of_run(Path(name), method, first_cell))
    return sides


def _side_of_cell(cell_name: str, repetitions: Sequence[PublishedValue]) -> CellSide:
    """The side of a published cell, with the means of numbers over the cell's repetitions.

    The repetitions differ only in their numbers. The true number may differ from the printed one by
    half of the last digit that its column prints in any row of the table (`rounding`).
    """
    cell = repetitions[0]
    numbers: dict[str, float] = {}  # by name in NUMBERS
    rounding: dict[str, float] = {}  # by name in NUMBERS
    published_cells = _read_table(cell_name.partition(":")[0])  # "TABLE:model/method/task"
    table_rows = [row for row in published_cells if row.table == cell.table]
    for name, field in NUMBERS.items():
        printed = [number for row in repetitions if (number := getattr(row, field)) is not None]
        if printed:
            numbers[name] = fmean(printed)
            column = [getattr(row, field) for row in table_rows]
            num_decimals = max(map(_num_decimals, filter(None, column)), default=0)
            rounding[name] = 0.5 / 10**num_decimals
    optional = {"requests at once": cell.load, "draft tokens": cell.num_draft_tokens}
    facts_of_cell = {  # empty if unknown
        "model": cell.model,
        "method": cell.method,
        "task": cell.task,
        "temperature": f"{cell.temperature:g}",
        **{name: f"{number:g}" for name, number in optional.items() if number is not None},
        "hardware": cell.table.known_hardware,
        "settings": cell.settings,
    }
    source = ", ".join(filter(None, (cell.where, cell_name)))
    return CellSide(
        label=f"{source} (published table)",
        numbers=numbers,
        task=cell.task,
        method=cell.method,
        facts={name: fact for name, fact in facts_of_cell.items() if fact},
        rounding=rounding,
    )


def _num_decimals(number: float) -> int:
    """The number of decimals with which a number is written."""
    exponent = Decimal(str(number)).normalize().as_tuple().exponent
    return max(0, -int(exponent))


def _side_of_run(folder: Path, method: str, compared: PublishedValue) -> CellSide:
    """The side of a run: the numbers of a method at the temperature, load and task of the cell with
    which the run is compared.

    If the run lacks the cell's load, or the cell names none, the first load of the run counts. If
    the run lacks the cell's task, all tasks of the run count together.

    Raises:
        UserError: the run cannot be read, or lacks the method or the temperature.
    """
    run = read_runs(folder)
    # `concurrency` is a number of requests at once. None and 0 stand for no load.
    loads = [load for load in run.loads if compared.load in (None, 0, load.concurrency)]
    load = (loads or run.loads)[0]
    metrics = measure(run.at(load))
    if method not in metrics.methods:
        raise unknown_name(
            "method", method, metrics.methods, "Name it with --cross.", of=str(folder)
        )
    temperature = compared.temperature
    if temperature not in metrics.temperatures:
        levels = [f"{level:g}" for level in metrics.temperatures]
        raise unknown_name("temperature", f"{temperature:g}", levels, of=str(folder))
    cell = metrics.pooled(method, temperature)  # over all tasks
    task = "all tasks"
    if compared.task in metrics.tasks:
        task = compared.task
        cell = metrics.cell(method, temperature, task)
    estimates = {"speedup": cell.speedup, "MAT": cell.mat, "tokens/s": cell.tokens_per_s}
    numbers = {name: value_or_none(estimate) for name, estimate in estimates.items()}
    label = f"{run.header.id}, {facts.model_label(run.header)}, {run.header.method(method).label}"
    facts_of_run = {"model": run.header.model.name, "method": method, "task": task}
    if not run.header.imported:  # other tools' files need not name these
        facts_of_run["temperature"] = f"{temperature:g}"
        if load.concurrency:  # 0 at a request rate, which sets no number of requests at once
            facts_of_run["requests at once"] = f"{load.concurrency}"
        facts_of_run["hardware"] = run.header.hardware_name
    return CellSide(
        label=label,
        numbers={name: number for name, number in numbers.items() if number is not None},
        task=task,
        method=method,
        facts=facts_of_run,
        rounding={},
    )


def cells_table(sides: Sequence[CellSide]) -> Table:
    """The table of two sides, A and B. There is a row for each number that either side has, with
    the ratio A / B. A dash stands for an unknown number, or for a ratio that cannot be computed.
    """
    rows = []
    for name in NUMBERS:
        # None if unknown
        a, b = (side.numbers.get(name) for side in sides)
        if a is None and b is None:
            continue
        ratio = a / b if a is not None and b else None
        texts = ["–" if number is None else f"{number:.4g}" for number in (a, b, ratio)]
        rows.append(Row(method="", label=name, cells=tuple(map(Cell, texts))))
    return group_table(("A", "B", "A / B"), rows, heading="Number")


def cells_page(sides: Sequence[CellSide]) -> Iterator[Part]:
    """The parts of the page on a terminal."""
    lettered = zip("AB", sides, strict=True)
    yield tuple(Note(letter, f"{side.label}; {side.task}") for letter, side in lettered)
    yield BLANK
    yield cells_table(sides)
    yield BLANK
    yield (Note("Intervals", "none: a published cell has no samples. Nothing is claimed."),)


def cells_json(sides: Sequence[CellSide]) -> str:
    """A JSON document of both sides with their numbers."""
    return json.dumps({"schema": 1, "sides": [side._asdict() for side in sides]}, indent=2) + "\n"
