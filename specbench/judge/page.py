"""The files of the site: the page, and for each run its report and its raw samples."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specbench.analysis.stats.bootstrap import Bootstrap, Estimate, Missing
from specbench.errors import UserError, without_password
from specbench.judge.checks import CheckedRun
from specbench.judge.files import check_files
from specbench.judge.page_rows import MEAN, SiteRow, published_rows, run_rows
from specbench.log.audit import AUDIT
from specbench.log.files import folder_errors
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.log.store import HEADER, SAMPLES, read_run, single_runs
from specbench.report import facts
from specbench.report.build import make_report, write_files
from specbench.report.export import load_format
from specbench.report.export.html import page_template
from specbench.report.formats import interval_of
from specbench.report.report import Report

_FORMATS = ("html", "json", "csv")
_RAW = (HEADER, SAMPLES, AUDIT)


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A run on the page. `folder` holds its files, relative to the page."""

    number: int
    folder: str
    label: str
    header: RunHeader
    checked: CheckedRun
    raw: tuple[str, ...]


def write_site(
    paths: Sequence[Path],
    out: Path,
    *,
    bootstrap: Bootstrap | None = None,
    say: Callable[[str], None],
) -> None:
    """Write the page and the runs' files into a folder.

    Args:
        paths: folders of the runs.
        out: the folder; files of an earlier site there are replaced.
        bootstrap: the draws of the intervals.
        say: receives a line per run.

    Raises:
        UserError: there is no run.
        RunFolderError: a run cannot be read, or the folder cannot be written.
    """
    if not paths:
        raise UserError("There is no run for the site.", "Name folders of runs or of suites.")
    stored = [read_run(path, is_lenient=True) for path in single_runs(paths)]
    stored.sort(key=lambda run: run.header.created)
    num_tasks = max(len(run.header.columns) for run in stored)
    runs: list[SiteRun] = []
    rows: list[SiteRow] = []
    for number, (run, folder) in enumerate(zip(stored, _folders(stored), strict=True)):
        say(f"{number + 1} of {len(stored)}: {run.folder}")
        report = make_report(run, bootstrap)
        rows += [row for one in report.sources for row in run_rows(one.metrics, number, num_tasks)]
        raw = _write_run(run, report, out / folder)
        label = f"{facts.model_label(run.header)} on {run.header.hardware_name}, {run.header.id}"
        runs.append(SiteRun(number, folder, label, run.header, check_files(run.folder), raw))
    rows += published_rows()
    write_files(out, {"index.html": render(runs, rows).encode()})


def render(runs: Sequence[SiteRun], rows: Sequence[SiteRow]) -> str:
    """The HTML of the page."""
    return page_template("site.html", __package__).render(
        runs=runs,
        facts=facts,
        data={
            "rows": [_plain(row) for row in rows],
            "runs": [
                {"folder": one.folder, "eligible": one.checked.about["is_eligible"]} for one in runs
            ],
            "mean": MEAN,
            "num_machines": len({row.machine for row in rows if row.run is not None}),
        },
    )


def _folders(runs: Sequence[Run]) -> list[str]:
    """A folder for each run, named after it; runs of one name are numbered."""
    times = Counter[str]()
    names = []
    for run in runs:
        name = run.folder.resolve().name
        times[name] += 1
        names.append(f"runs/{name}" if times[name] == 1 else f"runs/{name}-{times[name]}")
    return names


def _write_run(run: Run, report: Report, folder: Path) -> tuple[str, ...]:
    """Write the report and copy the raw files; returns the names of those."""
    made = {
        name: text.encode()
        for form in _FORMATS
        for name, text in load_format(form).files(report).items()
    }
    write_files(folder, made)
    names = tuple(name for name in _RAW if (run.folder / name).is_file())
    with folder_errors(folder):
        for name in names:
            shutil.copyfile(run.folder / name, folder / name)
        header = folder / HEADER
        header.write_bytes(without_password(header.read_bytes().decode()).encode())
    return names


def _plain(row: SiteRow) -> dict[str, Any]:
    """The row as values of JSON."""
    return {field.name: _value(getattr(row, field.name)) for field in fields(row)}


def _value(value: Any) -> Any:
    """Of an estimate, the value and the ends of its interval, if it has one."""
    if isinstance(value, Missing):
        return None
    if not isinstance(value, Estimate):
        return value
    span = interval_of(value)
    numbers = [value.value, *([span.low, span.high] if span else [])]
    return [json.loads(f"{number:.6g}") for number in numbers]
