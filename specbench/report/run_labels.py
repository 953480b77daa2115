"""Make a distinct label for each run of a report from the differences between the runs."""

from collections import Counter
from collections.abc import Iterator, Sequence

from specbench.log.header import RunHeader
from specbench.log.options import options
from specbench.log.spec import SpecValues
from specbench.report import facts

_IN_TABLES = {"model", "methods", "temperatures", "labels", "urls", "concurrency", "request_rates"}
"""Options that tables or the texts of loads show."""


def run_labels(headers: Sequence[RunHeader], loads: Sequence[str] = ()) -> list[str]:
    """A distinct label for each run: its model, if models differ, and as many facts as needed.

    `loads` are the texts of the runs' loads.
    """
    models = [facts.model_label(header) for header in headers]
    labels = models if len(set(models)) > 1 else [""] * len(models)
    for facet in _facets(headers, loads):
        if len(set(facet)) > 1:
            labels = _with_facet(labels, facet)
    return [label or model for label, model in zip(labels, models, strict=True)]


def _facets(headers: Sequence[RunHeader], loads: Sequence[str]) -> Iterator[list[str]]:
    """Facts that may distinguish the runs, the clearest first. Each has a text per run."""
    yield [header.device_phrase.partition(",")[0] for header in headers]
    yield [header.model.precision for header in headers]
    if loads:
        yield [*loads]
    yield from _options(headers)
    yield [f"run {header.id}" for header in headers]


def _with_facet(labels: Sequence[str], facet: Sequence[str]) -> list[str]:
    """The labels, with a fact added to those that several runs share. `facet` has it per run."""
    num_runs = Counter(labels)
    longer = []
    for label, text in zip(labels, facet, strict=True):
        if num_runs[label] == 1:
            longer.append(label)
        else:
            longer.append(", ".join(filter(None, (label, text))))
    return longer


def _options(headers: Sequence[RunHeader]) -> Iterator[list[str]]:
    """For each option that tables do not show, its text in each run, such as "--limit 5"; empty if
    it has no value.
    """
    for option in options(SpecValues):
        settings = [getattr(header.spec.values, option.name) for header in headers]
        if option.name == "tasks":
            yield [_tasks_text(tasks) for tasks in settings]
        elif option.name not in _IN_TABLES:
            written = [option.write(setting).rpartition("/")[2] for setting in settings]
            yield ["" if text in ("", "None") else f"{option.flag} {text}" for text in written]


def _tasks_text(tasks: Sequence[str]) -> str:
    return f"{len(tasks)} tasks" if len(tasks) > 2 else ", ".join(tasks)
