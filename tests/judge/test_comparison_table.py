"""The renderings of a comparison: all numbers, and sentences that the intervals support."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from specbench.judge.comparison import Comparison, compare, compare_runs
from specbench.judge.comparison_formats import (
    FORMATS,
    print_comparison,
    render_comparison,
    write_comparison,
)
from specbench.judge.comparison_table import NOT_COMPARABLE, build_comparison
from specbench.log.run import Run
from tests.analysis.run_factory import TASKS, full_run, make_run
from tests.judge.changing import at_loads, several, slower, with_header

RUN = full_run(id="old")
EVERYBODY = ("vanilla", "pld", "sps", "lookahead")


def new(factors: dict[str, float], **changes: object) -> Run:
    return with_header(slower(RUN, factors), id="new", **changes)


def shown(comparisons: list[Comparison], width: int = 120) -> str:
    console = Console(width=width, record=True, file=StringIO(), highlight=False)
    print_comparison(comparisons, console)
    return console.export_text()


def sentences(comparison: Comparison) -> str:
    return build_comparison([comparison]).blocks[0].sentence


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_every_number_is_on_the_terminal_whatever_its_width(width: int) -> None:
    compared = compare(RUN, new({"pld": 1.25}))
    text = shown([compared], width)
    assert max(map(len, text.splitlines())) <= width
    for heading in ("speedup", "MAT", "tokens/s", "B / A", "Mean of the tasks", *TASKS.values()):
        assert heading in text
    assert text.count("0.80") >= 2 * 7  # of PLD, in speed and speedup, on six tasks and the mean
    assert "…" not in text


def test_a_slower_method_is_named_with_its_ratio() -> None:
    text = sentences(compare(several(RUN), several(new({"pld": 1.25}), seed=1)))
    assert text.startswith("Vanilla is 1.00 times [0.99, 1.0")
    assert "Speedup over vanilla is lower in B for PLD (0.80 times [0." in text
    assert text.endswith("the others do not differ significantly. MAT is the same in both.")


def test_one_run_a_side_gives_no_verdict_and_the_spread_of_passes() -> None:
    passes = several(RUN, 3, sd=0.02)  # the passes of one run
    one = make_run(passes.records, passes.header)
    text = sentences(compare(one, slower(one, {"pld": 1.25})))
    assert "lower in B" not in text
    assert "Differences in speed are not judged: one run a side" in text
    assert "Passes of a run differ by +/- " in text
    assert "`specbench run --runs 5`" in text


def test_equal_runs_that_differ_as_the_machine_does_are_not_told_apart() -> None:
    compared = compare(several(RUN, sd=0.05), several(new({}), sd=0.05, seed=1))
    assert not any(map(compared.is_claimed, compared.p_values))


def test_a_faster_machine_changes_no_speedup() -> None:
    text = sentences(compare(RUN, new(dict.fromkeys(EVERYBODY, 0.5))))
    assert text.startswith("Vanilla is 2.00 times as fast in B as in A. Speedup over vanilla is")
    assert text.count("is the same in both.") == 2


def test_one_sample_a_task_shows_no_change() -> None:
    one = full_run(num_samples=1)
    assert "too few samples to see" in sentences(compare(one, slower(one, {"pld": 2.0})))


def test_without_vanilla_tokens_per_second_are_compared() -> None:
    run = full_run(methods=("pld", "sps"))
    text = sentences(compare(several(run), several(slower(run, {"pld": 2.0}), seed=1)))
    assert text.startswith("Tokens per second is lower in B for PLD (0.50 times")


def test_a_cross_comparison_is_one_sentence_about_two_machines() -> None:
    small = new({"pld": 1.0}, environment__cpu__model="Small CPU")
    crossed = compare(RUN, small, crossed=("pld", "vanilla"))
    text = shown([crossed])
    assert "PLD on the Small CPU is 1." in text
    assert "times as fast as Vanilla on the Example CPU 9000, by the mean of the tasks." in text
    assert " ± 0.0" in sentences(crossed)
    assert "A / B" in text
    assert text.index("A  new") < text.index("B  old")
    assert "speedup" not in text


def test_three_runs_are_two_tables_against_the_first() -> None:
    runs = [RUN, new({"pld": 1.1}), with_header(RUN, id="third")]
    text = shown(compare_runs(runs))
    assert "B against A, Temperature=0" in text
    assert "C against A, Temperature=0" in text
    assert text.index("A  old") < text.index("B  new") < text.index("C  third")


def test_loads_of_one_run_have_one_letter_and_are_told_apart() -> None:
    served = at_loads(RUN, {1: {}, 8: {}})
    text = shown(compare_runs([served, with_header(served, id="new")]))
    assert "B against A, Temperature=0, 1 request at a time" in text
    assert "B against A, Temperature=0, 8 requests at once" in text
    assert "C  " not in text


def test_what_may_explain_a_difference_is_a_warning() -> None:
    other = new(
        {},
        environment__torch__version="2.14",
        environment__git__is_dirty=True,
        status="interrupted",
        warnings=["The machine was busy."],
    )
    text = shown([compare(RUN, other)], 200)
    assert "torch: 2.13.0 in A, 2.14 in B" in text
    assert "B: its status is interrupted" in text
    assert "B: it was made by a modified checkout" in text
    assert "B: The machine was busy." in text


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_not_comparable_is_marked_in_every_form(form: str) -> None:
    forced = compare(RUN, new({}, model__dtype="float16"), is_forced=True)
    text = shown([forced], 200) if form == "table" else render_comparison([forced], form)
    if form == "csv":
        assert {row["is_comparable"] for row in csv.DictReader(StringIO(text))} == {"False"}
    elif form == "json":
        (one,) = json.loads(text)["comparisons"]
        assert one["is_comparable"] is False
        assert one["differences"] == [
            {"what": "dtype", "reference": "float32", "subject": "float16"}
        ]
    else:
        assert NOT_COMPARABLE in text.splitlines()[0]
        assert "Different work: dtype: float32 in A, float16 in B." in text


def test_csv_and_json_hold_every_cell_with_its_interval() -> None:
    compared = [compare(RUN, new({"pld": 1.25}))]
    rows = list(csv.DictReader(StringIO(render_comparison(compared, "csv"))))
    parts = ("reference", "subject", "ratio", "ratio_low", "ratio_high", "missing", "p_value")
    assert [*rows[0]][-7:] == [f"tokens_per_s_{part}" for part in parts]
    assert len(rows) == 4 * (6 + 2)
    assert {row["task"] for row in rows} == {*TASKS, "mean", "pooled"}
    (row,) = (r for r in rows if (r["method"], r["task"]) == ("pld", "gsm8k"))
    assert float(row["tokens_per_s_ratio"]) == pytest.approx(0.8)
    assert float(row["tokens_per_s_ratio_low"]) <= 0.8 <= float(row["tokens_per_s_ratio_high"])
    (one,) = json.loads(render_comparison(compared, "json"))["comparisons"]
    assert len(one["cells"]) == len(rows)
    assert one["cells"][0]["speedup_ratio"] == pytest.approx(1.0)


def test_all_forms_are_written_into_a_folder(tmp_path: Path) -> None:
    paths = write_comparison([compare(RUN, RUN)], tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["comparison.md", "comparison.csv", "comparison.json"]
    assert all(path.stat().st_size for path in paths)
