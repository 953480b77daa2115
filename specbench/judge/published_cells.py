"""A cell of a published table beside another cell, or beside a run: numbers without intervals."""

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
from specbench.report.table import Cell, Column, Group, Row, Table
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
    """The known conditions, by their names in words."""
    rounding: dict[str, float]
    """Half of the last digit that the table prints, by the name of the number; absent for a run."""


def is_cell(text: str) -> bool:
    """True for the name of a cell, which no folder has."""
    return ":" in text and not Path(text).exists()


def find_cells(text: str) -> tuple[PublishedValue, ...]:
    """The values of a cell: one, or one per repetition.

    TABLE is a name in results/published or a TOML file.

    Raises:
        UserError: there is no such table or cell, or the text names several.
    """
    table, _, cell = text.partition(":")  # "TABLE:model/method/task,load=8"
    path, *conditions = re.split(r",(?=\w+=)", cell)  # the text of settings may have commas
    values = _read_table(table)
    names = {f"{value.model}/{value.method}/{value.task}" for value in values}
    if path not in names:
        raise unknown_name("cell", path, names, f"The form is {_FORM}.", of=table)
    values = [value for value in values if f"{value.model}/{value.method}/{value.task}" == path]
    for condition in conditions:
        name, _, wanted = condition.partition("=")  # of a field of the values
        available = {str(getattr(value, name, "")) for value in values}
        values = [value for value in values if _is_equal(getattr(value, name, ""), wanted)]
        if not values:
            raise unknown_name(
                name or "condition", wanted, available, f"The form is {_FORM}.", of=path
            )
    settings = {(v.temperature, v.load, v.num_draft_tokens, v.settings) for v in values}
    if len(settings) > 1:
        raise UserError(
            f"{text} has {len(settings)} cells.",
            "Add temperature, load, num_draft_tokens or settings: " + _FORM,
        )
    return tuple(values)


def _read_table(table: str) -> list[PublishedValue]:
    """The cells of a table: a name in results/published or a TOML file."""
    values = [value for value in published_values() if value.publication.key == table]
    if not values:
        file = Path(table).with_suffix(".toml")
        if not file.exists():
            raise unknown_name("table", table, {v.publication.key for v in published_values()})
        values = [*read_publication(file)]
    return values


def _is_equal(number: object, wanted: str) -> bool:
    try:
        return (isinstance(number, float) and number == float(wanted)) or str(number) == wanted
    except ValueError:
        return str(number) == wanted


def compare_cells(texts: Sequence[str], methods: tuple[str, str] | None = None) -> list[CellSide]:
    """The two sides of a comparison, of which at least one is a cell.

    A text names a cell, or the folder of a run. `methods` has the method of each side that is a
    run; without it, a run's method is the cell's.

    Raises:
        UserError: there are not two sides, or a run lacks the method.
    """
    if len(texts) != 2:
        raise UserError(f"{len(texts)} sides cannot be compared with a cell.", "Name two.")
    return read_sides(texts, methods)


def read_sides(texts: Sequence[str], methods: tuple[str, str] | None = None) -> list[CellSide]:
    """One or two sides, of which at least one is a cell.

    A text names a cell, or the folder of a run. `methods` has the method of each side that is a
    run; without it, a run is read with the method of the first cell.

    Raises:
        UserError: a side is unknown, or a run lacks the method.
    """
    # of each side, the repetitions of a cell; empty for a run
    values_of_sides = [find_cells(text) if is_cell(text) else () for text in texts]
    first_cell = next(values[0] for values in values_of_sides if values)
    sides = []
    for index, (text, values) in enumerate(zip(texts, values_of_sides, strict=True)):
        if values:
            sides.append(_side_of_cell(text, values))
        else:
            method = methods[index] if methods else first_cell.method
            sides.append(_side_of_run(text, method, first_cell))
    return sides


