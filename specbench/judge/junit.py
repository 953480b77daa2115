"""The gate as JUnit XML for CI systems: a test case for each cell of the baseline."""

import re
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

from specbench.errors import UserError
from specbench.judge.checks import Check
from specbench.judge.gate import Gate
from specbench.judge.printer import method_name, task_name

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold even escaped, such as control characters of an error."""


def to_junit(gate: Gate) -> bytes:
    """The XML document. A cell fails if a check fails, and is skipped if all are."""
    suite = ElementTree.Element("testsuite", name="specbench check")
    properties = ElementTree.SubElement(suite, "properties")
    info = gate.comparison
    for name, value in (("run", info.subject.id), ("baseline", info.reference.id)):
        ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
    whole = ElementTree.SubElement(suite, "testcase", classname="specbench", name="complete run")
    if gate.problems:
        _add(whole, "failure", "\n".join(gate.problems))
    for cell, group in groupby(gate.checks, key=lambda check: check.cell):
        classname = ".".join(("specbench", _clean(method_name(gate, cell)).replace(".", "·")))
        case = ElementTree.SubElement(suite, "testcase", classname=classname)
        case.set("name", _clean(task_name(gate, cell)))
        _fill(case, [*group])
    counts = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    numbers = {name: str(len(suite.findall(path))) for name, path in counts.items()}
    root = ElementTree.Element("testsuites", {**numbers, "errors": "0"})
    suite.attrib.update({**numbers, "errors": "0"})
    root.append(suite)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def write_junit(gate: Gate, path: Path) -> None:
    """Write the document. Raises `UserError` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_junit(gate))
    except OSError as error:
        raise UserError(
            f"--junit {path} cannot be written: {error.strerror or error}.", "Give another file."
        ) from error


def _fill(case: ElementTree.Element, checks: list[Check]) -> None:
    failed = [check for check in checks if check.status == "failed"]
    lines = [f"{check.kind}: {check.text}" for check in failed or checks]
    if failed:
        _add(case, "failure", "\n".join(lines))
    elif all(check.status == "skipped" for check in checks):
        _add(case, "skipped", "\n".join(lines))
    else:
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(lines))


def _add(case: ElementTree.Element, kind: str, text: str) -> None:
    first = _clean(text.splitlines()[0])
    ElementTree.SubElement(case, kind, message=first).text = _clean(text)


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
