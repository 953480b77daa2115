"""A number that is missing has its reason in its place, and means are over the same tasks.

Tables by category of prompt.
"""

import csv
from dataclasses import replace
from io import StringIO

import pytest

from specbench.analysis.cells import Arithmetic, CellKey
from specbench.analysis.metrics import measure
from specbench.analysis.ranking import Ranking
from specbench.analysis.stats.bootstrap import Bootstrap, Estimate, Interval, Missing
from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.log.run import Run
from specbench.report import sections
from specbench.report.build import make_report
from specbench.report.export import csv as csv_format
from specbench.report.report import Report, category_tables, measure_categories
from specbench.report.table import Table
from specbench.types import Record
from tests.analysis.run_factory import full_run, make_run
from tests.judge.changing import with_header, with_records
from tests.report.drawing import nine_methods, render, report_of

METHODS = ("vanilla", "pld", "sps")
FEW = ("gsm8k", "alpaca")


def cells(table: Table, method: str) -> list[str]:
    (row,) = [row for group in table.groups for row in group.rows if row.method == method]
    return [cell.text for cell in row.cells]


def without(run: Run, method: str) -> Run:
    """The run in which a method has two tasks of six."""
    return with_records(
        run, lambda one: None if one.key.method == method and one.key.task not in FEW else one
    )


def reported(*runs: Run) -> Report:
    return make_report(runs, Bootstrap(50))


def test_a_method_that_lacks_tasks_has_no_number_over_all_of_them() -> None:
    run = without(full_run(METHODS), "sps")
    metrics = measure(run, Bootstrap(50))
    overall = metrics.overall["sps", 0.0]
    assert overall.speedup == overall.mat == overall.partial == Missing("2 of 6 tasks")
    assert metrics.overall["pld", 0.0].partial is None
    assert metrics.rankings[0.0].methods == ("pld",)
    results = reported(run).results
    overview = sections.overview(results, results.blocks[0])
    assert cells(overview, "sps")[:4] == ["–"] * 4 and "–" not in cells(overview, "pld")
    assert cells(sections.screen(results, results.blocks[0]), "sps")[-2:] == ["–"] * 2


def test_a_run_that_lacks_tasks_of_another_has_no_mean_beside_its() -> None:
    every = full_run(METHODS)
    some = with_header(full_run(METHODS, FEW), id="some")
    results = reported(every, some).results
    whole, partial = results.blocks[0].runs
    assert all(method.overall.partial is None for method in whole.methods)
    for method in partial.methods:
        assert method.tasks[-1].speedup == method.tasks[-1].mat == Missing("2 of 6 tasks")
        assert not (method.tasks[-1].is_best_speedup or method.tasks[-1].is_best_mat)
    alone = reported(some).results.blocks[0].runs[0]
    assert not any(isinstance(method.tasks[-1].speedup, Missing) for method in alone.methods)


def test_runs_of_different_tasks_have_the_speedups_of_their_tasks_on_the_screen() -> None:
    runs = [with_header(full_run(METHODS, (task,)), id=task) for task in FEW]
    results = reported(*runs).results
    table = sections.screen(results, results.blocks[0])
    assert table.title.startswith("Speedup")
    shown = [row.cells for group in table.groups for row in group.rows if row.method == "pld"]
    assert [[cell.text[-1:] for cell in row[-2:]] for row in shown] == [["x", "–"], ["–", "x"]]


def test_a_missing_interval_has_its_reason_in_its_place() -> None:
    def kept(one: Record) -> Record | None:
        return one if one.key.task == FEW[0] or one.key.sample_id.endswith("/0") else None

    report = reported(with_records(full_run(METHODS, FEW), kept))
    results, block = report.results, report.results.blocks[0]
    assert "too few" in cells(sections.intervals(results, block), "pld")
    assert cells(sections.overview(results, block), "pld")[0].endswith("x [too few samples]")
    whole = sections.by_task(results, block, (sections.PLUS_MINUS,))
    assert [text.partition(" ")[2][:1] for text in cells(whole, "pld")] == ["±", "±", "±"]
    assert cells(whole, "pld")[1].endswith("±?") and "±" not in cells(whole, "vanilla")[1]
    rows = [*csv.DictReader(StringIO(render(report, "csv")))]
    found = {(row["method"], row["task"]): row["interval_missing"] for row in rows}
    assert found["pld", FEW[1]] == found["pld", "mean"] == "too few samples"
    assert found["pld", FEW[0]] == found["vanilla", FEW[1]] == found["pld", "pooled"] == ""


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({"limit": 5}, ["tiny", "--limit 5"]),
        ({"max_new_tokens": 7}, ["--max-new-tokens 128", "--max-new-tokens 7"]),
        ({"seed": 1, "top_p": 0.5}, ["--top-p 1", "--top-p 0.5"]),
        ({"methods": ["vanilla"]}, ["run first", "run second"]),
    ],
)
def test_groups_are_titled_by_what_differs(changes: dict[str, object], labels: list[str]) -> None:
    first = with_header(full_run(METHODS, FEW), id="first", model__label="tiny")
    values = {f"spec__values__{name}": value for name, value in changes.items()}
    second = with_header(first, id="second", **values)
    assert [one.label for one in reported(first, second).sources] == labels


