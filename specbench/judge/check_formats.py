"""Write checked runs as documents: as JSON, and as JUnit XML for a CI server."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from specbench.analysis.stats.estimates import Estimate
from specbench.errors.guards import os_errors
from specbench.judge.checks import NUMBERS, Check, CheckedRun
from specbench.report.export.json import plain

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold even escaped, such as control characters in an error."""
_SUITE = "specbench check"
"""The name of a suite, or its first words."""
_COUNTED = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
"""Name of a suite's count -> path of the elements that it counts."""


def to_json(runs: Sequence[CheckedRun], kind: str) -> str:
    """The runs with all their checks as a JSON document. `kind` names the kind of check."""
    listed = [
        {
            "run": run.run,
            **plain(run.about),
            "is_passed": run.is_passed,
            "is_judged": run.is_judged,
            "summary": run.summary,
            "checks": [_check_values(check) for check in run.checks],
        }
        for run in runs
    ]
    document = {"schema": 1, "kind": kind, "runs": listed}
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _check_values(check: Check) -> dict[str, Any]:
    """The check as a JSON object: field -> string, number or interval. Fields that the check
    lacks are left out.

    In a check of a number, `value` is the share by which the number became worse (negative for a
    MAT that rose too much), and `limit` is the largest share by which the number may change.
    """
    fields: dict[str, Any] = {"name": check.name, "status": check.status, "text": check.text}
    if cell := check.cell:  # None for a check of the whole run
        fields |= {"method": cell.method, "temperature": cell.temperature, "task": cell.task}
        # Requests at once (`concurrency`) or per second (`request_rate`). 0 stands for neither.
        fields |= {name: number for name, number in cell.load._asdict().items() if number}
    if isinstance(check.value, Estimate):
        fields["value"] = check.value.value
        if interval := check.value.interval:
            fields["interval"] = [interval.low, interval.high]
    if check.allowed is not None:
        fields["limit"] = check.allowed
    return fields


def to_junit(runs: Sequence[CheckedRun]) -> bytes:
    """The XML document, with a suite per run. If there are several, their names have the runs'.

    A cell (a method on a task, at a temperature and a load) with checks is a case. Checks of the
    whole run are cases with the names of the checks. If a name comes up again after other checks,
    its case gets a number, since CI servers may drop a second case of the same name. Suites of runs
    with the same name get numbers too. A case fails if any of its checks fails. It is skipped if
    all its checks of numbers (MAT and speed) are skipped or, without such checks, if all its checks
    are.
    """
    root = ElementTree.Element("testsuites")
    suites_seen = Counter[str]()  # by name
    for run in runs:
        suite_name = _SUITE if len(runs) == 1 else f"{_SUITE} {_clean(run.run)}"
        suite_name = _numbered(suite_name, suites_seen)
        suite = ElementTree.SubElement(root, "testsuite", name=suite_name)
        _add_properties(suite, run)
        cases_seen = defaultdict[str, Counter[str]](Counter)  # class -> cases so far, by name
        # The method is empty for a check of the whole run. Checks of one case are neighbours.
        for (method, case_name), checks in groupby(run.checks, key=_case):
            # A dot would divide the class name. `_clean` replaces what XML cannot hold.
            class_path = ["specbench", _clean(method).replace(".", "·")]
            classname = ".".join(filter(None, class_path))
            name = _numbered(_clean(case_name), cases_seen[classname])
            case = ElementTree.SubElement(suite, "testcase", classname=classname, name=name)
            _add_result(case, [*checks])
        _set_counts(suite, [suite])
    _set_counts(root, root.findall("testsuite"))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _numbered(name: str, num_seen: Counter[str]) -> str:
    """The name, with a number if it was seen before. The result is counted as seen."""
    num_seen[name] += 1
    # The name with a number may have been seen, too.
    return name if num_seen[name] == 1 else _numbered(f"{name} ({num_seen[name]})", num_seen)


def write_junit(runs: Sequence[CheckedRun], path: Path) -> None:
    """Write the document. Raises `UserError` if the file cannot be written."""
    with os_errors(f"--junit {path} cannot be written", "Give another file."):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_junit(runs))


def _add_properties(suite: ElementTree.Element, run: CheckedRun) -> None:
    """Add the names of the run and its baseline to the properties of a suite."""
    properties = ElementTree.SubElement(suite, "properties")
    for name, run_id in (("run", run.run), ("baseline", run.about.get("baseline"))):
        if run_id:
            ElementTree.SubElement(properties, "property", name=name, value=_clean(run_id))


def _set_counts(element: ElementTree.Element, suites: Sequence[ElementTree.Element]) -> None:
    """Add the numbers of tests, failures and skipped cases in these suites to an element."""
    for name, path in _COUNTED.items():
        element.set(name, str(sum(len(suite.findall(path)) for suite in suites)))
    element.set("errors", "0")


def _case(check: Check) -> tuple[str, str]:
    """The method and the name of the case of a check."""
    return check.method, check.task if check.cell else check.name


def _add_result(testcase: ElementTree.Element, checks: Sequence[Check]) -> None:
    """Add the result of a test case, as a child element with the texts of its checks.

    If a check failed, the element is a `failure` with only the texts of the failed checks. It is
    `skipped` if all checks of numbers (MAT and speed) were skipped or, without such checks, if all
    checks were. Otherwise it is `system-out`, or there is no element if no check has a text.

    Args:
        testcase: the element of the case.
        checks: all checks of the case. They are about the same cell, or they are about the whole
            run and have the same name.
    """
    failed = [check for check in checks if check.status == "failed"]
    number_checks = [check for check in checks if check.name in NUMBERS]
    lines = [  # a line for each check that has a text
        f"{check.name}: {check.text}" if check.cell else check.text
        for check in failed or checks
        if check.text
    ]
    full_text = _clean("\n".join(lines))
    message = full_text.partition("\n")[0]
    if failed:
        ElementTree.SubElement(testcase, "failure", message=message).text = full_text
    elif all(check.status == "skipped" for check in number_checks or checks):
        ElementTree.SubElement(testcase, "skipped", message=message).text = full_text
    elif full_text:
        ElementTree.SubElement(testcase, "system-out").text = full_text


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
