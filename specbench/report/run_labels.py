"""Make a distinct label for each run of a report from the differences between the runs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from specbench.log.header import RunHeader
from specbench.log.options import Option, options
from specbench.log.spec import SpecValues
from specbench.report import facts

_IN_TABLES = {"model", "methods", "temperatures", "labels", "urls", "concurrency", "request_rates"}
"""Options that tables or the texts of loads show."""


def run_labels(headers: Sequence[RunHeader], loads: Sequence[str]) -> list[str]:
    """Return a distinct label for each run, with as many facts as are needed.

    A label begins with the model if the models differ. `loads` has a text per run, such as
    "8 requests at once", which may be empty.
    """
    models = [facts.model_label(header) for header in headers]
    labels = models if len(set(models)) > 1 else [""] * len(models)
    facts_of_runs = [
        _facts(header, load_text)  # the same facts of every run, in the same order
        for header, load_text in zip(headers, loads, strict=True)
    ]
    for texts in zip(*facts_of_runs, strict=True):  # a fact, with a text per run
        if len(set(texts)) > 1:
            labels = _longer_labels(labels, texts)
    return [label or model for label, model in zip(labels, models, strict=True)]


def _facts(header: RunHeader, load_text: str) -> list[str]:
    """Return texts of facts that may distinguish a run from others, the clearest first.

    They include all options that tables do not show. An option without a value has an empty text.
    """
    texts = [header.device_phrase.partition(",")[0], header.model.precision, load_text]
    for option in options(SpecValues):
        setting = getattr(header.spec.values, option.name)
        if option.name == "tasks":
            texts.append(_tasks_text(setting))
        elif option.name not in _IN_TABLES:
            texts.append(_option_text(option, setting))
    return [*texts, f"run {header.id}"]


def _tasks_text(tasks: Sequence[str]) -> str:
    return f"{len(tasks)} tasks" if len(tasks) > 2 else ", ".join(tasks)


def _option_text(option: Option, setting: Any) -> str:
    """Return an option with its value, such as "--limit 5", or "" if it has no value."""
    value_text = option.write(setting)
    is_one_word = not {*value_text} & {*' "{'}
    if is_one_word:
        value_text = value_text.rpartition("/")[2]  # a path without its folder
    if value_text in ("", "None"):
        return ""
    return f"{option.flag} {value_text}"


def _longer_labels(labels: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return the labels of the runs, with a fact added to each label that several runs share.

    `texts` has the text of the fact in each run.
    """
    num_runs = Counter(labels)  # by label
    longer_labels = []
    for label, text in zip(labels, texts, strict=True):
        is_shared = num_runs[label] > 1
        if is_shared and label and text:
            longer_labels.append(f"{label}, {text}")
        elif is_shared:
            longer_labels.append(label or text)
        else:
            longer_labels.append(label)
    return longer_labels
