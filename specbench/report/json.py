"""A report as JSON: every number with its interval or the reason for its absence, and every fact.

Knows no table layout. What the numbers' dataclasses hold is written under their fields' names, so
that a number added there is added here. There is no NaN and no infinity: a missing number is
`{"missing": reason}`.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats import LEVEL, Estimate, Missing
from specbench.report.source import Report, Source
from specbench.report.verdict import verdict

SCHEMA = 1
"""Version of the document. It grows when a key changes its meaning or goes, not when one comes."""


_COMPACT_FROM = 4
"""The depth from which a value is written on one line."""
_DIGITS = 10
"""Significant digits of a number: more than any clock's, and fewer than differ between machines."""


def to_json(report: Report) -> str:
    """The document as text: a line per cell and per fact, so that two reports can be compared."""
    return _text(document(report), 0) + "\n"


def _text(value: Any, level: int) -> str:
    if not value or level == _COMPACT_FROM or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    pad, end = "\n" + " " * (level + 1), "\n" + " " * level
    if isinstance(value, list):
        return f"[{pad}{f',{pad}'.join(_text(item, level + 1) for item in value)}{end}]"
    items = (f"{json.dumps(key)}: {_text(item, level + 1)}" for key, item in value.items())
    return f"{{{pad}{f',{pad}'.join(items)}{end}}}"


def digest(text: str) -> str:
    """What identifies the document: the hash of its text with every number to six digits, so that
    two machines which round differently agree.
    """
    rounded = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.6g}", text)
    return f"sha256:{hashlib.sha256(rounded.encode()).hexdigest()}"


def document(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "schema": SCHEMA,
        "kind": "specbench report",
        "title": report.table.title,
        "notes": [plain(note) for note in report.table.notes],
        "runs": [_run(source) for source in report.sources],
    }


def plain(value: Any) -> Any:
    """Dataclasses, estimates, mappings and sequences as values that JSON has."""
    if isinstance(value, Missing):
        return {"missing": value.reason}
    if isinstance(value, Estimate):
        interval = value.interval
        ends = {"low": interval.low, "high": interval.high} if interval else {}
        return {"value": plain(value.value), **ends}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float):
        is_number = math.isfinite(value)
        return float(f"{value:.{_DIGITS}g}") if is_number else {"missing": "not a finite number"}
    return value


def _run(source: Source) -> dict[str, Any]:
    """One run: what was measured where and how, then its numbers."""
    metrics, info, header = source.metrics, source.info, source.header
    return {
        "id": info.id,
        "label": source.label,
        "status": info.status,
        "created": info.created,
        "finished": header.get("finished"),
        "command": plain(header.get("command")),
        "spec": plain(info.spec),
        "model": plain(header.get("model")),
        "is_stand_in": info.is_stand_in,
        "environment": plain(header.get("environment")),
        "prompts": plain(header.get("prompts")),
        "methods": [_method(source, spelling) for spelling in metrics.methods],
        "tasks": {task: info.columns.get(task, task) for task in metrics.tasks},
        "temperatures": list(metrics.temperatures),
        "arithmetic": metrics.arithmetic,
        "bootstrap": {**plain(metrics.bootstrap), "level": LEVEL},
        "doubts": [doubt.sentence(info) for doubt in metrics.doubts],
        "warnings": list(info.warnings),
        "verdicts": [
            {"temperature": temperature, "text": verdict(metrics, temperature)}
            for temperature in metrics.temperatures
        ],
        "cells": _cells(metrics),
        "overall": [
            {"temperature": temperature, "method": method, **plain(numbers)}
            for (method, temperature), numbers in metrics.overall.items()
        ],
        "costs": [
            {"temperature": key.temperature, "method": key.method, "task": key.task or None}
            | plain(cost)
            for key, cost in metrics.costs.items()
        ],
        "roofline": plain(metrics.roofline),
        "agreements": plain(source.agreements),
        "calibration": [
            {"temperature": temperature, "method": method, "by_depth": plain(calibrations)}
            for (method, temperature), calibrations in source.calibration.items()
        ],
    }


def _method(source: Source, spelling: str) -> dict[str, Any]:
    about = source.info.method(spelling)
    described = source.header.get("methods", {}).get(spelling, {})
    return {
        "spelling": spelling,
        "title": about.title,
        "label": about.label,
        "is_lossless": about.is_lossless,
        "has_checkpoint": spelling not in source.info.no_checkpoint,
        "options": plain(described.get("options")),
        "weights": plain(described.get("weights")),
    }


def _cells(metrics: RunMetrics) -> list[dict[str, Any]]:
    """One object per temperature, method and task; all tasks together are under `overall`."""
    return [
        {"temperature": key.temperature, "method": key.method, "task": key.task, **plain(cell)}
        for key, cell in metrics.cells.items()
        if key.task
    ]
