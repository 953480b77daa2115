"""Reports on a terminal: golden files, and properties that hold at any width."""

import re
from io import BytesIO, StringIO, TextIOWrapper
from itertools import product

import pytest
from msgspec import structs
from rich.console import Console

from specbench.analysis.metrics import measure
from specbench.report.build import make_report
from specbench.report.export.terminal import print_report
from specbench.report.notes import short_notes
from specbench.report.results import build_results, run_labels
from tests.analysis.run_factory import TASKS, full_run, header, make_run, record
from tests.judge.changing import with_header
from tests.report.drawing import (
    EVERY_RUN,
    GOLDEN,
    GOLDENS,
    drawn,
    nine_methods,
    report_of,
    two_machines,
    two_models,
    two_temperatures,
)


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


def test_the_screen_has_the_mean_first_and_says_how_many_tasks_it_leaves_out() -> None:
    text = drawn(report_of(nine_methods), 80, is_full=False)
    row = next(line for line in text.splitlines() if line.startswith("EAGLE-3 "))
    assert re.match(r"EAGLE-3 +2\.87x ±0\.09 +1098 +3\.57 +3\.51x", row)
    assert "Temperature=0 (1 more task: --full)" in text
    assert "more task" not in drawn(report_of(nine_methods), 160, is_full=False)


def test_a_label_is_whole_on_the_screen_and_its_options_are_whole_in_every_table() -> None:
    methods = ("vanilla", "eagle2:total_tokens=12,depth=3", "pld:num_tokens=4")
    run = full_run(methods, tuple(TASKS), num_samples=4)
    for width in (80, 120):
        assert "\nEAGLE-2 (total_tokens=12, depth=3)  " in drawn(run, width, is_full=False)
        lines = drawn(run, width).splitlines()
        label = "EAGLE-2 (total_tokens=12, depth=3)"
        assert all(label in line for line in lines if "depth=3" in line)


def test_nothing_is_wrapped_in_a_file() -> None:
    console = Console(width=60, file=StringIO(), color_system=None)
    report = report_of(nine_methods)
    print_report(report, console)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert report.results.blocks[0].runs[0].verdict in text
    assert all(note.text in text for note in short_notes(report.results.notes))


def test_methods_without_a_speedup_have_tokens_per_second_the_fastest_first() -> None:
    records = [record("pld", decode_s=2.0), record("sps", decode_s=1.0)]
    run = make_run(records, header(["pld", "sps"], ("gsm8k",)))
    lines = drawn(make_report(run, sort="speedup"), 80, is_full=False).splitlines()
    shown = [line.split()[:2] for line in lines if re.match("PLD|SpS|Method", line)]
    assert [words[0] for words in shown] == ["Method", "SpS", "PLD"] and shown[0][1] == "tok/s"
    assert float(shown[1][1]) > float(shown[2][1])
    assert " on GSM8K, n=1, Temperature=0" in "\n".join(lines)
    assert not any(line.startswith(("Speedup ", "Colours")) for line in lines)


@pytest.mark.parametrize(
    ("source", "available", "told"),
    [
        ("bundled", 9, "(1). Raise --limit. More prompts: --prompts paper."),
        ("bundled", 1, "(1). More prompts: --prompts paper."),
        ("paper", 80, "(1). Raise --limit."),
        ("paper", 1, "(1)."),
    ],
)
def test_the_advice_for_too_few_samples_fits_the_prompts(
    source: str, available: int, told: str
) -> None:
    prompts = [{"task": "gsm8k", "num_available": available, "num_prompts": 1}]
    described = header(["vanilla", "pld"], ("gsm8k",), prompts=prompts)
    described["spec"]["values"]["prompts"] = source
    run = make_run([record(), record("pld")], described)
    notes = build_results([measure(run)]).notes
    (text,) = (one.text for one in notes if one.key == "few_samples")
    assert text == f"Too few samples for an interval: GSM8K-like {told}"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("method", ["pld", "lookahead"])
@pytest.mark.parametrize(("temperatures", "at"), [((0.0,), ""), ((0.0, 1.0), " at T=1")])
def test_a_cpu_where_vanilla_is_faster_is_explained(
    temperatures: tuple[float, ...], at: str, method: str, device: str
) -> None:
    records = [record(temperature=each) for each in temperatures] + [
        record(method, temperature=each, decode_s=2.0, accept_lengths=(2, 1))
        for each in temperatures
    ]
    described = header(["vanilla", method], ("gsm8k",), temperatures)
    described["spec"]["values"]["device"] = device
    text = " ".join(drawn(make_run(records, described), 80, is_full=False).split())
    by_design = f"Lookahead{at} is slow by design, because each step also computes its "
    by_design += "window, which is never accepted (1.50 tokens a step, which takes 3.00 "
    by_design += "times as long as vanilla's)"
    assert ("docs/metrics.md" in text) is (device == "cpu")
    assert (by_design in text) is (device == "cpu" and method == "lookahead")


