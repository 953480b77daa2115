"""The same checks, as a table, as JSON and as JUnit XML."""

import json
from functools import partial
from xml.etree import ElementTree

import pytest

from specbench.analysis.cells import CellKey
from specbench.analysis.stats.estimates import Estimate, Interval
from specbench.judge.check_formats import to_json, to_junit
from specbench.judge.checks import Check, CheckedRun, Status
from specbench.judge.printer import print_checks
from specbench.report.texts import Note
from tests.support.printing import printed

NASTY = "100% full: <tag> & \x1b[31mred\x00,\r\nTraceback"


def check(
    status: Status, name: str = "speed", text: str = "slower by 25 %", task: str = "GSM8K"
) -> Check:
    return Check(
        name,
        status,
        text,
        CellKey("pld", 0.0, task.lower()),
        Estimate(0.25, Interval(0.2, 0.3)),
        0.05,
        Estimate(100.0),
        Estimate(80.0),
        method="PLD 1.0",
        task=task,
    )


def run(*checks: Check) -> CheckedRun:
    return CheckedRun(
        "new", checks, "The result.", (Note("Tests", "one-sided"),), {"baseline": "old"}
    )


def shown(checked: CheckedRun, width: int = 120) -> str:
    return printed(partial(print_checks, [checked]), width)


def cases(*runs: CheckedRun) -> dict[tuple[str, str], ElementTree.Element]:
    """The cases of a JUnit file by class and name. The counts of each suite must be right."""
    root = ElementTree.fromstring(to_junit(runs))
    tags = {"tests": "testcase", "failures": "failure", "skipped": "skipped"}
    for suite in (root, *root):
        for count, tag in tags.items():
            assert int(suite.get(count, "")) == len([*suite.iter(tag)])
    return {
        (case.get("classname", ""), case.get("name", "")): case for case in root.iter("testcase")
    }


@pytest.mark.parametrize(
    ("status", "tag"), [("passed", "system-out"), ("failed", "failure"), ("skipped", "skipped")]
)
def test_a_check_has_its_status_in_every_format(status: Status, tag: str) -> None:
    checked = run(check(status))
    case = cases(checked)["specbench.PLD 1·0", "GSM8K"]
    assert case.findtext(tag) == "speed: slower by 25 %"
    (listed,) = json.loads(to_json([checked], "specbench check"))["runs"]
    assert listed["run"] == "new"
    assert listed["baseline"] == "old"
    assert listed["is_passed"] is (status != "failed")
    (listed_check,) = listed["checks"]
    assert listed_check == {
        "name": "speed",
        "status": status,
        "text": "slower by 25 %",
        "method": "pld",
        "temperature": 0.0,
        "task": "gsm8k",
        "value": 0.25,
        "interval": [0.2, 0.3],
        "limit": 0.05,
    }
    assert ("100 tok/s" in shown(checked)) is (status == "failed")


def test_a_failed_cell_has_one_failure() -> None:
    checked = run(
        check("passed"),
        check("failed", "MAT", "lower"),
        check("passed", task="Alpaca"),
        check("skipped", "MAT", "too few", task="Alpaca"),
        check("passed", "samples", task="Mean"),
        check("skipped", "MAT", task="Mean"),
    )
    results = {name: next(iter(case)) for (_, name), case in cases(checked).items()}
    assert results.keys() == {"GSM8K", "Alpaca", "Mean"}
    assert results["GSM8K"].tag == "failure"
    assert results["GSM8K"].get("message") == "MAT: lower"
    assert results["Alpaca"].tag == "system-out"
    assert results["Mean"].tag == "skipped"


@pytest.mark.parametrize("width", [80, 120])
def test_failures_that_read_alike_share_a_row(width: int) -> None:
    failures = [check("failed", task=task) for task in ("GSM8K", "Alpaca")]
    text = shown(run(*failures, check("failed", "MAT", "lower by 9 %")), width)
    assert text.count("slower by 25 %") == 1 and "2 tasks" in text
    assert "The result.\n\nTests" in text
    assert max(map(len, text.splitlines())) <= width


def test_checks_of_a_whole_run_are_separate_cases() -> None:
    failing = run(
        Check("hashes", "failed", "no sha256"),
        Check("records", "passed", ""),
        Check("hashes", "skipped", "not here"),
    )
    root = ElementTree.fromstring(to_junit([run(Check("hashes", "passed", "")), failing]))
    assert [suite.get("failures") for suite in root] == ["0", "1"]
    assert [suite.get("name") for suite in root] == [
        "specbench check new",
        "specbench check new (2)",
    ]
    assert cases(failing)["specbench", "hashes"].findtext("failure") == "no sha256"
    assert cases(failing)["specbench", "hashes (2)"].findtext("skipped") == "not here"
    names = "a", "b", "a", "a (2)"
    assert len(cases(run(*(Check(name, "passed", "") for name in names)))) == len(names)


def test_any_error_text_is_escaped_as_xml_asks() -> None:
    checked = run(check("failed", text=NASTY))
    (failure,) = cases(checked)["specbench.PLD 1·0", "GSM8K"]
    assert "100% full: <tag> & ?[31mred?," in failure.get("message", "")
    assert b"\x1b" not in to_junit([checked])
