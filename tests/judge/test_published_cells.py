"""A cell of a published table compared with another one, or with a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.app import app
from specbench.errors import UserError
from specbench.judge.published_cells import cells_table, compare_cells, find_cells, is_cell
from specbench.log.run import NO_LOAD, Load
from tests.analysis.run_factory import header, make_run, record
from tests.judge.tables import RUN, write_table
from tests.support.records import store

SEED = "eagle2:vicuna-13b/eagle2/mt_bench"
CSV = """table,temperature,model,method,task,tokens_per_s,load,repeat
table,0,org/m,eagle,chat,10,1,0
table,0,org/m,eagle,chat,14,1,1
table,0,org/m,eagle,chat,40,8,0
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    return f"{write_table(tmp_path, CSV)}:org/m/eagle/chat"


def test_a_cell_is_named_by_its_table_and_its_conditions(table: str) -> None:
    assert is_cell(table) and not is_cell(RUN)
    assert [value.tokens_per_s for value in find_cells(f"{table},load=1")] == [10.0, 14.0]
    assert [value.load for value in find_cells(f"{table},load=8")] == [8.0]
    (value,) = find_cells(f"{SEED},temperature=0")
    assert value.publication.name == "EAGLE-2 paper"


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("", "has 2 cells"),
        (",load=3", "No load '3'"),
        (",color=red", "No color 'red'"),
        ("s", "No cell 'org/m/eagle/chats'. Did you mean|No cell 'org/m/eagle/chats' of"),
    ],
)
def test_a_missing_cell_gives_one_message(suffix: str, message: str, table: str) -> None:
    with pytest.raises(UserError, match=message):
        find_cells(table + suffix)
    with pytest.raises(UserError, match="No table 'none'"):
        find_cells("none:a/b/c")


def test_repetitions_are_averaged_and_ratios_have_no_interval(table: str) -> None:
    sides = compare_cells([f"{table},load=8", f"{table},load=1"])
    assert [side.numbers["tokens/s"] for side in sides] == [40.0, 12.0]
    (row,) = cells_table(sides).groups[0].rows
    assert (row.label, [cell.text for cell in row.cells]) == ("tokens/s", ["40", "12", "3.333"])
    assert all(cell.interval is None for cell in row.cells)


def test_a_run_is_compared_by_its_method_on_the_cells_task() -> None:
    run, cell = compare_cells([RUN, f"{SEED},temperature=0"], ("eagle2", ""))
    assert run.task == cell.task == "mt_bench"
    assert {"speedup", "MAT"} <= run.numbers.keys() & cell.numbers.keys()
    with pytest.raises(UserError, match="No method 'none'"):
        compare_cells([RUN, f"{SEED},temperature=0"], ("none", ""))
    with pytest.raises(UserError, match="1 sides"):
        compare_cells([SEED])


@pytest.mark.parametrize(
    ("loads", "load", "requests_at_once"),
    [
        ({}, NO_LOAD, "1"),
        ({"concurrency": [8]}, Load(concurrency=8), "8"),
        ({"request_rates": [2.0]}, Load(request_rate=2.0), None),
    ],
)
def test_a_run_without_a_request_rate_names_its_requests_at_once(
    loads: dict[str, Any],
    load: Load,
    requests_at_once: str | None,
    table: str,
    tmp_path: Path,
) -> None:
    records = [
        replace(measured, key=replace(measured.key, **load._asdict()))
        for measured in (record("vanilla"), record("pld"))
    ]
    described = header(("vanilla", "pld"), ("gsm8k",))
    described["spec"]["values"] |= loads
    run = make_run(records, described)
    folder = store(tmp_path / "run", run.header, run.records)
    _, side = compare_cells([f"{table},load=8", str(folder)], ("", "pld"))
    assert side.facts.get("requests at once") == requests_at_once


def test_the_command_prints_both_sides(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["compare", f"{table},load=8", f"{table},load=1"], prog_name="specbench")
    printed = capsys.readouterr().out
    assert "3.333" in printed and "a published cell has no samples" in printed
    with pytest.raises(SystemExit):
        app(["compare", f"{table},load=8", RUN, "--cross", "x", "eagle2", "--format", "json"])
    sides = json.loads(capsys.readouterr().out)["sides"]
    assert sides[0]["numbers"] == {"tokens/s": 40.0} and sides[1]["task"] == "all tasks"
