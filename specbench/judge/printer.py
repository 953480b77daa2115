"""Checked runs as a table on a terminal, as JSON and as JUnit XML."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors import os_errors
from specbench.judge.checks import NUMBERS, Check, CheckedRun
from specbench.report import formats
from specbench.report.console import TextTable, text_table
from specbench.report.export.json import plain
from specbench.report.export.terminal import notes_grid, print_parts, report_console

_HEADINGS = ("Method", "Task", "Check", "Baseline", "Now", "Result")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold even escaped, such as control characters of an error."""


def print_checks(runs: Sequence[CheckedRun], console: Console | None = None) -> None:
    """Print failed cells, summary and notes of each run; on stdout unless a console is given."""
    console = console or report_console()
    parts: list[RenderableType] = []
    for run in runs:
        failures = [check for check in run.failures if check.cell]
        parts += [_table(failures), Text()] if failures else []
        is_sure = run.is_passed and not run.is_doubtful
        colour = "red" if run.failures else "green" if is_sure else "yellow"
        parts += [Text(run.summary, style=f"bold {colour}"), *[Text()] * (len(runs) == 1)]
        parts.append(notes_grid(run.notes))
    print_parts(parts, console)


def _table(failures: Sequence[Check]) -> TextTable:
    """A row a failed check; checks of a method that read alike share one."""
    alike: dict[tuple[str, ...], list[Check]] = defaultdict(list)
    for check in failures:
        alike[check.method, check.name, *_numbers(check), check.text].append(check)
    rows = [
        (method, checks[0].task if len(checks) == 1 else f"{len(checks)} tasks", *others)
        for (method, *others), checks in alike.items()
    ]
    return text_table(_HEADINGS, rows)


def _numbers(check: Check) -> tuple[str, str]:
    """The values of the baseline and of this run."""
    if isinstance(check.value, Missing) or isinstance(check.before, Missing):
        return "", ""
    if check.name == "MAT":
        return formats.mat(check.before), formats.mat(check.now)
    return f"{formats.rate(check.before)} tok/s", f"{formats.rate(check.now)} tok/s"


def to_json(runs: Sequence[CheckedRun], kind: str) -> str:
    """The runs with all their checks as a document."""
    listed = [
        {
            "run": one.run, **plain(one.about),
            "is_passed": one.is_passed, "is_judged": one.is_judged, "summary": one.summary,
            "checks": [_plain(check) for check in one.checks],
        }
        for one in runs
    ]  # fmt: skip
    document = {"schema": 1, "kind": kind, "runs": listed}
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _plain(check: Check) -> dict[str, Any]:
    """The check as values of JSON, without what it lacks."""
    found: dict[str, Any] = {"name": check.name, "status": check.status, "text": check.text}
    if key := check.cell:
        found |= {"method": key.method, "temperature": key.temperature, "task": key.task}
        found |= {name: value for name, value in key.load._asdict().items() if value}
    if isinstance(check.value, Estimate):
        found["value"] = check.value.value
        if interval := check.value.interval:
            found["interval"] = [interval.low, interval.high]
    if check.limit is not None:
        found["limit"] = check.limit
    return found


def to_junit(runs: Sequence[CheckedRun]) -> bytes:
    """The XML document: a case for each cell of the baseline run and each check of a whole run.

    A case fails if one of its checks fails. It is skipped if all of its checks of numbers are,
    or all checks if it has no number.
    """
    root = ElementTree.Element("testsuites")
    for run in runs:
        suite = ElementTree.SubElement(root, "testsuite", name="specbench check")
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in (("run", run.run), ("baseline", run.about.get("baseline"))):
            if value:
                ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
        for (method, name), checks in groupby(run.checks, key=_case):
            where = ["specbench", _clean(method).replace(".", "·")]
            classname = ".".join(filter(None, where))
            case = ElementTree.SubElement(suite, "testcase", classname=classname, name=_clean(name))
            _fill(case, [*checks])
    counts = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    suites = root.findall("testsuite")
    for element, parts in ((root, suites), *((suite, [suite]) for suite in suites)):
        for name, path in counts.items():
            element.set(name, str(sum(len(part.findall(path)) for part in parts)))
        element.set("errors", "0")
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def write_junit(runs: Sequence[CheckedRun], path: Path) -> None:
    """Write the document. Raises `UserError` if the file cannot be written."""
    with os_errors(f"--junit {path} cannot be written", "Give another file."):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_junit(runs))


def _case(check: Check) -> tuple[str, str]:
    return check.method, check.task if check.cell else check.name


def _fill(case: ElementTree.Element, checks: Sequence[Check]) -> None:
    failed = [check for check in checks if check.status == "failed"]
    numbers = [check for check in checks if check.name in NUMBERS]
    told = [check for check in failed or checks if check.text]
    text = _clean("\n".join(f"{one.name}: {one.text}" if one.cell else one.text for one in told))
    first = text.partition("\n")[0]
    if failed:
        ElementTree.SubElement(case, "failure", message=first).text = text
    elif all(one.status == "skipped" for one in numbers or checks):
        ElementTree.SubElement(case, "skipped", message=first).text = text
    elif text:
        ElementTree.SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
