"""The rows of the page: a number of a run, or of a paper, with everything it is filtered by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from specbench import registry
from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.ranking import is_alone, is_claimed
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.data.tasks import TaskCard, load_cards
from specbench.log.header import RunHeader
from specbench.log.run import Load, loads_of
from specbench.models.cards import known_models
from specbench.report import facts, results
from specbench.report.published import published_values

MEAN = results.MEAN_TITLE
NOT_PUBLISHED = Missing("not published")
OWN_ENGINE = "specbench"
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
    models, cards = known_models(), load_cards()
    for value in published_values():
        model = models.get(value.model)
        yield SiteRow(
            machine=value.table.known_hardware or "not stated",
            model=model.title if model else value.model,
            engine="published",
            method=registry.get(value.method).title,
            task=MEAN if value.task == "mean" else _task_title(value.task, cards),
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
    return ", ".join([*(software or [OWN_ENGINE]), *loads])


def _task_title(name: str, cards: Mapping[str, TaskCard]) -> str:
    """The title of a task as runs have it; a suite's own is that of all its questions."""
    if card := cards.get(name):
        return card.title
    known = {task.name: task.title for card in cards.values() for task in card.tasks}
    return known.get(name, name)
