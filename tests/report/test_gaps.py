"""A missing number has its reason in its place, and means are over the same tasks.

Tables by category of prompt, and costs of steps with the memory limit.
"""

import csv
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

import pytest

from specbench.analysis import energy
from specbench.analysis.cells import Arithmetic, CellKey
from specbench.analysis.metrics import measure
from specbench.analysis.ranking import Ranking
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Interval, Missing
from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.log.run import Run
from specbench.report import sections, task_tables
from specbench.report.build import make_report
from specbench.report.export import csv as csv_format
from specbench.report.results import Report
from specbench.report.run_labels import run_labels
from specbench.report.step_costs import step_costs
from specbench.report.table import Table
from specbench.types import Record
from tests.analysis.run_factory import full_run, make_run
from tests.judge.changing import with_header, with_records
from tests.report.drawing import nine_methods, render, report_of, with_limits, with_phases

METHODS = ("vanilla", "pld", "sps")
FEW = ("gsm8k", "alpaca")


def cells(table: Table, method: str) -> list[str]:
    (row,) = [row for group in table.groups for row in group.rows if row.method == method]
    return [cell.text for cell in row.cells]


def reported(*runs: Run) -> Report:
    return make_report(runs, Bootstrap(50))


def test_a_run_that_lacks_tasks_of_another_has_no_mean_beside_its() -> None:
    every = full_run(METHODS)
    some = with_header(full_run(METHODS, FEW), id="some")
    report = reported(every, some)
    whole, partial = report.blocks[0].runs
    assert all(method.overall.partial is None for method in whole.methods)
    for method in partial.methods:
        assert method.tasks[-1].speedup == method.tasks[-1].mat == Missing("2 of 6 tasks")
        assert not (method.tasks[-1].is_best_speedup or method.tasks[-1].is_best_mat)
    alone = reported(some).blocks[0].runs[0]
    assert not any(isinstance(method.tasks[-1].speedup, Missing) for method in alone.methods)


def test_runs_of_different_tasks_have_the_speedups_of_their_tasks_on_the_screen() -> None:
    runs = [with_header(full_run(METHODS, (task,)), id=task) for task in FEW]
    report = reported(*runs)
    table = sections.screen(report, report.blocks[0])
    assert table.title.startswith("Speedup")
    shown = [row.cells for group in table.groups for row in group.rows if row.method == "pld"]
    assert [[cell.text[-1:] for cell in row[-2:]] for row in shown] == [["x", "–"], ["–", "x"]]


def test_a_missing_interval_has_its_reason_in_its_place() -> None:
    def kept(record: Record) -> Record | None:
        return record if record.key.task == FEW[0] or record.key.sample_id.endswith("/0") else None

    report = reported(with_records(full_run(METHODS, FEW), kept))
    report, block = report, report.blocks[0]
    assert cells(sections.overview(report, block), "pld")[0].endswith("x ±? (one task decides)")
    whole = task_tables.by_task(report, block, (task_tables.on_screen(report, block),))
    assert [text.partition(" ")[2][:1] for text in cells(whole, "pld")] == ["±", "±", "±"]
    assert cells(whole, "pld")[1].endswith("±?") and "±" not in cells(whole, "vanilla")[1]
    written = task_tables.by_task(report, block, (task_tables.PLUS_MINUS,))
    assert [text.partition(" ")[2][:1] for text in cells(written, "pld")] == ["±", "", ""]
    rows = [*csv.DictReader(StringIO(render(report, "csv")))]
    reasons = {(row["method"], row["task"]): row["interval_missing"] for row in rows}
    assert reasons["pld", FEW[1]] == reasons["pld", "mean"] == "too few samples"
    assert reasons["pld", FEW[0]] == reasons["vanilla", FEW[1]] == reasons["pld", "pooled"] == ""


OF_FILE = "spec__values__settings"
CPU = "environment__cpu__model"


@pytest.mark.parametrize(
    ("others", "labels"),
    [
        ([], ["tiny"]),
        ([{"spec__values__limit": 5}], ["tiny", "--limit 5"]),
        ([{OF_FILE: "/home/me/a.toml"}], ["--settings paper", "--settings a.toml"]),
        ([{"spec__values__seed": 1, "spec__values__top_p": 0.5}], ["--top-p 1", "--top-p 0.5"]),
        ([{"spec__values__methods": ["vanilla"]}], ["run first", "run second"]),
        ([{"model__label": "Other", CPU: "Small"}], ["tiny", "Other"]),
        ([{CPU: "Small"}], ["Example CPU 9000", "Small"]),
        (
            [{CPU: "Small"}, {CPU: "Small", "id": "third"}],
            ["Example CPU 9000", "Small, run second", "Small, run third"],
        ),
    ],
)
def test_runs_are_told_apart_by_what_differs(
    others: list[dict[str, object]], labels: list[str]
) -> None:
    first = with_header(full_run(METHODS, FEW), id="first", model__label="tiny")
    runs = [first, *(with_header(first, **{"id": "second", **changes}) for changes in others)]
    assert run_labels([run.header for run in runs]) == labels


