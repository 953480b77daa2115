"""Write a report as one HTML page that needs no network and no other file.

This module gathers the content of the page. The words and the look are in `templates/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from string import punctuation
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from specbench.analysis.columns import value_or_none
from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate
from specbench.report import commands, facts, formats, sections, task_tables
from specbench.report.answers import SAMPLES_PER_TASK, Answers
from specbench.report.export import json
from specbench.report.published import PublishedValue, find
from specbench.report.results import Block, MethodResults, Report, RunResults, Source, TaskResult

if TYPE_CHECKING:
    from jinja2 import Template

_SAFE = " " + "".join(set(punctuation) - set('%#"'))
"""Characters that are not escaped in a data URI."""
_SHOWN_ABOVE = ("Machine", "Software", "Run", "Lossless")
"""Labels of notes that are shown elsewhere on the page."""
_WHOLE = re.compile(r"(?<![\w-])(?:--[a-z][\w-]*|[A-Z]\w*-\w+)|[+-]?\d[\d.]* %")
"""Matches an option of the command line, a name such as "EAGLE-2", or a percentage."""
_SETTINGS = re.compile(r"(?P<name>.+?) \((?P<settings>.+)\)(?P<star>\*?)")
"""Matches a method's label with its settings in parentheses."""
_BETWEEN = re.compile(r"(?<=[,;]) ")
"""Matches the blank between two settings."""
_COLOURS = {"good": "green", "bad": "red", "unsure": "yellow"}


def render(report: Report) -> str:
    """Return the HTML of the page."""
    return page_template("report.html").render(
        report=report,
        categories=task_tables.by_category(report),
        digest=json.digest(json.render(report)),
        warnings=[note.text for note in report.notes if note.is_warning],
        definitions=[
            note
            for note in report.later_notes
            if not note.is_warning and note.label not in _SHOWN_ABOVE
        ],
        highlights=_highlights(report),
        tables=lambda block: sections.tables(report, block, task_tables.mean_first(report, block)),
        published=list(_published(report)),
        pictures=[(plot, _address(plot.images.svg)) for plot in report.plots],
        samples_per_task=SAMPLES_PER_TASK,
        answers=lambda source: _answers(report, source),
        replays=_replays(report),
        colour=lambda cell: _COLOURS.get(cell.tone, ""),
        commands=commands,
        facts=facts,
        formats=formats,
    )


def page_template(name: str, package: str = __package__) -> Template:
    """Return a template of a page from a package's `templates/`. It extends `base.html`."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = dict.fromkeys((package, __package__))
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": _prose, "label": _label}
    return environment.get_template(name)


def _prose(text: str) -> str:
    """Return a sentence as HTML.

    Texts in backticks become code. Options and names are not broken after a hyphen.
    """
    from jinja2.filters import do_mark_safe

    html = _WHOLE.sub(r'<span class="whole">\g<0></span>', escape(text, quote=False))
    return do_mark_safe(re.sub("`([^`]+)`", r"<code>\1</code>", html))


def _label(label: str) -> str:
    """Return a method's name with a small second line of settings, which breaks between them."""
    from jinja2.filters import do_mark_safe

    text = escape(label, quote=False)
    if match := _SETTINGS.fullmatch(text):
        # A setting is not broken if it fits on a line.
        settings = " ".join(f"<span>{part}</span>" for part in _BETWEEN.split(match["settings"]))
        text = f'{match["name"]}{match["star"]} <span class="settings">{settings}</span>'
    return do_mark_safe(f'<span class="label">{text}</span>')


def files(report: Report) -> Mapping[str, str]:
    """Return the page as `report.html`."""
    return {"report.html": render(report)}


def _address(svg: bytes) -> str:
    """Return the picture as a data URI in text, which is smaller than base64."""
    text = quote(" ".join(svg.decode().split()), safe=_SAFE)
    return f"data:image/svg+xml;charset=utf-8,{text}"


def _replays(report: Report) -> list[dict[str, Any]]:
    """Return the samples that the page replays. If there are several runs, titles begin with the
    run.
    """
    return [
        answers.replay("" if report.is_one_run else f"{source.label}: ")
        for source in report.sources
        for answers in _answers(report, source)
        if answers.done
    ]


