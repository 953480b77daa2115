"""The gate's output: terminal, JUnit XML and GitHub annotations."""

from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from specbench.errors import UserError
from specbench.judge.checks import CheckedRun
from specbench.judge.gate import check
from specbench.judge.printer import (
    MOST_ANNOTATIONS,
    annotations,
    print_checks,
    to_junit,
    write_junit,
)
from specbench.log.run import Run
from tests.analysis.run_factory import full_run
from tests.judge.changing import broken, slower, with_header, with_records

RUN = full_run(id="old")
NASTY = "100% full: <tag> & \x1b[31mred\x00,\r\nTraceback"


def new(run: Run) -> Run:
    return with_header(run, id="new")


def shown(gate: CheckedRun, width: int = 120) -> str:
    console = Console(width=width, record=True, file=StringIO(), highlight=False)
    print_checks([gate], console)
    return console.export_text()


SLOW = check(new(slower(RUN, {"pld": 1.25})), RUN)
FAILING = check(
    new(
        with_records(
            RUN, lambda r: broken(r, NASTY) if r.key.sample_id == "gsm8k/1" else r
        )
    ),
    RUN,
)  # fmt: skip
PASSED = check(new(RUN), RUN)
ELSEWHERE = check(with_header(RUN, id="new", environment__cpu__model="Other"), RUN)


def test_a_pass_is_one_sentence_with_the_worst_passed_numbers() -> None:
    text = shown(PASSED)
    assert text.startswith("Passed: new is no worse than old in 24 cells of 4 methods.\n")
    assert text.count("all unchanged or better") == 2
    slow = shown(check(new(slower(RUN, {"pld": 1.02})), RUN))
    assert "the worst is PLD" in slow
    assert "slower by 2 %" in slow


def test_a_gate_without_speed_says_so() -> None:
    text = shown(ELSEWHERE)
    assert "in 24 cells of 4 methods; speed was not checked." in text
    assert "not checked: another machine: Example CPU 9000, threads: 2 in the baseline" in text


@pytest.mark.parametrize("width", [80, 120])
def test_every_failure_is_a_row_with_both_values(width: int) -> None:
    text = shown(SLOW, width)
    assert "FAILED: new falls behind old. 7 failed checks: PLD." in " ".join(text.split())
    assert text.count("slower by 25 %") == 7
    assert "tok/s" in text
    assert max(map(len, text.splitlines())) <= width


def test_a_slower_vanilla_asks_for_a_second_run() -> None:
    gate = check(slower(RUN, dict.fromkeys(("vanilla", "pld", "sps", "lookahead"), 1.5)), RUN)
    assert "The cause is the engine or the machine" in shown(gate)


def cases(gate: CheckedRun) -> dict[tuple[str, str], ElementTree.Element]:
    root = ElementTree.fromstring(to_junit([gate]))
    found = {(c.get("classname", ""), c.get("name", "")): c for c in root.iter("testcase")}
    (suite,) = root
    for holder in (root, suite):
        assert int(holder.get("tests", "")) == len(found) == len([*root.iter("testcase")])
        assert int(holder.get("failures", "")) == len([*root.iter("failure")])
        assert int(holder.get("skipped", "")) == len([*root.iter("skipped")])
    return found


def test_junit_has_a_case_for_each_cell_of_the_baseline() -> None:
    found = cases(PASSED)
    assert len(found) == 1 + 4 * 7
    assert "MAT: unchanged" in (found["specbench.PLD", "GSM8K"].findtext("system-out") or "")
    assert all(case.find("failure") is None for case in found.values())


def test_junit_fails_the_cells_that_fail() -> None:
    failed = {key for key, case in cases(SLOW).items() if case.find("failure") is not None}
    assert len(failed) == 7
    assert {name for name, _ in failed} == {"specbench.PLD"}


def test_junit_holds_any_error_text() -> None:
    failure = cases(FAILING)["specbench.PLD", "GSM8K"].find("failure")
    assert failure is not None
    assert "100% full: <tag> & ?[31mred?," in failure.get("message", "")
    assert b"\x1b" not in to_junit([FAILING])


def test_junit_skips_a_cell_of_which_nothing_was_judged() -> None:
    run = full_run(num_samples=1)
    found = cases(check(run, run))
    assert found["specbench.PLD", "Mean of the tasks"].find("skipped") is not None
    assert found["specbench.PLD", "GSM8K"].find("skipped") is None


def test_junit_fails_an_unfinished_run() -> None:
    gate = check(with_header(RUN, status="failed"), RUN)
    assert cases(gate)["specbench", "complete run"].find("failure") is not None


def test_two_temperatures_are_told_apart() -> None:
    run = full_run(temperatures=(0.0, 1.0))
    found = cases(check(run, run))
    assert ("specbench.PLD, T=0", "GSM8K") in found
    assert ("specbench.PLD, T=1", "GSM8K") in found


def test_junit_is_written_to_the_given_path(tmp_path: Path) -> None:
    write_junit([PASSED], tmp_path / "deep" / "gate.xml")
    assert ElementTree.parse(tmp_path / "deep" / "gate.xml").getroot().tag == "testsuites"
    with pytest.raises(UserError, match="cannot be written"):
        write_junit([PASSED], tmp_path)


def test_annotations_are_escaped_as_github_asks() -> None:
    lines = [*annotations([FAILING])]
    assert lines[0].startswith("::error title=Vanilla on GSM8K%3A samples::1 of 8 completions")
    assert "100%25 full: <tag>" in lines[0]
    assert all("\n" not in line and "\r" not in line for line in lines)


def test_no_more_annotations_are_made_than_github_shows() -> None:
    gate = check(slower(RUN, {"pld": 1.5, "sps": 1.5}), RUN)
    lines = [*annotations([gate])]
    assert len(lines) == MOST_ANNOTATIONS
    rest = 14 - (MOST_ANNOTATIONS - 1)
    assert lines[-1] == f"::error title=specbench check::{rest} more: see the table in the log."


def test_a_pass_is_a_notice() -> None:
    (line,) = annotations([PASSED])
    assert line.startswith("::notice title=specbench check::Passed: new is no worse than old")
