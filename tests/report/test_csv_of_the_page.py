"""`table.csv` has every number of the page's tables of methods."""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from io import StringIO
from typing import NamedTuple

import pytest

from specbench.log.run import Run
from specbench.report import sections, task_tables
from specbench.report.build import make_report
from specbench.report.results import Report
from tests.analysis.run_factory import full_run
from tests.report.drawing import render, served, two_temperatures, with_limits, with_phases

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
SCALES = {"ms per": 1e3, "GB": 1e-9, "TB": 1e-12, "GiB": 2.0**-30}
"""The factors from the units of `table.csv` to the page's, by words in the page's headings."""
RUNS: Mapping[str, Callable[[], Run]] = {
    run.__name__: run for run in (full_run, served, two_temperatures, with_limits, with_phases)
}


@cache
def report_of(name: str) -> Report:
    return make_report(RUNS[name]())


def lines_of(report: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(render(report, "csv"))))


class Shown(NamedTuple):
    """A cell of the page, and the factor of its unit."""

    method: str
    load: str
    temperature: float
    text: str
    scale: float


def shown_cells(report: Report) -> Iterator[Shown]:
    """The cells of the page's tables that have numbers."""
    for block in report.blocks:
        main = task_tables.mean_first(report, block)
        for table in sections.tables(report, block, main):
            is_latency = table.title.startswith("Latency")
            rows = [(group.label, row) for group in table.groups for row in group.rows]
            for load, row in rows:
                for column, cell in zip(table.columns, row.cells, strict=True):
                    scale = next((SCALES[unit] for unit in SCALES if unit in column.title), 1.0)
                    scale = 1e3 if is_latency else 1e2 if "%" in cell.text else scale
                    if not cell.reason:
                        yield Shown(row.method, load, block.temperature, cell.text, scale)


def numbers_of(lines: Sequence[Mapping[str, str]]) -> list[float]:
    """All numbers of the lines, and half the widths of their intervals."""
    numbers = [float(field) for line in lines for field in line.values() if _is_number(field)]
    for line in lines:
        for column in (name.removesuffix("_low") for name in line if name.endswith("_low")):
            if line[f"{column}_low"]:
                numbers.append((float(line[f"{column}_high"]) - float(line[f"{column}_low"])) / 2)
    return numbers


@pytest.mark.parametrize("name", RUNS)
def test_every_number_of_a_page_is_in_its_spreadsheet(name: str) -> None:
    report = report_of(name)
    lines = lines_of(report)
    num_numbers = 0
    for shown in shown_cells(report):
        numbers = numbers_of(
            [
                line
                for line in lines
                if line["method"] == shown.method
                and float(line["temperature"]) == shown.temperature
                and shown.load.startswith(line["load"] if shown.load else "")
            ]
        )
        for text in NUMBER.findall(shown.text):
            num_numbers += 1
            half = 0.5000001 * 10.0 ** -len(text.partition(".")[2])  # of the last digit
            is_found = any(abs(number * shown.scale - float(text)) <= half for number in numbers)
            assert is_found, f"{shown}: {text}"
    assert num_numbers > 50


def _is_number(field: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", field or "") is not None


def test_columns_are_added_at_the_end_and_none_is_renamed() -> None:
    """The columns up to `mat_all_steps` are those that other programs read."""
    columns = [*lines_of(report_of("full_run"))[0]]
    last = columns.index("mat_all_steps")
    assert columns[:3] == ["run", "model", "weights"]
    assert columns[last - 2 : last] == ["joules_per_token", "peak_memory_bytes"]
    assert columns[last + 1] == "cost_speedup"
    added = [*lines_of(report_of("served"))[0]]
    assert added[: last + 1] == columns[: last + 1]
    assert added.index("throughput_ratio") > last
