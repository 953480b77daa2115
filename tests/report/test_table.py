"""The table value, its layout on a terminal, and the export formats."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from specbench.errors import UserError
from specbench.report import export
from specbench.report.build import make_report
from specbench.report.export import FORMATS, load_format
from specbench.report.layout import draw
from specbench.report.table import Cell, Column, Group, Row, Table
from tests.report.drawing import one_sample


def table(*columns: Column) -> Table:
    cells = tuple(Cell(f"{i}.00") for i, _ in enumerate(columns))
    return Table("", columns, (Group("", (Row("pld", "PLD", cells),)),))


def shown(made: Table, width: int) -> str:
    file = StringIO()
    console = Console(width=width, file=file, color_system=None)
    for part in draw(made, width):
        console.print(part)
    return file.getvalue()


def test_cells_of_one_task_are_gathered_and_others_stand_alone() -> None:
    made = table(Column("speedup", "A"), Column("MAT", "A"), Column("done"), Column("failed"))
    assert made.by_task("abcd") == [("A", ["a", "b"]), ("", ["c"]), ("", ["d"])]


def test_the_column_of_highest_rank_is_dropped_first() -> None:
    made = table(Column("stays"), Column("second", rank=1), Column("first", rank=2))
    assert [word in shown(made, 40) for word in ("stays", "second", "first")] == [True] * 3
    assert [word in shown(made, 24) for word in ("stays", "second", "first")] == [True, True, False]
    assert [word in shown(made, 14) for word in ("stays", "second", "first")] == [
        True,
        False,
        False,
    ]


def test_columns_that_may_not_be_dropped_continue_in_a_further_table() -> None:
    made = table(*(Column("MAT", f"Task-{i}") for i in range(4)))
    assert shown(made, 60).count("Method") == 1
    text = shown(made, 25)
    assert text.count("Method") == text.count("PLD") > 1
    assert all(f"Task-{i}" in text for i in range(4))


def test_text_wraps_in_the_room_that_numbers_leave() -> None:
    cells = (Cell("a sentence of several words that needs two lines"), Cell("1.00"))
    columns = (Column("Result", is_text=True), Column("number"))
    lines = shown(Table("", columns, (Group("", (Row("pld", "PLD", cells),)),)), 44).splitlines()
    assert lines[0].split() == ["Method", "Result", "number"]
    assert "1.00" in lines[2] and "PLD" in lines[2]
    assert lines[3].strip() and max(map(len, lines)) <= 44


def test_every_file_of_export_is_a_format() -> None:
    stems = {path.stem for path in Path(export.__path__[0]).glob("*.py")} - {"__init__", "terminal"}
    assert set(FORMATS) == {"table", *stems}
    report = make_report(one_sample())
    names: list[str] = []
    for name in FORMATS:
        assert load_format(name).render(report)
        names += load_format(name).files(report)
    assert len(names) == len(set(names))


def test_an_unknown_format_is_an_error_with_a_guess() -> None:
    with pytest.raises(UserError, match="Did you mean 'markdown'"):
        load_format("markdwn")