def _side_of_cell(text: str, values: Sequence[PublishedValue]) -> CellSide:
    """The side of a cell that a text names: its number, or the mean of its repetitions (`values`).

    A number may be off by half of the last digit that its table prints (`rounding`).
    """
    first = values[0]
    numbers: dict[str, float] = {}
    rounding: dict[str, float] = {}
    # all cells of the table
    table = [value for value in _read_table(text.partition(":")[0]) if value.table == first.table]
    for name, field in NUMBERS.items():
        published = [number for value in values if (number := getattr(value, field)) is not None]
        if published:
            numbers[name] = fmean(published)
            column = [getattr(value, field) for value in table]
            num_decimals = max(map(_num_decimals, filter(None, column)), default=0)
            rounding[name] = 0.5 / 10**num_decimals
    optional = {"requests at once": first.load, "draft tokens": first.num_draft_tokens}
    facts_of_cell = {
        "model": first.model,
        "method": first.method,
        "task": first.task,
        "temperature": f"{first.temperature:g}",
        **{name: f"{number:g}" for name, number in optional.items() if number is not None},
        "hardware": first.table.known_hardware,
        "settings": first.settings,
    }
    source = ", ".join(filter(None, (first.where, text)))
    return CellSide(
        label=f"{source} (published table)",
        numbers=numbers,
        task=first.task,
        method=first.method,
        facts={name: text for name, text in facts_of_cell.items() if text},
        rounding=rounding,
    )


def _num_decimals(number: float) -> int:
    """Decimals of a number as it is written."""
    exponent = Decimal(str(number)).normalize().as_tuple().exponent
    return max(0, -int(exponent))


def _side_of_run(text: str, method: str, like: PublishedValue) -> CellSide:
    """A run's method at the temperature, load and task of the cell `like`.

    A run without that load is read at its first load, and without that task over all tasks. `text`
    is the run's folder.
    """
    run = read_runs(Path(text))
    loads = [load for load in run.loads if like.load in (None, 0, load.concurrency)]
    metrics = measure(run.at((loads or run.loads)[0]))
    if method not in metrics.methods:
        raise unknown_name("method", method, metrics.methods, "--cross names others.", of=text)
    temperature = like.temperature
    if temperature not in metrics.temperatures:
        levels = [f"{level:g}" for level in metrics.temperatures]
        raise unknown_name("temperature", f"{temperature:g}", levels, of=text)
    has_task = like.task in metrics.tasks
    overall = metrics.overall[method, temperature]
    cell = metrics.cell(method, temperature, like.task) if has_task else overall.pooled
    values = {"speedup": cell.speedup, "MAT": cell.mat, "tokens/s": cell.tokens_per_s}
    numbers = {name: value_or_none(value) for name, value in values.items()}
    label = f"{run.header.id}, {facts.model_label(run.header)}, {run.header.method(method).label}"
    task = like.task if has_task else "all tasks"
    facts_of_run = {"model": run.header.model.name, "method": method, "task": task}
    if not run.header.imported:  # other tools' files need not name these
        facts_of_run |= {
            "temperature": f"{temperature:g}",
            "requests at once": f"{(loads or run.loads)[0].concurrency or 1}",
            "hardware": run.header.hardware_name,
        }
    return CellSide(
        label=label,
        numbers={name: number for name, number in numbers.items() if number is not None},
        task=task,
        method=method,
        facts=facts_of_run,
        rounding={},
    )


def cells_table(sides: Sequence[CellSide]) -> Table:
    """The numbers that either side has, with their ratio if both sides have them."""
    rows = []
    for name in NUMBERS:
        numbers = [side.numbers.get(name) for side in sides]
        first, second = numbers
        if first is None and second is None:
            continue
        ratio = first / second if first is not None and second else None
        texts = ["–" if number is None else f"{number:.4g}" for number in (*numbers, ratio)]
        rows.append(Row("", name, tuple(map(Cell, texts))))
    columns = (Column("A"), Column("B"), Column("A / B"))
    return Table("", columns, (Group("", tuple(rows)),), heading="Number")


def cells_page(sides: Sequence[CellSide]) -> Iterator[Part]:
    """The parts of the page on a terminal."""
    lettered = zip("AB", sides, strict=True)
    yield tuple(Note(letter, f"{side.label}; {side.task}") for letter, side in lettered)
    yield BLANK
    yield cells_table(sides)
    yield BLANK
    yield (Note("Intervals", "none: a published cell has no samples. Nothing is claimed."),)


def cells_json(sides: Sequence[CellSide]) -> str:
    """Both sides with their numbers."""
    return json.dumps({"schema": 1, "sides": [side._asdict() for side in sides]}, indent=2) + "\n"
