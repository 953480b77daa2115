"""MAT and speedups are the same in every rendering, for random runs with unequal tasks."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from csv import DictReader
from dataclasses import replace
from html import unescape
from io import StringIO
from math import isclose
from pathlib import Path
from unittest.mock import patch

import pytest

from specbench.analysis.frames import summary_frame
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.judge.comparison import MEAN
from specbench.judge.comparison_formats import comparison_json
from specbench.judge.page import run_rows
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.measure.progress import Tally
from specbench.report.build import make_report
from specbench.report.results import MethodResults, Report
from specbench.types import Record
from tests.analysis.run_factory import number
from tests.before_after import make
from tests.judge.changing import with_header
from tests.judge.comparing import compare
from tests.report.drawing import drawn, render
from tests.support.headers import values_of


def uneven(run: Run, seed: int) -> Run:
    """The run, reduced to a different number of samples on each task."""
    draw = random.Random(seed)
    task_of_sample = {record.key.sample_id: record.key.task for record in run.records}
    kept: dict[str, str] = {}  # the task of each sample
    for task in sorted(set(task_of_sample.values())):
        ids = sorted(sample for sample in task_of_sample if task_of_sample[sample] == task)
        kept |= dict.fromkeys(ids[: draw.randint(1, len(ids))], task)
    return run.of(kept)


def at_temperature(run: Run, temperature: float) -> Run:
    """The part of the run at one temperature, without the blocks of others."""
    records = tuple(record for record in run.records if record.key.temperature == temperature)
    methods = {record.key.method for record in records}
    blocks = [
        block
        for block in values_of(run.header).get("blocks", [])
        if block["method"] in methods and block["temperature"] == temperature
    ]
    return with_header(
        replace(run, records=records), spec__values__temperatures=[temperature], blocks=blocks
    )


def shown(metric: Value) -> str | None:
    """The metric with two decimals, as tables show it, or None if it is missing."""
    return f"{metric.value:.2f}" if isinstance(metric, Estimate) else None


def is_written(number: str | float, metric: Value) -> bool:
    """Return whether a file's number equals the metric, to the digits that the file keeps."""
    return isinstance(metric, Estimate) and isclose(float(number), metric.value, rel_tol=1e-5)


INTERVALS_AND_TAGS = re.compile(
    r"""
    <small.*?</small>  # an interval in HTML
    | <[^>]+>
    | \\\w+interval(\{[\d.]+\}){2}  # an interval in LaTeX
    | \\textbf
    """,
    re.VERBOSE,
)


def plain(row: str) -> str:
    """A row of Markdown, LaTeX or HTML as words: without intervals, tags and signs of tables."""
    without_tags = unescape(INTERVALS_AND_TAGS.sub(" ", row))
    words = re.sub(r"[|&{}*]", " ", without_tags.replace("\\", "")).split()
    return " ".join(words)


def rows(document: str, label: str) -> list[str]:
    """The rows with this label in a document's tables."""
    html_rows = re.findall(r"<tr[^>]*>(.*?)</tr>", document, re.DOTALL)
    if html_rows:  # A page has "PLD* ngram=2" on two lines instead of "PLD (ngram=2)*".
        label = re.sub(r"^(.+?) \((.+)\)(\*?)$", r"\1\3 \2", label)
    plain_rows = [plain(row) for row in html_rows or document.splitlines()]
    return [row for row in plain_rows if row.startswith(f"{plain(label)} ")]


def under(heading: str, document: str, label: str) -> list[str]:
    """The texts below a heading of a terminal's tables, in the rows with this label."""
    cells = []
    end = -1  # the column where the heading ends, or -1 outside of its table
    for line in document.splitlines():
        if heading in line and line.startswith("Method"):
            end = line.rindex(heading) + len(heading)
        elif line.startswith(f"{label} ") and 0 <= end <= len(line):
            cells.append(line[:end].split()[-1])
        elif not line.strip():
            end = -1
    return cells


