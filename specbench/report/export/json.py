"""Write a report as JSON, with all facts, and all numbers with their intervals.

The keys are the fields of the dataclasses with the numbers, so that a number added there is added
here. A missing number is `{"missing": reason}`. NaN and infinity do not occur.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats.confidence import LEVEL
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader, header_values
from specbench.log.run import loads_of
from specbench.report.recommendation import recommendation
from specbench.report.results import Report, Source, p_value_of
from specbench.report.texts import make_note
from specbench.report.verdict import verdict
from specbench.report.warning_notes import with_advice

SCHEMA = 1
"""The version of the document. It is raised when a key is removed or changes its meaning."""

_COMPACT_FROM = 4
"""The depth from which values are written on one line."""
_DIGITS = 10
"""The number of significant digits: enough for any clock, without digits that vary by machine."""


def render(report: Report) -> str:
    """Return the document as text, with a line per cell and fact, so that diffs are readable."""
    return _text(_document(report), 0) + "\n"


def files(report: Report) -> Mapping[str, str]:
    """Return the document as `report.json`."""
    return {"report.json": render(report)}


def _text(value: Any, level: int) -> str:
    """Write the value as JSON in indented lines. From depth _COMPACT_FROM on, it is on one line.

    `level` is the depth of the value in the document.
    """
    if not value or level == _COMPACT_FROM or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, list):
        lines = [_text(element, level + 1) for element in value]
        return f"[{_indented(lines, level)}]"
    lines = [f"{json.dumps(key)}: {_text(field, level + 1)}" for key, field in value.items()]
    return f"{{{_indented(lines, level)}}}"


def _indented(lines: Sequence[str], level: int) -> str:
    """Join the lines with commas, each indented below a bracket at this depth."""
    start = "\n" + " " * (level + 1)
    end = "\n" + " " * level
    return start + f",{start}".join(lines) + end


def digest(text: str) -> str:
    """Return the hash of a document's text, in which every number is rounded to six digits.

    The hash is the same on machines that round differently.
    """
    rounded = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda match: f"{float(match[0]):.6g}", text)
    return f"sha256:{hashlib.sha256(rounded.encode()).hexdigest()}"


def _document(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": "specbench report",
        "title": report.title,
        "prompts": report.prompts,
        "notes": [plain(note) for note in report.notes],
        "runs": [_run(source) for source in report.sources],
    }


def plain(content: Any) -> Any:
    """Convert a number, text, dataclass, mapping or sequence, with all its parts, to JSON types.

    The types are dict, list, str, int, float, bool and None. A dataclass becomes a dict of its
    fields, and a missing number becomes `{"missing": reason}`. An estimate becomes a dict with
    "value", "low" and "high", or only "value" if it has no interval. Floats are rounded to
    `_DIGITS` significant digits, and NaN and infinity become missing numbers. The ends of intervals
    (`low`, `high`) are not changed.
    """
    if isinstance(content, Missing):
        return {"missing": content.reason}
    if isinstance(content, Estimate):
        estimate = {"value": plain(content.value)}
        interval = content.shown_interval  # None if it is not shown
        return {**estimate, "low": interval.low, "high": interval.high} if interval else estimate
    if is_dataclass(content) and not isinstance(content, type):  # an instance, not a class
        return {field.name: plain(getattr(content, field.name)) for field in fields(content)}
    if isinstance(content, Mapping):
        return {str(key): plain(element) for key, element in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [plain(element) for element in content]
    if isinstance(content, float):
        return _rounded(content)
    return content


def _rounded(number: float) -> Any:
    if not math.isfinite(number):
        return {"missing": "not a finite number"}
    return float(f"{number:.{_DIGITS}g}")


def _run(source: Source) -> dict[str, Any]:
    """Return how a run was made, and its numbers."""
    metrics = source.metrics
    info = source.info
    header = plain(header_values(info))
    return {
        "id": info.id,
        "label": source.label,
        "status": info.status,
        "created": info.created,
        "finished": info.finished,
        "command": header["command"],
        "spec": header["spec"]["values"],
        "model": header["model"],
        "is_stand_in": info.model.is_stand_in,
        "environment": header["environment"],
        "prompts": header["prompts"],
        "methods": [_method(info, spelling, header["methods"]) for spelling in metrics.methods],
        "tasks": {task: info.task_title(task) for task in metrics.tasks},
        "temperatures": list(metrics.temperatures),
        "arithmetic": metrics.arithmetic,
        "bootstrap": {**plain(metrics.bootstrap), "level": LEVEL},
        "intervals": metrics.scope.text,
        "rankings": [
            {"temperature": temperature, **plain(ranking)}
            for temperature, ranking in metrics.rankings.items()
        ],
        "warnings": [
            *(_warning_text(warning, info) for warning in metrics.warnings),
            *info.warnings,
        ],
        "verdicts": [
            {
                "temperature": temperature,
                "text": verdict(metrics, temperature),
                "recommendation": recommendation(metrics, temperature),
            }
            for temperature in metrics.temperatures
        ],
        "cells": _cells(metrics),
        "categories": _cells(source.categories) if source.categories else [],
        "overall": _overall(metrics),
        "costs": _costs(metrics),
        "step_bins": [
            {"method": method, "temperature": temperature, **plain(step_bin)}
            for (method, temperature), step_bins in metrics.step_bins.items()
            for step_bin in step_bins
        ],
        "roofline": _renamed(plain(metrics.roofline), no_bound="no_limit"),
        "agreements": plain(metrics.agreements),
        **({"imported": header["imported"]} if info.imported else {}),
        **_serving(metrics),
    }


def _warning_text(warning: RunWarning, info: RunHeader) -> str:
    return make_note(warning.key, info, **with_advice(warning, info)).text


def _overall(metrics: RunMetrics) -> list[dict[str, Any]]:
    """Return an object for each method and temperature with the numbers over all tasks."""
    return [
        {
            "temperature": temperature,
            "method": method,
            **plain(numbers),
            "pooled": _all_steps(plain(numbers.pooled)),
        }
        for (method, temperature), numbers in metrics.overall.items()
    ]


def _costs(metrics: RunMetrics) -> list[dict[str, Any]]:
    """Return an object for each method, temperature and task, with the costs of a step.

    `task` is null for the costs over all tasks. The keys of the costs are the fields of `Cost`,
    with two exceptions: `bound`, the bandwidth bound of the speedup, becomes "limit", and `mat`
    over all tasks becomes "mat_all_steps".
    """
    costs = []
    # `key` has the method, the temperature, and the task or ""
    for key, cost in metrics.costs.items():
        numbers = _renamed(plain(cost), bound="limit")  # a number for each field
        if not key.task:
            numbers = _all_steps(numbers)  # renames the MAT
        names = {"temperature": key.temperature, "method": key.method, "task": key.task or None}
        costs.append({**names, **numbers})
    return costs


def _all_steps(numbers: dict[str, Any]) -> dict[str, Any]:
    """Rename the MAT of the numbers over all tasks, since it is not the mean of the tasks' MATs."""
    return _renamed(numbers, mat="mat_all_steps")


