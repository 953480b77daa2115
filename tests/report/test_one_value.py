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
from specbench.report.results import Report
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
    kept: set[str] = set()
    for task in sorted({record.key.task for record in run.records}):
        ids = sorted({record.key.sample_id for record in run.records if record.key.task == task})
        kept.update(ids[: draw.randint(1, len(ids))])
    return run.of({sample_id: sample_id.partition("/")[0] for sample_id in kept})


def at_temperature(run: Run, temperature: float) -> Run:
    """The part of the run at one temperature, without the blocks of others."""
    records = tuple(record for record in run.records if record.key.temperature == temperature)
    methods = {record.key.method for record in records}
    blocks = [
        block
        for block in values_of(run.header).get("blocks", [])
        if block["method"] in methods and block["temperature"] == temperature
    ]
    changes = {"spec__values__temperatures": [temperature], "blocks": blocks}
    return with_header(replace(run, records=records), **changes)


def text(metric: Value) -> str | None:
    return f"{metric.value:.2f}" if isinstance(metric, Estimate) else None


def is_written(number: str | float, metric: Value) -> bool:
    """Return whether a file's number equals the metric, to the digits that the file keeps."""
    return isinstance(metric, Estimate) and isclose(float(number), metric.value, rel_tol=1e-5)


def plain(text: str) -> str:
    """A row of Markdown, LaTeX or HTML as words: without intervals, tags and signs of tables."""
    text = re.sub(r"<small.*?</small>|<[^>]+>|\\\w+interval(\{[\d.]+\}){2}|\\textbf", " ", text)
    return " ".join(re.sub(r"[|&{}*]", " ", unescape(text).replace("\\", "")).split())


def rows(document: str, label: str) -> list[str]:
    """The rows with this label in a document's tables."""
    of_page = re.findall(r"<tr[^>]*>(.*?)</tr>", document, re.DOTALL)
    if of_page:  # where settings are on a line of their own
        label = re.sub(r"^(.+?) \((.+)\)(\*?)$", r"\1\3 \2", label)
    lines = map(plain, of_page or document.splitlines())
    return [row for row in lines if row.startswith(f"{plain(label)} ")]


def under(heading: str, document: str, label: str) -> list[str]:
    """The texts below a heading of a terminal's tables, in the rows with this label."""
    cells, end = [], -1
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
        documents |= {"screen": drawn(bare, 500, is_full=False), "full": drawn(bare, 500)}
    return documents


def check_run(run: Run) -> int:
    """Compare all renderings of a run. Return the number of methods with a MAT over tasks."""
    report = make_report(run)
    metrics = report.sources[0].metrics
    written = renderings(report)
    if all(record.is_ok for record in run.records):
        check_comparison(run, metrics)
    return sum(check_method(report, written, metrics, method) for method in metrics.methods)


def check_method(
    report: Report, written: Mapping[str, str], metrics: RunMetrics, method: str
) -> bool:
    (at,) = metrics.temperatures
    label = metrics.info.method(method).label
    overall = metrics.overall[method, at]
    cost = metrics.cost(method, at)
    mat = text(overall.mat)
    whole = text(overall.pooled.mat)
    speedup = text(overall.speedup)
    decode = text(overall.decode_speedup)
    if mat is None or whole is None:
        return False
    if isinstance(cost.mat, Estimate):
        assert cost.mat.value == number(overall.pooled.mat)
    check_summaries(metrics, written, method)
    assert under("MAT", written["screen"], label) == [mat]
    _, _, step_costs = written["full"].partition("Cost of a step")
    costs = under("MAT", step_costs, label)[:1]
    assert costs in ([], [text(cost.mat) or "–"])
    is_timed = speedup and method != BASELINE
    pair = re.compile(rf" {speedup}x\S*( ±\S+)? {mat}( |$)" if is_timed else rf" {mat}( |$)")
    for form in ("markdown", "html", *(["latex"] if method != BASELINE else [])):
        # LaTeX has a method's options below the table
        shown = metrics.info.method(method).title if form == "latex" else label
        label_rows = rows(written[form], shown)
        assert any(map(pair.search, label_rows)), (form, label_rows)
    check_tiles(report, written["html"], method)
    check_live_view(report.sources[0].run.records, method, mat)
    overview = map(str.split, rows(written["markdown"], label))
    assert any(mat in row and (not decode or f"{decode}x" in row) for row in overview)
    if method != BASELINE and speedup:
        alt = {plot.name: plot.alt for plot in report.plots}
        by_mat = alt["speedup_by_mat"]
        assert f"{label}: {mat} tokens per step, {speedup} times as fast" in by_mat
        assert f"{label} {speedup}" in alt["speedup"]
        if isinstance(cost.bound, Estimate):
            assert f"bandwidth bound {cost.bound.value:.2f} at {whole} tokens" in by_mat
    is_several = len(metrics.tasks) > 1
    places = [row for row in run_rows(metrics, 0) if row.method == label]
    (place,) = [row for row in places if row.task == "Mean" or not is_several]
    assert (text(place.mat), text(place.speedup)) == (mat, speedup)
    return True