def renderings(report: Report) -> dict[str, str]:
    """The report in all formats, and in both terminal forms with each label on one line."""
    bare = replace(report, plots=())  # drawing takes longer than everything else
    documents = {form: render(bare, form) for form in ("csv", "html", "json", "latex", "markdown")}
    with patch("specbench.report.layout._MOST_LABEL", 99):
        documents["screen"] = drawn(bare, width=500, is_full=False)
        documents["full"] = drawn(bare, width=500)
    return documents


def check_run(run: Run) -> int:
    """Compare all renderings of a run. Return the number of methods with a MAT over tasks."""
    report = make_report(run)
    metrics = report.sources[0].metrics
    written = renderings(report)
    if all(record.is_ok for record in run.records):
        check_comparison(run, metrics)
    (block,) = report.blocks
    assert [results.method for results in block.methods] == list(metrics.methods)
    return sum(check_method(report, written, results) for results in block.methods)


def check_method(report: Report, written: Mapping[str, str], results: MethodResults) -> bool:
    """Compare all renderings of a method. Return False if it has no MAT over tasks."""
    (source,) = report.sources
    metrics = source.metrics
    (temperature,) = metrics.temperatures
    method, overall = results.method, results.overall
    assert results.label == metrics.info.method(method).label
    assert overall == metrics.overall[method, temperature]
    assert results.cost == metrics.cost(method, temperature)
    mat = shown(overall.mat)
    if mat is None or shown(overall.pooled.mat) is None:
        return False
    if isinstance(results.cost.mat, Estimate):
        assert results.cost.mat.value == number(overall.pooled.mat)
    check_files(metrics, written, results)
    check_tables(written, results, title=metrics.info.method(method).title)
    check_judged_rows(metrics, results)
    check_tiles(written["html"], results)
    check_live_view(source.run.records, method, mat)
    if method != BASELINE and shown(overall.speedup):
        check_alt_texts(report, results)
    return True


def check_files(metrics: RunMetrics, written: Mapping[str, str], results: MethodResults) -> None:
    """Check the MAT of a method in the summary frame, in CSV and in JSON."""
    method = results.method
    mat, pooled_mat = results.overall.mat, results.overall.pooled.mat
    frame = summary_frame(metrics).set_index(["method", "task"])
    assert f"{frame.loc[(method, 'mean'), 'mat']:.2f}" == shown(mat)
    assert f"{frame.loc[(method, 'pooled'), 'mat_all_steps']:.2f}" == shown(pooled_mat)
    csv_lines = DictReader(StringIO(written["csv"]))
    by_task = {line["task"]: line for line in csv_lines if line["method"] == method}
    assert is_written(by_task["mean"]["mat"], mat)
    assert is_written(by_task["pooled"]["mat_all_steps"], pooled_mat)
    assert by_task["pooled"]["mat"] == ""
    assert by_task["mean"]["mat_all_steps"] == ""
    (run,) = json.loads(written["json"])["runs"]
    (totals,) = [totals for totals in run["overall"] if totals["method"] == method]
    assert is_written(totals["mat"]["value"], mat)
    assert is_written(totals["pooled"]["mat_all_steps"]["value"], pooled_mat)
    for cost in run["costs"]:
        is_over_all_tasks = cost["method"] == method and cost["task"] is None
        if is_over_all_tasks and "value" in cost["mat_all_steps"]:
            assert is_written(cost["mat_all_steps"]["value"], pooled_mat)


def check_tables(written: Mapping[str, str], results: MethodResults, title: str) -> None:
    """Check the MAT and the speedup of a method in the tables for readers.

    LaTeX has the method's title, and its options below the table. Other formats have its label.
    """
    mat, speedup = shown(results.overall.mat), shown(results.overall.speedup)
    label = results.label
    assert under("MAT", written["screen"], label) == [mat]
    _, _, step_costs = written["full"].partition("Cost of a step")
    assert under("MAT", step_costs, label)[:1] in ([], [shown(results.cost.mat) or "–"])
    names = {"markdown": label, "html": label}
    speedup_cell = ""
    if results.method != BASELINE:
        names["latex"] = title
        speedup_cell = rf" {speedup}x\S*( ±\S+)?" if speedup else ""
    cells = re.compile(rf"{speedup_cell} {mat}( |$)")
    for form, name in names.items():
        name_rows = rows(written[form], name)
        assert any(cells.search(row) for row in name_rows), (form, name_rows)
    decode_speedup = shown(results.overall.decode_speedup)
    overview = [row.split() for row in rows(written["markdown"], label)]
    assert any(
        mat in row and (decode_speedup is None or f"{decode_speedup}x" in row) for row in overview
    )


