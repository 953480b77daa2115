"""Tables by category of prompt."""

import csv
from io import StringIO

import pytest

from specbench.analysis.metrics import measure
from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.log.run import Run
from specbench.report.build import make_report
from specbench.report.categories import measure_categories
from specbench.report.export import csv as csv_format
from tests.analysis.run_factory import full_run, make_run
from tests.report.drawing import nine_methods, render

TASKS = ("mt_bench", "gsm8k")
CATEGORIES = {
    "writing": [f"mt_bench/{i}" for i in range(4)],
    "math": [f"mt_bench/{i}" for i in range(4, 8)],
}


def with_categories() -> Run:
    prompts = [{"task": "mt_bench", "categories": CATEGORIES}, {"task": "gsm8k"}]
    return full_run(("vanilla", "pld", "eagle3"), TASKS, prompts=prompts)


def test_a_category_is_measured_as_a_task_over_its_samples() -> None:
    run = with_categories()
    found = measure_categories(run)
    assert found is not None
    assert found.tasks == ("mt_bench / writing", "mt_bench / math")
    own = [r for r in run.records if r.key.sample_id in CATEGORIES["math"]]
    alone = measure(make_run(own, run.header)).cell("pld", 0.0, "mt_bench")
    cell = found.cell("pld", 0.0, "mt_bench / math")
    assert (cell.speedup, cell.mat, cell.num_samples) == (alone.speedup, alone.mat, 4)


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_categories_are_rows_below_their_task(form: str) -> None:
    text = render(with_categories(), form)
    places = [text.index(word) for word in ("By category", "writing", "math")]
    assert places == sorted(places)
    assert "By category" not in render(nine_methods(), form)


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
    assert "categories.csv" not in csv_format.files(make_report(nine_methods()))


def test_prompts_of_a_single_category_have_no_category_table() -> None:
    mt_bench, gsm8k = load_prompt_sets(plan_tasks(["mt_bench", "gsm8k"], "bundled"), "bundled")
    described = mt_bench.describe().categories
    assert len(described) > 1
    assert sum(map(len, described.values())) == len(mt_bench.prompts)
    assert gsm8k.describe().categories == {}
