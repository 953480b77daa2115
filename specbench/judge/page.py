"""Write a site about many runs: a page, and the report and raw samples of each run.

A row of the page has the numbers of a method on a task, from a run or a paper, and all values that
the filters use.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from specbench import registry
from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.ranking import is_alone, is_claimed
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.data.tasks import load_cards
from specbench.errors.guards import os_errors
from specbench.errors.safe_text import without_password
from specbench.judge.checks import CheckedRun
from specbench.judge.files import check_files
from specbench.judge.page_values import plain_values
from specbench.log.audit import AUDIT
from specbench.log.folders import readable_runs, single_runs
from specbench.log.header import RunHeader
from specbench.log.run import Load, Run, loads_of
from specbench.log.store import HEADER, SAMPLES, read_run
from specbench.models.cards import known_models
from specbench.report import facts, results
from specbench.report.build import make_report, write_files
from specbench.report.commands import full_command
from specbench.report.export import load_format
from specbench.report.export.html import page_template
from specbench.report.published import published_values
from specbench.report.results import Report

_FORMATS = ("html", "json", "csv")
_RAW = (HEADER, SAMPLES, f"{SAMPLES}.gz", AUDIT)
MEAN = results.MEAN_TITLE
NOT_PUBLISHED = Missing("not published")
NOT_SERVED = Missing("given only for servers, over all tasks")
_SERVED = ", served by "
"""Text before the engine in the title of a served model. A row has a field for the engine."""


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A method on a task of a run, or in a published table."""

    machine: str
    model: str
    engine: str
    method: str
    task: str
    temperature: float
    speedup: Value
    mat: Value
    tokens_per_s: Value = NOT_PUBLISHED
    """Tokens/s of one request."""
    throughput: Value = NOT_SERVED
    """Output tokens/s of all requests to a server, over all tasks."""
    throughput_ratio: Value = NOT_SERVED
    """`throughput` / the throughput of vanilla's server."""
    is_claimed: bool = False
    """The speedup differs significantly from 1."""
    is_alone: bool = False
    """The speedup differs from 1 on its own, but not after correcting for all tests."""
    num_samples: int | None = None
    """Number of prompts that the numbers cover."""
    threads: int | None = None
    """Number of CPU threads, which is a setting of the run."""
    run: int | None = None
    """The number of the run on the page; None for a published row."""
    source: str = ""
    """The publication of a published row."""
    url: str = ""
    """The address of the publication."""


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A run on the page."""

    folder: str
    """The folder of its files, relative to the page."""
    label: str
    """The run in words: model, machine and name."""
    header: RunHeader
    checked: CheckedRun
    """The checks of the run's files."""
    raw: tuple[str, ...]
    """The names of the run's raw files in the folder."""


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
        out: the folder. Files of an earlier site in it are replaced.
        bootstrap: the draws of the intervals; None for the default.
        say: receives a line per run, and the reason if a run cannot be read.

    Raises:
        RunFolderError: no run can be read, or the folder cannot be written.
    """
    # Each run of a pool is a run here. Wrong lines are left out. The checks of files name them.
    stored_runs = readable_runs(single_runs(paths), partial(read_run, is_lenient=True), say)
    stored_runs.sort(key=lambda run: run.header.created)
    num_tasks = max(len(run.header.columns) for run in stored_runs)  # most tasks, one per column
    runs: list[SiteRun] = []
    rows: list[SiteRow] = []  # a row per method and task of a run, then of papers
    for run_number, (stored_run, run_folder) in enumerate(
        zip(stored_runs, _folders(stored_runs), strict=True)
    ):
        say(f"{run_number + 1} of {len(stored_runs)}: {stored_run.folder}")
        report = make_report(stored_run, bootstrap, sort="speedup")
        for run_at_load in report.sources:  # one per load: requests at once, or per second
            rows += run_rows(run_at_load.metrics, run_number, num_tasks)
        raw_names = _write_run(stored_run, report, out / run_folder)
        header = stored_run.header
        label = f"{facts.model_label(header)} on {header.hardware_name}, {header.id}"
        checked = check_files(stored_run.folder)
        runs.append(SiteRun(run_folder, label, header, checked, raw=raw_names))
    rows += published_rows()
    page = page_template("site.html", __package__).render(
        runs=runs,
        facts=facts,  # functions that the template calls
        full_command=full_command,
        data={  # for the page's script
            "rows": [plain_values(row) for row in rows],
            "runs": [
                {
                    "folder": run.folder,
                    "eligible": run.checked.about["is_eligible"],  # for the leaderboard
                    "samples": next((name for name in run.raw if name.startswith(SAMPLES)), ""),
                }
                for run in runs
            ],
            "mean": MEAN,  # the title of rows of means over tasks
            # rows of papers have no run
            "num_machines": len({row.machine for row in rows if row.run is not None}),
        },
    )
    write_files(out, {"index.html": page.encode()})


def _folders(runs: Sequence[Run]) -> list[str]:
    """A folder for each run, named after the run. Runs of the same name are numbered."""
    folders = []
    num_seen = Counter[str]()
    for run in runs:
        name = run.folder.resolve().name
        num_seen[name] += 1
        folders.append(f"runs/{name}" if num_seen[name] == 1 else f"runs/{name}-{num_seen[name]}")
    return folders


def _write_run(run: Run, report: Report, folder: Path) -> tuple[str, ...]:
    """Write a run's report and raw files into a folder, and return the names of the raw files.

    The raw files are those in `_RAW` that exist: the header, the records and the audit.

    Raises:
        UserError: the run cannot be read, or the folder cannot be written.
    """
    report_files = {
        name: content.encode()
        for format_name in _FORMATS
        for name, content in load_format(format_name).files(report).items()
    }
    with os_errors(f"{run.folder} cannot be read", "Make it readable."):
        raw_paths = [run.folder / name for name in _RAW]
        raw_files = {file.name: file.read_bytes() for file in raw_paths if file.is_file()}
    # Addresses of servers in the header may contain a password.
    raw_files[HEADER] = without_password(raw_files[HEADER].decode()).encode()
    write_files(folder, report_files | raw_files)
    return tuple(raw_files)


def run_rows(run: RunMetrics, number: int, num_tasks: int = 0) -> Iterator[SiteRow]:
    """The rows of a run at one load. Each temperature and method has a row per task, and one for
    the mean over several tasks. There is no row without measured answers.

    `number` is the run's number on the page. `num_tasks` is the largest number of tasks of any run.
    A mean over fewer tasks has another title, since it cannot be compared with other means.
    """
    header = run.info
    model = facts.model_label(header).partition(_SERVED)[0]  # without "served by ENGINE"
    for temperature, method in product(run.temperatures, run.methods):
        mean_title = _mean_title(run, temperature, num_tasks)
        cells = _cells(run, method, temperature)
        for task, cell in cells.items():
            is_over_all = task == [*cells][-1]  # the mean over tasks, or the only task
            # a server's throughput over all tasks; None for one of several tasks, or no server
            serving = run.serving.get((method, temperature)) if is_over_all else None
            if not cell.num_done:  # nothing was measured
                continue
            p_value = results.p_value_of(run, CellKey(method, temperature, task))
            yield SiteRow(
                machine=header.hardware_name,
                model=model,
                engine=engine_name(header),
                method=header.method(method).label,
                task=mean_title if task == results.MEAN else header.task_title(task),
                temperature=temperature,
                speedup=cell.speedup,
                mat=cell.mat,
                tokens_per_s=cell.tokens_per_s,
                throughput=serving.output_throughput if serving else NOT_SERVED,
                throughput_ratio=serving.throughput_ratio if serving else NOT_SERVED,
                is_claimed=is_claimed(p_value),
                is_alone=is_alone(cell.speedup, p_value),
                num_samples=cell.num_samples,
                threads=header.cpu_threads,
                run=number,
            )


def _cells(run: RunMetrics, method: str, temperature: float) -> dict[str, CellMetrics]:
    """Task -> a method's cell. If there are several tasks, the last cell is that of their mean.

    If the method lacks tasks, the mean of tokens/s is missing, and `partial` is the reason.
    """
    cells = {task: run.cell(method, temperature, task) for task in run.tasks}
    if len(cells) > 1:
        overall = run.overall[method, temperature]
        cells[results.MEAN] = replace(
            overall.pooled,
            speedup=overall.speedup,
            mat=overall.mat,
            tokens_per_s=overall.partial or overall.pooled.tokens_per_s,
        )
    return cells


def _mean_title(run: RunMetrics, temperature: float, num_tasks: int) -> str:
    """The title of the mean over the tasks of a run.

    The title names the number of tasks if it is less than `num_tasks`, the largest number of any
    run.
    """
    tasks_with_answers = [
        task
        for task in run.tasks
        if any(run.cell(method, temperature, task).num_done for method in run.methods)
    ]
    num_done = len(tasks_with_answers)
    return MEAN if num_done >= num_tasks else f"{MEAN} of {num_done} of {num_tasks} tasks"


def published_rows() -> Iterator[SiteRow]:
    """A row for each published speedup, with the titles of model and task if they are known.

    Other numbers, such as tokens per second of an imported table, are not on the page.
    """
    models_by_name = known_models()
    cards = load_cards().values()  # each describes a task, or a suite of several tasks
    task_titles = {task.name: task.title for card in cards for task in card.tasks}
    # The name of a suite stands for all its questions.
    task_titles |= {card.name: card.title for card in cards}
    method_titles = {name: registry.get(name).title for name in registry.names()}
    for published in published_values():
        if published.speedup is None:
            continue
        model = models_by_name.get(published.model)  # a card, or None
        task = published.task  # a name; "mean" is the mean over the publication's tasks
        yield SiteRow(
            machine=published.table.known_hardware or "not stated",  # "" if unknown
            model=model.title if model else published.model,
            engine="published",
            method=method_titles.get(published.method, published.method),
            task=MEAN if task == "mean" else task_titles.get(task, task),
            temperature=published.temperature,
            speedup=_published(published.speedup),
            mat=_published(published.mat),
            source=published.publication.name,
            url=published.publication.url,
        )


def _published(number: float | None) -> Value:
    return NOT_PUBLISHED if number is None else Estimate(number)


def engine_name(header: RunHeader) -> str:
    """The engine with its version and its load, such as "vLLM 0.32.0, 8 requests at once"."""
    loads = [load.text for load in loads_of(header.spec.values) if load != Load()]
    software = dict.fromkeys(server.software_phrase for server in header.servers.values())
    return ", ".join([*(software or ["specbench"]), *loads])