def check_judged_rows(metrics: RunMetrics, results: MethodResults) -> None:
    """Check the numbers of a method in the rows of a comparison's page."""
    method_rows = [row for row in run_rows(metrics, 0) if row.method == results.label]
    has_mean = len(metrics.tasks) > 1
    (row,) = [row for row in method_rows if row.task == "Mean" or not has_mean]
    assert shown(row.mat) == shown(results.overall.mat)
    assert shown(row.speedup) == shown(results.overall.speedup)


def check_alt_texts(report: Report, results: MethodResults) -> None:
    """Check the numbers of a method in the descriptions of plots."""
    mat, speedup = shown(results.overall.mat), shown(results.overall.speedup)
    alt_of = {plot.name: plot.alt for plot in report.plots}
    assert f"{results.label} {speedup}" in alt_of["speedup"]
    by_mat = alt_of["speedup_by_mat"]
    assert f"{results.label}: {mat} tokens per step, {speedup} times as fast" in by_mat
    bound, pooled_mat = shown(results.cost.bound), shown(results.overall.pooled.mat)
    assert bound is None or f"bandwidth bound {bound} at {pooled_mat} tokens" in by_mat


def check_live_view(records: Sequence[Record], method: str, mat: str) -> None:
    """Check that the live view ends with the table's MAT."""
    tally = Tally()
    for record in records:
        tally.add(record)
    live_mat = tally.methods[method].mat
    is_complete = all(record.is_ok and not record.is_paused for record in records)
    assert live_mat is None or not is_complete or f"{live_mat:.2f}" == mat


def check_tiles(page: str, results: MethodResults) -> None:
    """Check that the numbers at the top of the page belong to the methods that they name."""
    metric_of_title = {
        "Most tokens per step": results.overall.mat,
        "Highest speedup": results.overall.speedup,
        "Closest to vanilla": results.overall.speedup,
    }
    tile = r'<div><dt>(.*?)</dt><dd>(.*?)x?</dd><dd class="small">(.*?)</dd>'
    for title, tile_number, words in re.findall(tile, page):
        is_of_method = re.match(rf"{re.escape(results.label)}(,|$)", unescape(words))
        if is_of_method and title in metric_of_title:
            assert tile_number == shown(metric_of_title[title])


def check_comparison(run: Run, metrics: RunMetrics) -> None:
    """Compare a run with itself: all completions are shared."""
    (compared,) = json.loads(comparison_json([compare(run, run)]))["comparisons"]
    means = [cell for cell in compared["cells"] if cell["task"] == MEAN]
    for cell in means:
        mat = metrics.overall[cell["method"], cell["temperature"]].mat
        if isinstance(mat, Estimate) and cell["mat_subject"]:
            assert cell["mat_subject"] == pytest.approx(mat.value)


@pytest.mark.parametrize(("count", "seed"), [(3, 1), pytest.param(25, 2, marks=pytest.mark.slow)])
def test_a_number_has_one_value_in_every_rendering(tmp_path: Path, count: int, seed: int) -> None:
    make(tmp_path, count, seed)
    num_checked = 0
    for seed_of_sizes, folder in enumerate(sorted(tmp_path.iterdir())):
        run = uneven(read_run(folder / "a"), seed_of_sizes)
        for run_at_load in map(run.at, run.loads):
            for temperature in run_at_load.header.spec.values.temperatures:
                num_checked += check_run(at_temperature(run_at_load, temperature))
    assert num_checked > count
