"""The command of a run: as the user typed it, and with every setting written out."""

import shlex
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import structs

from specbench.analysis.metrics import BASELINE
from specbench.log.header import RunHeader
from specbench.log.options import Option, options
from specbench.log.spec import SpecValues

_WIDTH = 88
"""Characters of a line."""


def typed_command(info: RunHeader) -> str:
    """The command as the user typed it; empty if unknown."""
    return shlex.join(["specbench", *info.command]) if info.command else ""


def full_command(info: RunHeader) -> str:
    """The command with every setting written out, so that no default can change it.

    The number of passes is the one that was taken, so that `--until-ci` is left out.
    """
    values = info.spec.values
    asked = info.spec.asked or values
    cards = [name for name in asked.tasks if name.endswith(".toml")]
    tasks_of_cards = {Path(card).stem for card in cards}
    tasks = [task for task in values.tasks if task.partition("/")[0] not in tasks_of_cards]
    written = structs.replace(values, template=asked.template, tasks=tuple(tasks))
    words_of_option = _words_of_special_options(values)
    words = ["specbench run"]
    for option in options(SpecValues):
        if option.name in words_of_option:
            words += words_of_option[option.name]
        else:
            words += _words(option, getattr(written, option.name))
        if option.name == "tasks":
            words += [f"--task {shlex.quote(card)}" for card in cards]
    return _wrapped(words)


def _words_of_special_options(values: SpecValues) -> dict[str, list[str]]:
    """The words of the options that are not written as a flag and its value, by field."""
    is_plain_server = values.backend and not values.serving_engine
    urls = [
        f"--url {shlex.quote(url)} --label {shlex.quote(label)}"
        for url, label in zip(values.urls, values.labels or ("server",), strict=False)
    ]
    return {
        "methods": [] if values.urls else _methods(values),
        "until_ci": [],
        "is_baseline_run": [] if values.is_baseline_run else ["--no-baseline"],
        "backend": ["--backend server"] if is_plain_server else [],
        "urls": urls,
        "labels": [],
    }


def _methods(values: SpecValues) -> list[str]:
    """The methods in their order: one with options for itself, others with their neighbours."""
    methods = list(values.methods)
    if values.is_baseline_run and methods != [BASELINE]:
        methods = [method for method in methods if method != BASELINE]  # it runs by default
    words: list[str] = []
    for has_options, group in groupby(methods, key=_has_options):
        neighbours = list(group)
        words += neighbours if has_options else [",".join(neighbours)]
    return [f"--method {shlex.quote(word)}" for word in words]


def _has_options(method: str) -> bool:
    return ":" in method


def _words(option: Option, setting: Any) -> list[str]:
    """The flag with its value; nothing if it has none, or is off."""
    if option.item is bool:
        return [option.flag] if setting else []
    is_unset = setting in (None, "", ())
    is_off = option.name == "top_k" and not setting
    if is_unset or is_off:
        return []
    return [f"{option.flag} {shlex.quote(option.write(setting))}"]


def _wrapped(words: Iterable[str]) -> str:
    """The words on as few lines as they need, joined by backslashes."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= _WIDTH:
            lines[-1] += f" {word}"
        elif lines:
            lines.append(f"  {word}")
        else:
            lines.append(word)
    return " \\\n".join(lines)