@pytest.mark.parametrize("make", EVERY_RUN)
def test_no_line_is_wider_than_the_terminal_and_nothing_is_nan(make: type) -> None:
    report = report_of(make)
    for width, is_full in product((40, 60, 80, 100, 120, 200), (True, False)):
        text = drawn(report, width, is_full=is_full)
        assert max(map(len, text.splitlines())) <= width
        assert "nan" not in text.lower()
        assert "…" not in text


def test_values_that_are_equal_as_shown_are_both_best() -> None:
    records = [record(decode_s=2.0), record("pld", decode_s=1.0), record("sps", decode_s=0.9999)]
    run = make_run(records, header(["vanilla", "pld", "sps"], ("gsm8k",)))
    rows = build_results([measure(run)]).blocks[0].methods
    assert [row.tasks[0].is_best_speedup for row in rows] == [False, True, True]


def test_the_baseline_is_bold_if_every_method_is_slower_but_not_alone() -> None:
    for others, is_best in (([record("pld", decode_s=2.0)], True), ([], False)):
        run = make_run([record(), *others], header(["vanilla", "pld"], ("gsm8k",)))
        (first, _) = build_results([measure(run)]).blocks[0].methods
        assert first.tasks[0].is_best_speedup is is_best


def test_a_stand_in_says_so_in_the_title() -> None:
    model = {"name": "vicuna-13b", "label": "Vicuna 13B", "is_stand_in": True, "dtype": "bfloat16"}
    run = full_run(("vanilla", "pld"), ("gsm8k",), model=model)
    assert "stand-in" in drawn(run).splitlines()[0]


def test_a_warning_of_one_run_among_several_names_it() -> None:
    fine, interrupted = full_run(num_samples=4), with_header(two_temperatures(), id="second")
    table = build_results([measure(fine), measure(interrupted)])
    warnings = [note.text for note in table.notes if note.is_warning]
    assert any(text.startswith("gsm8k, alpaca: The run was inter") for text in warnings)
    alone = build_results([measure(interrupted)])
    assert any(note.text.startswith("The run was inter") for note in alone.notes)


def test_facts_of_one_run_among_several_name_it_and_shared_ones_stand_once() -> None:
    notes = report_of(two_models).results.notes
    (tiny, vicuna), (shared,) = (
        [one.text for one in notes if one.key == key] for key in ("lossless", "one_pass")
    )
    assert tiny.startswith("tiny (embedded, trained by specbench): identical")
    assert vicuna.startswith("Vicuna 13B: identical") and shared.startswith("one, so")


def test_a_warning_about_a_head_comes_before_those_of_a_busy_machine() -> None:
    told = ("The machine was busy: times are noisy.", "pld: Its config names no target layers.")
    run = full_run(("vanilla", "pld"), ("gsm8k",), warnings=told)
    found = [note.text for note in build_results([measure(run)]).notes if note.is_warning]
    assert found[0] == told[1] and found[-1] == told[0] and found.count(told[1]) == 1


def test_runs_of_one_model_are_told_apart_by_what_differs() -> None:
    infos = [run.header for run in two_machines()]
    model = "tiny (embedded, trained by specbench)"
    assert run_labels(infos[:1]) == [model]
    assert run_labels(infos) == ["NVIDIA A100 80GB", "NVIDIA H200"]
    again = structs.replace(infos[1], id="again")
    assert run_labels([*infos, again])[1:] == ["NVIDIA H200, run on-H200", "NVIDIA H200, run again"]
    other = structs.replace(infos[0].model, label="Other")
    assert run_labels([infos[0], structs.replace(infos[0], model=other)]) == [model, "Other"]
    spec, files = infos[0].spec, ("/home/me/a.toml", "/home/me/b.toml")
    values = [structs.replace(spec.values, settings=file) for file in files]
    specs = [structs.replace(spec, values=one) for one in values]
    of_files = [structs.replace(infos[0], spec=one) for one in specs]
    assert run_labels(of_files) == ["--settings a.toml", "--settings b.toml"]


def test_names_of_any_script_and_markup_are_shown_as_they_are() -> None:
    described = header(["vanilla", "pld"], ("gsm8k",))
    described["methods"]["pld"]["title"] = "[red]方法[/red]"
    described["columns"] = {"gsm8k": "数学 [bold]"}
    run = make_run([record(decode_s=2.0), record("pld", "ß/🙂")], described)
    text = drawn(run, 80)
    assert all(word in text for word in ("[red]方法[/red]", "数学", "[bold]"))


def test_a_stream_that_only_takes_ascii_gets_ascii() -> None:
    raw = BytesIO()
    stream = TextIOWrapper(raw, encoding="ascii")
    run = with_header(full_run(("vanilla", "pld"), ("gsm8k",)), methods__pld__title="方法")
    print_report(make_report(run), Console(file=stream, width=100))
    stream.flush()
    assert b"?? " in raw.getvalue()
    assert "~0." in raw.getvalue().decode("ascii")
