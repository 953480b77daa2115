"""The gate's verdict as JUnit XML: a test case for each cell of the baseline, for CI systems."""

import re
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

from specbench.analysis.findings import Finding
from specbench.analysis.gate import Gate
from specbench.errors import UserError
from specbench.report.gate import method_name, task_name

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped: control characters of an error's text, say."""


def to_junit(gate: Gate) -> bytes:
    """The XML document. A cell fails by its failed findings, and is skipped if none was judged."""
    suite = ElementTree.Element("testsuite", name="specbench check")
    properties = ElementTree.SubElement(suite, "properties")
    info = gate.comparison
    for name, value in (("run", info.subject.id), ("baseline", info.reference.id)):
        ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
    whole = ElementTree.SubElement(suite, "testcase", classname="specbench", name="complete run")
    if gate.broken:
        _add(whole, "failure", "\n".join(gate.broken))
    for cell, group in groupby(gate.findings, key=lambda finding: finding.cell):
        classname = f"specbench.{_clean(method_name(gate, cell)).replace('.', '·')}"
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
    """Write the document. Raises `UserError` where the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_junit(gate))
    except OSError as error:
        raise UserError(
            f"--junit {path} cannot be written: {error.strerror or error}.", "Give another file."
        ) from error


def _fill(case: ElementTree.Element, findings: list[Finding]) -> None:
    failed = [finding for finding in findings if finding.outcome == "failed"]
    lines = [f"{finding.kind}: {finding.text}" for finding in failed or findings]
    if failed:
        _add(case, "failure", "\n".join(lines))
    elif all(finding.outcome == "skipped" for finding in findings):
        _add(case, "skipped", "\n".join(lines))
    else:
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(lines))


def _add(case: ElementTree.Element, kind: str, text: str) -> None:
    first = _clean(text.splitlines()[0])
    ElementTree.SubElement(case, kind, message=first).text = _clean(text)


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