SPLIT = ("mt_bench", "gsm8k")
CATEGORIES = {
    "writing": [f"mt_bench/{i}" for i in range(4)],
    "math": [f"mt_bench/{i}" for i in range(4, 8)],
}


def with_categories() -> Run:
    prompts = [{"task": "mt_bench", "categories": CATEGORIES}, {"task": "gsm8k"}]
    return full_run(("vanilla", "pld", "eagle3"), SPLIT, prompts=prompts)


@pytest.mark.parametrize("arithmetic", ["ours", "paper"])
def test_a_category_is_measured_as_a_task_over_its_samples(arithmetic: Arithmetic) -> None:
    run = with_categories()
    (found,) = make_report(run, arithmetic=arithmetic).category_metrics
    assert found is not None
    assert found.tasks == ("mt_bench / writing", "mt_bench / math")
    own = [r for r in run.records if r.key.sample_id in CATEGORIES["math"]]
    alone = measure(make_run(own, run.header), None, arithmetic).cell("pld", 0.0, "mt_bench")
    cell = found.cell("pld", 0.0, "mt_bench / math")
    assert (cell.speedup, cell.mat, cell.num_samples) == (alone.speedup, alone.mat, 4)


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_categories_are_rows_below_their_task(form: str) -> None:
    text = render(with_categories(), form)
    places = [text.index(word) for word in ("By category", "writing", "math")]
    assert places == sorted(places)
    assert "By category" not in render(report_of(nine_methods), form)


def test_a_category_whose_interval_alone_shows_a_difference_has_its_legend_above() -> None:
    run = with_categories()
    metrics = measure_categories(run)
    assert metrics is not None and "~" not in category_tables(run.header, metrics)[0].title
    key = CellKey("pld", 0.0, "mt_bench / math")
    alone = replace(metrics.cells[key], speedup=Estimate(1.2, Interval(1.1, 1.3)))
    rankings = {(0.0, key.task): Ranking(against_baseline={"pld": 0.2})}
    metrics = replace(metrics, cells={**metrics.cells, key: alone}, task_rankings=rankings)
    (table,) = category_tables(run.header, metrics)
    assert "1.20x~" in [cell.text for row in table.rows for cell in row.cells]
    assert "~: alone a difference" in table.title


def test_the_spreadsheet_has_a_line_per_category_and_method() -> None:
    report = make_report(with_categories())
    rows = list(csv.DictReader(StringIO(csv_format.files(report)["categories.csv"])))
    assert {(row["task"], row["category"]) for row in rows} == {
        ("mt_bench", "writing"), ("mt_bench", "math"),
    }  # fmt: skip
    found = measure_categories(with_categories())
    assert found is not None
    (row,) = [row for row in rows if (row["method"], row["category"]) == ("pld", "math")]
    assert float(row["mat"]) == found.cell("pld", 0.0, "mt_bench / math").mat.value  # type: ignore[union-attr]
    assert row["title"] == "PLD" and row["is_lossless"] == "True"
    assert "categories.csv" not in csv_format.files(report_of(nine_methods))


def test_prompts_of_a_single_category_have_no_category_table() -> None:
    mt_bench, gsm8k = load_prompt_sets(plan_tasks(["mt_bench", "gsm8k"], "bundled"), "bundled")
    described = mt_bench.describe().categories
    assert len(described) > 1
    assert sum(map(len, described.values())) == len(mt_bench.prompts)
    assert gsm8k.describe().categories == {}
