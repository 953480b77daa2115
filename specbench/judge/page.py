"""The site over many runs: the page, and for each run its report and its raw samples.

A row of the page is a number of a run, or of a paper, with everything it is filtered by.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from specbench import registry
from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.ranking import is_alone, is_claimed
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.data.tasks import load_cards
from specbench.errors import without_password
from specbench.judge.checks import CheckedRun
from specbench.judge.files import check_files
from specbench.log.audit import AUDIT
from specbench.log.files import folder_errors
from specbench.log.folders import single_runs
from specbench.log.header import RunHeader
from specbench.log.run import Load, Run, loads_of
from specbench.log.store import HEADER, SAMPLES, read_run
from specbench.models.cards import known_models
from specbench.report import facts, results
from specbench.report.build import make_report, write_files
from specbench.report.export import load_format
from specbench.report.export.html import page_template
from specbench.report.formats import interval_of
from specbench.report.published import published_values
from specbench.report.results import Report

_FORMATS = ("html", "json", "csv")
_RAW = (HEADER, SAMPLES, AUDIT)
MEAN = results.MEAN_TITLE
NOT_PUBLISHED = Missing("not published")
_SERVED = ", served by "
"""Before the engine in the title of a served model; a row has the engine apart."""


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A method on a task of a run, or in a published table.

    `tokens_per_s` is that of one request. `is_claimed` if the speedup differs significantly
    from 1. `num_samples` are the prompts behind the numbers, and `threads` those of a CPU, a
    setting of the run. `run` is the number of the run on the page; None for a published row,
    which has the `url` of its `source`.
    """

    machine: str
    model: str
    engine: str
    method: str
    task: str
    temperature: float
    speedup: Value
    mat: Value
    tokens_per_s: Value = NOT_PUBLISHED
    is_claimed: bool = False
    is_alone: bool = False
    num_samples: int | None = None
    threads: int | None = None
    run: int | None = None
    source: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A run on the page. `folder` holds its files, relative to the page."""

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
        RunFolderError: a run cannot be read, or the folder cannot be written.
    """
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
        runs.append(SiteRun(folder, label, run.header, check_files(run.folder), raw))
    rows += published_rows()
    page = page_template("site.html", __package__).render(
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
    write_files(out, {"index.html": page.encode()})


def _folders(runs: Sequence[Run]) -> list[str]:
    """A folder for each run, named after it; runs of one name are numbered."""
    names = [run.folder.resolve().name for run in runs]
    times = [names[:number].count(name) + 1 for number, name in enumerate(names)]
    pairs = zip(names, times, strict=True)
    return [f"runs/{name}" if time == 1 else f"runs/{name}-{time}" for name, time in pairs]


def _write_run(run: Run, report: Report, folder: Path) -> tuple[str, ...]:
    """Write the report and the raw files; returns the names of those."""
    made = {
        name: text.encode()
        for form in _FORMATS
        for name, text in load_format(form).files(report).items()
    }
    with folder_errors(folder):
        places = [run.folder / name for name in _RAW]
        raw = {place.name: place.read_bytes() for place in places if place.is_file()}
    raw[HEADER] = without_password(raw[HEADER].decode()).encode()
    write_files(folder, made | raw)
    return tuple(raw)


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


def run_rows(run: RunMetrics, number: int, num_tasks: int = 0) -> Iterator[SiteRow]:
    """The rows of a run at one load: each task, then their mean.

    A mean over fewer than `num_tasks` is called so, and has no place beside those of other runs.
    """
    info = run.info
    for temperature, method in product(run.temperatures, run.methods):
        cells = {task: run.cell(method, temperature, task) for task in run.tasks}
        done = [any(run.cell(m, temperature, t).num_done for m in run.methods) for t in run.tasks]
        is_whole = sum(done) >= num_tasks
        mean = MEAN if is_whole else f"{MEAN} of {sum(done)} of {num_tasks} tasks"
        if len(cells) > 1:
            overall = run.overall[method, temperature]
            rate = overall.partial or overall.pooled.tokens_per_s
            cells[results.MEAN] = replace(
                overall.pooled, speedup=overall.speedup, mat=overall.mat, tokens_per_s=rate
            )
        for task, cell in cells.items():
            if not cell.num_done:
                continue
            p_value = results.p_value_of(run, CellKey(method, temperature, task))
            yield SiteRow(
                machine=info.hardware_name,
                model=facts.model_label(info).partition(_SERVED)[0],
                engine=engine_name(info),
                method=info.method(method).label,
                task=mean if task == results.MEAN else info.task_title(task),
                temperature=temperature,
                speedup=cell.speedup,
                mat=cell.mat,
                tokens_per_s=cell.tokens_per_s,
                is_claimed=is_claimed(p_value),
                is_alone=is_alone(cell.speedup, p_value),
                num_samples=cell.num_samples,
                threads=info.cpu_threads,
                run=number,
            )


def published_rows() -> Iterator[SiteRow]:
    """Every published value."""
    models, cards = known_models(), load_cards().values()
    titles = {task.name: task.title for card in cards for task in card.tasks}
    titles |= {card.name: card.title for card in cards}  # of a suite: of all its questions
    for value in published_values():
        model = models.get(value.model)
        yield SiteRow(
            machine=value.table.known_hardware or "not stated",
            model=model.title if model else value.model,
            engine="published",
            method=registry.get(value.method).title,
            task=MEAN if value.task == "mean" else titles.get(value.task, value.task),
            temperature=value.temperature,
            speedup=Estimate(value.speedup),
            mat=NOT_PUBLISHED if value.mat is None else Estimate(value.mat),
            source=value.publication.name,
            url=value.publication.url,
        )


def engine_name(info: RunHeader) -> str:
    """The engine with its version, and its load: "vLLM 0.32.0, 8 requests at once"."""
    loads = [load.text for load in loads_of(info.spec.values) if load != Load()]
    software = dict.fromkeys(server.software_phrase for server in info.servers.values())
    return ", ".join([*(software or ["specbench"]), *loads])
