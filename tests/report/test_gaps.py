"""A missing number is replaced by the reason, and means are over the same tasks.

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
from specbench.report.table import Row, Table
from specbench.types import Record
from tests.analysis.run_factory import full_run, make_run, number
from tests.judge.changing import with_header, with_records
from tests.report.drawing import nine_methods, render, report_of, with_limits, with_phases

METHODS = ("vanilla", "pld", "sps")
FEW = ("gsm8k", "alpaca")


def rows_of(table: Table, method: str) -> list[Row]:
    return [row for row in table.rows if row.method == method]


def cells(table: Table, method: str) -> list[str]:
    """The texts of the only row of a method."""
    (row,) = rows_of(table, method)
    return [cell.text for cell in row.cells]


def signs(texts: list[str]) -> list[str]:
    """The sign after the number in each text, such as "±", or ""."""
    return [text.partition(" ")[2][:1] for text in texts]


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def reported(*runs: Run) -> Report:
    return make_report(runs, Bootstrap(50))


def test_a_run_without_some_tasks_has_no_mean() -> None:
    every = full_run(METHODS)
    some = with_header(full_run(METHODS, FEW), id="some")
    whole, partial = reported(every, some).blocks[0].runs
    assert all(method.overall.partial is None for method in whole.methods)
    for method in partial.methods:
        mean = method.tasks[-1]
        assert mean.speedup == mean.mat == Missing("2 of 6 tasks")
        assert not mean.is_best_speedup
        assert not mean.is_best_mat
    alone = reported(some).blocks[0].runs[0]
    for method in alone.methods:
        mean = method.tasks[-1]
        assert not isinstance(mean.speedup, Missing)


def test_runs_of_different_tasks_have_speedups_per_task_on_the_screen() -> None:
    runs = [with_header(full_run(METHODS, (task,)), id=task) for task in FEW]
    report = reported(*runs)
    table = sections.screen(report, report.blocks[0])
    assert table.title.startswith("Speedup")
    of_first_run, of_second_run = [
        [cell.text[-1:] for cell in row.cells[-2:]] for row in rows_of(table, "pld")
    ]
    assert of_first_run == ["x", "–"]
    assert of_second_run == ["–", "x"]


def test_a_missing_interval_is_replaced_by_its_reason() -> None:
    whole_task, cut_task = FEW

    def kept(record: Record) -> Record | None:
        """A run with all samples of the first task, and one of the second."""
        is_kept = record.key.task == whole_task or record.key.sample_id.endswith("/0")
        return record if is_kept else None

    report = reported(with_records(full_run(METHODS, FEW), kept))
    block = report.blocks[0]
    mean_speedup = cells(sections.overview(report, block), "pld")[0]
    assert mean_speedup.endswith("x ±? (one task dominates)")

    screen = task_tables.by_task(report, block, (task_tables.on_screen(report, block),))
    assert signs(cells(screen, "pld")) == ["±", "±", "±"]
    assert cells(screen, "pld")[1].endswith("±?")
    assert "±" not in cells(screen, "vanilla")[1]

    written = task_tables.by_task(report, block, (task_tables.PLUS_MINUS,))
    assert signs(cells(written, "pld")) == ["±", "", ""]

    rows = csv_rows(render(report, "csv"))
    reasons = {(row["method"], row["task"]): row["interval_missing"] for row in rows}
    assert reasons["pld", cut_task] == reasons["pld", "mean"] == "too few samples"
    assert reasons["pld", whole_task] == ""
    assert reasons["vanilla", cut_task] == ""
    assert reasons["pld", "pooled"] == ""


OF_FILE = "spec__values__settings"
CPU = "environment__cpu__model"


@pytest.mark.parametrize(
    ("others", "labels"),
    [
        ([], ["tiny"]),
        ([{"spec__values__limit": 5}], ["tiny", "--limit 5"]),
        ([{OF_FILE: "/home/me/a.toml"}], ["--settings paper", "--settings a.toml"]),
        ([{"spec__values__seed": 1, "spec__values__top_p": 0.5}], ["--top-p 1", "--top-p 0.5"]),
        ([{"spec__values__engine_args": ["-m", "a/b"]}], ["tiny", "--engine-args -m a/b"]),
        ([{"spec__values__methods": ["vanilla"]}], ["run first", "run second"]),
        ([{"model__label": "Other", CPU: "Small"}], ["tiny", "Other"]),
        ([{CPU: "Small"}], ["Example CPU 9000", "Small"]),
        (
            [{CPU: "Small"}, {CPU: "Small", "id": "third"}],
            ["Example CPU 9000", "Small, run second", "Small, run third"],
        ),
    ],
)
def test_labels_of_runs_name_their_differences(
    others: list[dict[str, object]], labels: list[str]
) -> None:
    first = with_header(full_run(METHODS, FEW), id="first", model__label="tiny")
    runs = [first]
    for changes in others:
        runs.append(with_header(first, **{"id": "second", **changes}))
    assert run_labels([run.header for run in runs], [""] * len(runs)) == labels


@pytest.mark.parametrize(
    ("changes", "key", "has_bound"),
    [
        ({}, "memory", True),
        ({"target_bytes": 6_000_000}, "memory", True),
        ({"cache_bytes": 2_000_000}, "memory_in_cache", False),
    ],
)
def test_vanilla_is_a_slow_baseline_only_if_it_could_read_weights_faster(
    changes: dict[str, Any], key: str, has_bound: bool
) -> None:
    """Vanilla uses 40 % of the bandwidth, or 80 % if it has more weights to read."""
    values = {f"roofline__{name}": change for name, change in changes.items()}
    report = make_report(with_header(with_limits(), **values))
    keys = {note.key for note in report.notes}
    assert key in keys
    is_slow = "slow_baseline" in keys
    assert is_slow is (not changes)
    costs = step_costs(report, report.blocks[0])
    headings = [column.short for column in costs.columns]
    assert ("bound" in headings) is has_bound


def test_the_csv_has_costs_per_task_and_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "TICK_S", 0.0)  # answers are shorter than a tick
    metered = with_records(
        with_phases(),
        lambda record: replace(record, energy_j=2.0 * record.num_tokens, peak_memory_bytes=5),
    )
    rows = csv_rows(render(metered, "csv"))
    tasks_with_bound = {row["task"] for row in rows if row["limit"]}
    assert tasks_with_bound == {"mt_bench", "gsm8k", "pooled"}
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
def test_a_category_is_measured_like_a_task(arithmetic: Arithmetic) -> None:
    (source,) = with_categories(arithmetic).sources
    categories = source.categories
    assert categories is not None
    assert categories.tasks == ("mt_bench / writing", "mt_bench / math")
    run = source.run
    records = [record for record in run.records if record.key.sample_id in CATEGORIES["math"]]
    alone = measure(make_run(records, run.header), None, arithmetic).cell("pld", 0.0, "mt_bench")
    cell = categories.cell("pld", 0.0, "mt_bench / math")
    assert cell.speedup == alone.speedup
    assert cell.mat == alone.mat
    assert cell.num_samples == 4


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_categories_are_rows_below_their_task(form: str) -> None:
    text = render(with_categories(), form)
    places = [text.index(word) for word in ("By category", "writing", "math")]
    assert places == sorted(places)
    assert "By category" not in render(report_of(nine_methods), form)


def test_a_difference_that_only_an_interval_shows_has_a_legend() -> None:
    report = with_categories()
    (source,) = report.sources
    metrics = source.categories
    assert metrics is not None
    for table in task_tables.category_tables(report, source, metrics):
        assert "~" not in table.title
    key = CellKey("pld", 0.0, "mt_bench / math")
    alone = replace(metrics.cells[key], speedup=Estimate(1.2, Interval(1.1, 1.3)))
    rankings = {(0.0, key.task): Ranking(against_baseline={"pld": 0.2})}
    metrics = replace(metrics, cells={**metrics.cells, key: alone}, task_rankings=rankings)
    (table,) = task_tables.category_tables(report, source, metrics)
    texts = [cell.text for row in table.rows for cell in row.cells]
    assert "1.20x~" in texts
    assert "~: significant on its own" in table.title


def test_the_spreadsheet_has_a_line_per_category_and_method() -> None:
    report = with_categories()
    rows = csv_rows(csv_format.files(report)["categories.csv"])
    row_of = {(row["method"], row["task"], row["category"]): row for row in rows}
    categories = {(task, category) for _, task, category in row_of}
    assert categories == {("mt_bench", "writing"), ("mt_bench", "math")}
    metrics = report.sources[0].categories
    assert metrics is not None
    mat = metrics.cell("pld", 0.0, "mt_bench / math").mat
    row = row_of["pld", "mt_bench", "math"]
    assert float(row["mat"]) == number(mat)
    assert row["title"] == "PLD"
    assert row["is_lossless"] == "True"
    assert "categories.csv" not in csv_format.files(report_of(nine_methods))


def test_prompts_of_a_single_category_have_no_category_table() -> None:
    mt_bench, gsm8k = load_prompt_sets(plan_tasks(["mt_bench", "gsm8k"], "bundled"), "bundled")
    sample_ids = mt_bench.describe().categories
    assert len(sample_ids) > 1
    num_in_categories = sum(len(ids_of_category) for ids_of_category in sample_ids.values())
    assert num_in_categories == len(mt_bench.prompts)
    assert gsm8k.describe().categories == {}