def _answers(report: Report, source: Source) -> list[Answers]:
    """Return the answers of a run, with the methods in the order of the tables."""
    labels = [source.info.method(method).label for method in report.methods_of(source)]
    return [answers.in_order(labels) for answers in source.answers]


@dataclass(frozen=True, slots=True)
class Highlight:
    """A number to show at the top of the page."""

    title: str
    """The name of the number, such as "Highest speedup"."""
    number: str
    """The number as text."""
    words: str
    """The interval or the unit, which is below the number."""
    label: str = ""
    """The label of the method, or ""."""


def _highlights(report: Report) -> list[Highlight]:
    """Return the numbers at the top: highest speedup, highest MAT, vanilla's speed, and samples.

    The list is empty for several runs or temperatures. An `Estimate` is a number that is not
    missing.
    """
    if not report.is_one_run or len(report.blocks) != 1:  # there is a block for each temperature
        return []
    methods = report.blocks[0].methods  # the results of each method
    drafting = [method for method in methods if method.method != BASELINE]  # all but vanilla
    highlights: list[Highlight] = []
    fastest = max(drafting, key=_speedup, default=None)
    # `overall` has the means over tasks.
    if fastest and isinstance(speedup := fastest.overall.speedup, Estimate):
        interval = formats.interval_of(speedup)  # None if it is not shown
        # `report.scope` says what intervals cover, such as "over prompts and 3 passes".
        interval_text = f"{formats.ends(interval)} ({report.scope})" if interval else ""
        title = "Highest speedup" if speedup.value > 1 else "Closest to vanilla"
        number = formats.speedup(speedup)
        highlights.append(Highlight(title, number, interval_text, fastest.label))
    most_accepting = max(drafting, key=_mat, default=None)  # the method with the highest MAT
    if most_accepting and isinstance(mat := most_accepting.overall.mat, Estimate):
        number = formats.mat(mat)
        highlights.append(Highlight("Most tokens per step", number, "", most_accepting.label))
    # `pooled` has the numbers over all tasks together.
    vanilla_cells = (method.overall.pooled for method in methods if method.method == BASELINE)
    vanilla = next(vanilla_cells, None)  # None if vanilla did not run
    if vanilla and vanilla.num_done:  # completions that were measured
        highlights.append(Highlight("Vanilla", formats.rate(vanilla.tokens_per_s), "tokens/s"))
        num_tasks = len(report.sources[0].metrics.tasks)  # there is only one run
        tasks_text = "1 task" if num_tasks == 1 else f"{num_tasks} tasks"
        highlights.append(Highlight("Samples", str(vanilla.num_samples), tasks_text))
    return highlights


def _speedup(method: MethodResults) -> float:
    return value_or_none(method.overall.speedup) or 0.0


def _mat(method: MethodResults) -> float:
    return value_or_none(method.overall.mat) or 0.0


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A measured result and a published value for the same method, task and temperature."""

    label: str
    """The method and its temperature, and the run if there are several."""
    task: str
    """The title of the task."""
    measured: TaskResult
    """Our result."""
    published: PublishedValue
    """The published value."""


def _published(report: Report) -> Iterable[PublishedRow]:
    """Yield a row for each published value of a cell of the report.

    A stand-in has none, because it does not have the weights of the published model.
    """
    for block in report.blocks:
        for run in block.runs:
            if run.source.info.model.is_stand_in:
                continue
            for method in run.methods:
                yield from _published_of(report, block, run, method)


def _published_of(
    report: Report, block: Block, run: RunResults, method: MethodResults
) -> Iterable[PublishedRow]:
    """Yield a row for each published value of a method, in the order of the tasks."""
    label = f"{method.label}, T={block.temperature:g}"
    if not report.is_one_run:
        label += f", {run.source.label}"
    model = run.source.info.model.name
    for task, measured in zip(report.tasks, method.tasks, strict=True):
        for published in find(model, method.method, task.name, block.temperature):
            yield PublishedRow(label, task.title, measured, published)