@pytest.mark.parametrize(
    ("changes", "key", "has_bound"),
    [
        ({}, "memory", True),
        ({"target_bytes": 6_000_000}, "memory", True),
        ({"cache_bytes": 2_000_000}, "memory_in_cache", False),
    ],
)
def test_vanilla_is_a_slow_baseline_only_where_it_could_read_weights_faster(
    changes: dict[str, Any], key: str, has_bound: bool
) -> None:
    """Vanilla uses 40 % of the bandwidth, or 80 % if there are more weights to read."""
    values = {f"roofline__{name}": change for name, change in changes.items()}
    report = make_report(with_header(with_limits(), **values))
    keys = {note.key for note in report.notes}
    assert key in keys and ("slow_baseline" in keys) is (not changes)
    costs = step_costs(report, report.blocks[0])
    assert ("bound" in [column.short for column in costs.columns]) is has_bound


def test_the_csv_has_costs_per_task_and_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "TICK_S", 0.0)  # its answers are shorter than a tick
    metered = with_records(
        with_phases(),
        lambda record: replace(record, energy_j=2.0 * record.num_tokens, peak_memory_bytes=5),
    )
    rows = list(csv.DictReader(StringIO(render(metered, "csv"))))
    assert {row["task"] for row in rows if row["limit"]} == {"mt_bench", "gsm8k", "pooled"}
    for row in rows:
        if row["task"] == "mean":
            continue
        parts = [float(row[name]) for name in ("draft_s", "verify_s", "commit_s", "host_s")]
        assert sum(parts) == pytest.approx(0.99 * float(row["step_s"]), abs=1e-12)
        assert float(row["joules_per_token"]) > 0
        assert row["peak_memory_bytes"] == "5"


SPLIT = ("mt_bench", "gsm8k")
CATEGORIES = {
    "writing": [f"mt_bench/{i}" for i in range(4)],
    "math": [f"mt_bench/{i}" for i in range(4, 8)],
}


@cache
def with_categories(arithmetic: Arithmetic = "ours") -> Report:
    prompts = [{"task": "mt_bench", "categories": CATEGORIES}, {"task": "gsm8k"}]
    run = full_run(("vanilla", "pld", "eagle3"), SPLIT, prompts=prompts)
    return make_report(run, arithmetic=arithmetic)


@pytest.mark.parametrize("arithmetic", ["ours", "paper"])
def test_a_category_is_measured_as_a_task_over_its_samples(arithmetic: Arithmetic) -> None:
    report = with_categories(arithmetic)
    categories, run = report.sources[0].categories, report.sources[0].run
    assert categories is not None
    assert categories.tasks == ("mt_bench / writing", "mt_bench / math")
    records = [r for r in run.records if r.key.sample_id in CATEGORIES["math"]]
    alone = measure(make_run(records, run.header), None, arithmetic).cell("pld", 0.0, "mt_bench")
    cell = categories.cell("pld", 0.0, "mt_bench / math")
    assert (cell.speedup, cell.mat, cell.num_samples) == (alone.speedup, alone.mat, 4)


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_categories_are_rows_below_their_task(form: str) -> None:
    text = render(with_categories(), form)
    places = [text.index(word) for word in ("By category", "writing", "math")]
    assert places == sorted(places)
    assert "By category" not in render(report_of(nine_methods), form)


def test_a_category_whose_interval_alone_shows_a_difference_has_its_legend_above() -> None:
    report = with_categories()
    metrics = report.sources[0].categories
    assert metrics is not None
    assert all(
        "~" not in table.title
        for table in task_tables.category_tables(report.sources[0].info, metrics)
    )
    key = CellKey("pld", 0.0, "mt_bench / math")
    alone = replace(metrics.cells[key], speedup=Estimate(1.2, Interval(1.1, 1.3)))
    rankings = {(0.0, key.task): Ranking(against_baseline={"pld": 0.2})}
    metrics = replace(metrics, cells={**metrics.cells, key: alone}, task_rankings=rankings)
    (table,) = task_tables.category_tables(report.sources[0].info, metrics)
    assert "1.20x~" in [cell.text for row in table.rows for cell in row.cells]
    assert "~: significant on its own" in table.title


def test_the_spreadsheet_has_a_line_per_category_and_method() -> None:
    report = with_categories()
    rows = list(csv.DictReader(StringIO(csv_format.files(report)["categories.csv"])))
    row_of = {(row["method"], row["task"], row["category"]): row for row in rows}
    assert {key[1:] for key in row_of} == {("mt_bench", "writing"), ("mt_bench", "math")}
    metrics = report.sources[0].categories
    assert metrics is not None
    row, mat = row_of["pld", "mt_bench", "math"], metrics.cell("pld", 0.0, "mt_bench / math").mat
    assert float(row["mat"]) == mat.value  # type: ignore[union-attr]
    assert row["title"] == "PLD" and row["is_lossless"] == "True"
    assert "categories.csv" not in csv_format.files(report_of(nine_methods))


def test_prompts_of_a_single_category_have_no_category_table() -> None:
    mt_bench, gsm8k = load_prompt_sets(plan_tasks(["mt_bench", "gsm8k"], "bundled"), "bundled")
    described = mt_bench.describe().categories
    assert len(described) > 1
    assert sum(map(len, described.values())) == len(mt_bench.prompts)
    assert gsm8k.describe().categories == {}