def _renamed(numbers: dict[str, Any], **keys: str) -> dict[str, Any]:
    """Return the numbers in the same order, with other keys for some fields."""
    return {keys.get(name, name): number for name, number in numbers.items()}


def _serving(metrics: RunMetrics) -> dict[str, Any]:
    """Return the loads of a run on servers with the numbers at each, or nothing without servers."""
    if not metrics.serving:
        return {}
    return {
        "loads": [load._asdict() for load in loads_of(metrics.info.spec.values)],
        "serving": [
            {"temperature": temperature, "method": method, **plain(numbers)}
            for (method, temperature), numbers in metrics.serving.items()
        ],
    }


def _method(info: RunHeader, spelling: str, methods: Mapping[str, Any]) -> dict[str, Any]:
    about = info.method(spelling)
    header = methods.get(spelling, {})
    return {
        "spelling": spelling,
        "title": about.title,
        "label": about.label,
        "is_lossless": about.is_lossless,
        "has_checkpoint": spelling not in info.no_checkpoint,
        "options": header.get("options"),
        "weights": header.get("weights"),
    }


def _cells(metrics: RunMetrics) -> list[dict[str, Any]]:
    """Return an object for each temperature, method and task. `overall` has all tasks together.

    The p-value is that of "as fast as vanilla", corrected for the number of methods on the task.
    """
    return [
        {
            "temperature": key.temperature,
            "method": key.method,
            "task": key.task,
            **plain(cell),
            "p_value": plain(p_value_of(metrics, key)),
        }
        for key, cell in metrics.cells.items()
        if key.task
    ]
