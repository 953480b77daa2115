"""Reports on a terminal: golden files, and properties that hold at any width."""

import re
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from itertools import product

import pytest
from rich.console import Console

from specbench.report.build import make_report
from specbench.report.export.terminal import print_report
from specbench.report.layout import fold_label
from specbench.report.notes import short_notes
from tests.analysis.run_factory import TASKS, full_run, header, make_run, record
from tests.judge.changing import with_header
from tests.report.drawing import (
    EVERY_RUN,
    GOLDEN,
    GOLDENS,
    Make,
    drawn,
    nine_methods,
    report_of,
)
from tests.support.printing import printed


@pytest.mark.parametrize("name", GOLDENS)
def test_a_report_is_written_as_recorded(name: str) -> None:
    assert GOLDENS[name]() == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_default_run_with_its_warnings_fits_one_screen() -> None:
    """Three more lines name the files."""
    warnings = [
        f"{what} was off. " + "It is said why, and what to do about it. " * 6
        for what in ("The clock of the processor of this machine", "Another thing", "More")
    ]
    text = drawn(with_header(nine_methods(), warnings=warnings), 80, is_full=False)
    assert text.count("\n") + 3 < 40
    assert text.count("was off") == 3 and "what to do" in text


def test_labels_and_their_options_are_never_cut() -> None:
    methods = ("vanilla", "eagle2:total_tokens=12,depth=3", "pld:num_tokens=4")
    report = make_report(full_run(methods, tuple(TASKS), num_samples=4))
    for width in (80, 120):
        assert "\nEAGLE-2 (total_tokens=12, depth=3)  " in drawn(report, width, is_full=False)
        lines = drawn(report, width).splitlines()
        label = "EAGLE-2 (total_tokens=12, depth=3)"
        assert all(label in line for line in lines if "depth=3" in line)


def test_files_have_no_wrapped_lines() -> None:
    console = Console(width=60, file=StringIO(), color_system=None)
    report = report_of(nine_methods)
    print_report(report, console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert report.blocks[0].runs[0].verdict in text
    assert all(note.text in text for note in short_notes(report.notes))


def test_methods_without_a_speedup_are_sorted_by_tokens_per_second() -> None:
    records = [record("pld", decode_s=2.0), record("sps", decode_s=1.0)]
    run = make_run(records, header(["pld", "sps"], ("gsm8k",)))
    text = drawn(make_report(run, sort="speedup"), 80, is_full=False)
    shown = re.findall(r"^(Method|PLD|SpS) +(\S+)", text, re.MULTILINE)
    assert shown == [("Method", "tok/s"), ("SpS", "4"), ("PLD", "2")]
    assert " on GSM8K, n=1, Temperature=0" in text


@pytest.mark.parametrize(
    ("device", "method", "advice"),
    [
        ("cuda:0", "lookahead", ""),
        ("cpu", "pld", "in docs/metrics.md."),
        (
            "cpu",
            "lookahead",
            " (its steps emit 1.50 tokens and take 3.00 times as long as vanilla's).",
        ),
    ],
)
def test_slower_methods_on_a_cpu_are_explained(device: str, method: str, advice: str) -> None:
    records = [record(), record(method, decode_s=2.0, accept_lengths=(2, 1))]
    run = make_run(records, header(["vanilla", method], ("gsm8k",)))
    notes = make_report(with_header(run, spec__values__device=device)).notes
    texts = [note.text for note in short_notes(notes) if note.key == "cpu_trees"]
    assert [text.endswith(advice) for text in texts] == [True] * bool(advice)


@pytest.mark.parametrize("make", EVERY_RUN)
def test_no_line_is_wider_than_the_terminal_and_nothing_is_nan(make: Make) -> None:
    report = report_of(make)
    for width, is_full in product((40, 60, 80, 100, 120, 200), (True, False)):
        text = drawn(report, width, is_full=is_full)
        assert max(map(len, text.splitlines())) <= width
        assert "nan" not in text.lower()
        assert "…" not in text


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({"pld": 1.0, "sps": 0.9999}, ["pld", "sps"]),  # equal as shown
        ({"pld": 3.0}, ["vanilla"]),
        ({}, []),
    ],
)
def test_every_cell_with_the_best_value_is_marked(
    seconds: dict[str, float], best: list[str]
) -> None:
    """The baseline is best if every method is slower, but not if there is no other method."""
    every = {"vanilla": 2.0, **seconds}
    records = [record(method, decode_s=seconds) for method, seconds in every.items()]
    run = make_run(records, header(["vanilla", "pld", "sps"], ("gsm8k",)))
    rows = make_report(run).blocks[0].methods
    assert [row.method for row in rows if row.tasks[0].is_best_speedup] == best


def test_a_warning_about_a_head_comes_before_those_of_a_busy_machine() -> None:
    stored = ("The machine was busy: times are noisy.", "pld: Its config names no target layers.")
    run = full_run(("vanilla", "pld"), ("gsm8k",), warnings=stored)
    texts = [note.text for note in make_report(run).notes if note.is_warning]
    assert texts[0] == stored[1] and texts[-1] == stored[0] and texts.count(stored[1]) == 1


def test_names_of_any_script_and_markup_are_shown_as_they_are() -> None:
    run = make_run(
        [record(decode_s=2.0), record("pld", "ß/🙂")],
        header(["vanilla", "pld"], ("gsm8k",), columns={"gsm8k": "数学 [bold]"}),
    )
    report = make_report(with_header(run, methods__pld__title="[red]方法[/red]"))
    assert all(word in drawn(report, 80) for word in ("[red]方法[/red]", "数学", "[bold]"))
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="ascii", errors="replace")  # as commands set it
    print_report(report_of(nine_methods), Console(file=stream, width=100))
    print_report(report, Console(file=stream, width=100))
    stream.flush()
    assert b"?? " in raw.getvalue()


def test_labels_in_wide_characters_fit_into_their_columns() -> None:
    """Each of these characters takes two columns."""
    lines = ["投機的復号", "法", "(長い設定", "の名前)"]
    assert fold_label("投機的復号法 (長い設定の名前)", 10) == lines


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_drops_tasks_before_mat(width: int) -> None:
    methods = ("vanilla", "pld", "sps", "eagle2:total_tokens=12,depth=4")
    report = report_of(partial(full_run, methods))
    lines = printed(partial(print_report, report), width).splitlines()
    (title,) = [line for line in lines if line.startswith("Speedup over vanilla")]
    heading = "\n".join(lines).partition(title)[2].partition("───")[0]
    (num_hidden,) = re.findall(r"\((\d) more tasks?: --full\)", title)
    assert "MAT" in heading
    assert heading.count("n=") == len(TASKS) - int(num_hidden)