def check_summaries(metrics: RunMetrics, written: Mapping[str, str], method: str) -> None:
    """Check the MAT of a method in the summary frame, in CSV and in JSON."""
    (at,) = metrics.temperatures
    overall = metrics.overall[method, at]
    mat = text(overall.mat)
    whole = text(overall.pooled.mat)
    frame = summary_frame(metrics).set_index(["method", "task"])
    assert f"{frame.loc[(method, 'mean'), 'mat']:.2f}" == mat
    assert f"{frame.loc[(method, 'pooled'), 'mat_all_steps']:.2f}" == whole
    lines = [line for line in DictReader(StringIO(written["csv"])) if line["method"] == method]
    by_task = {line["task"]: line for line in lines}
    assert is_written(by_task["mean"]["mat"], overall.mat)
    assert is_written(by_task["pooled"]["mat_all_steps"], overall.pooled.mat)
    assert by_task["pooled"]["mat"] == ""
    assert by_task["mean"]["mat_all_steps"] == ""
    (document,) = json.loads(written["json"])["runs"]
    (totals,) = [entry for entry in document["overall"] if entry["method"] == method]
    assert is_written(totals["mat"]["value"], overall.mat)
    assert is_written(totals["pooled"]["mat_all_steps"]["value"], overall.pooled.mat)
    for cost_entry in document["costs"]:
        is_over_all_tasks = cost_entry["method"] == method and cost_entry["task"] is None
        if is_over_all_tasks and "value" in cost_entry["mat_all_steps"]:
            assert is_written(cost_entry["mat_all_steps"]["value"], overall.pooled.mat)


def check_live_view(records: Sequence[Record], method: str, mat: str) -> None:
    """Check that the live view ends with the table's MAT."""
    tally = Tally()
    for record in records:
        tally.add(record)
    live = tally.methods[method].mat
    is_whole = all(record.is_ok and not record.is_paused for record in records)
    assert live is None or not is_whole or f"{live:.2f}" == mat


def check_tiles(report: Report, page: str, method: str) -> None:
    """Check that the numbers at the top of the page belong to the methods that they name."""
    (block,) = report.blocks
    (result,) = [result for result in block.methods if result.method == method]
    mat, speedup = result.overall.mat, result.overall.speedup
    titles = {"Most tokens per step": mat}
    titles |= dict.fromkeys(("Highest speedup", "Closest to vanilla"), speedup)
    tiles = r'<div><dt>(.*?)</dt><dd>(.*?)x?</dd><dd class="small">(.*?)</dd>'
    for title, shown_number, words in re.findall(tiles, page):
        if title in titles and re.match(rf"{re.escape(result.label)}(,|$)", unescape(words)):
            assert shown_number == text(titles[title])


def check_comparison(run: Run, metrics: RunMetrics) -> None:
    """Compare a run with itself: all completions are shared."""
    (compared,) = json.loads(comparison_json([compare(run, run)]))["comparisons"]
    for cell in compared["cells"]:
        overall = metrics.overall[cell["method"], cell["temperature"]]
        if cell["task"] == MEAN and isinstance(overall.mat, Estimate) and cell["mat_subject"]:
            assert cell["mat_subject"] == pytest.approx(overall.mat.value)


@pytest.mark.parametrize(("count", "seed"), [(3, 1), pytest.param(25, 2, marks=pytest.mark.slow)])
def test_a_number_has_one_value_in_every_rendering(tmp_path: Path, count: int, seed: int) -> None:
    make(tmp_path, count, seed)
    num_checked = 0
    for seed_of_sizes, folder in enumerate(sorted(tmp_path.iterdir())):
        run = uneven(read_run(folder / "a"), seed_of_sizes)
        for load in run.loads:
            for temperature in run.at(load).header.spec.values.temperatures:
                num_checked += check_run(at_temperature(run.at(load), temperature))
    assert num_checked > count
