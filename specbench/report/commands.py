"""Write the command of a run as the user typed it, or with every setting written out."""

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
"""The largest number of characters in a line."""


def typed_command(info: RunHeader) -> str:
    """Return the command as the user typed it, or "" if it is unknown."""
    return shlex.join(["specbench", *info.command]) if info.command else ""


def full_command(info: RunHeader) -> str:
    """Return the command that repeats a run: "specbench run" with all settings that are not off.

    Default values are written too, since a later version may change them. `--until-ci` is left out,
    because the settings of a complete run have the number of passes that were made. For an imported
    run, this is the command that the user typed, or "" if it is unknown.
    """
    if info.imported:
        return typed_command(info)
    spec = info.spec.values  # the settings in effect
    # The settings that the user asked for, with defaults filled in. If that is unknown, the
    # settings in effect.
    asked = info.spec.asked or spec
    # A card TASK.toml defines the task TASK, or its sub-tasks TASK/NAME.
    cards = [name for name in asked.tasks if name.endswith(".toml")]  # paths of the cards
    tasks_of_cards = {Path(card).stem for card in cards}
    tasks = [task for task in spec.tasks if task.partition("/")[0] not in tasks_of_cards]
    # The settings to write. The template is as the user gave it, since `spec` has the name that
    # `auto` chose. Cards are added below, so the tasks are only those that no card defines.
    written_spec = structs.replace(spec, template=asked.template, tasks=tuple(tasks))
    # field -> arguments, for options that are not just a flag and its value. For example, a server
    # has "--url URL --label NAME". An option with an empty list is left out.
    special_arguments = _special_arguments(spec)
    arguments: list[str] = []  # each is a flag with its value
    for option in options(SpecValues):  # `name` is a field of the settings
        if option.name in special_arguments:
            arguments += special_arguments[option.name]
        else:
            # empty if the option is unset or off
            arguments += _arguments(option, getattr(written_spec, option.name))
        if option.name == "tasks":
            arguments += [f"--task {shlex.quote(card)}" for card in cards]
    return _wrapped(arguments)


def _special_arguments(spec: SpecValues) -> dict[str, list[str]]:
    """Map fields to arguments, for options that are not just a flag and its value."""
    is_plain_server = spec.backend and not spec.serving_engine  # --engine implies the backend
    server_flags = [
        f"--url {shlex.quote(url)} --label {shlex.quote(label)}"
        for url, label in zip(spec.urls, spec.labels or ("server",), strict=False)
    ]
    limit_order = [f"--limit-order {spec.limit_order}"] if spec.limit else []
    return {
        "limit_order": limit_order,
        "methods": [] if spec.urls else _methods(spec),
        "until_ci": [],
        "is_baseline_run": [] if spec.is_baseline_run else ["--no-baseline"],
        "backend": ["--backend server"] if is_plain_server else [],
        "urls": server_flags,
        "labels": [],
    }


def _methods(spec: SpecValues) -> list[str]:
    """Return the flags that name the methods of a run in order, such as "--method sps,eagle2".

    A method with options, such as "pld:ngram=2", has a flag of its own, since options may have
    commas. Adjacent methods without options share a flag.
    """
    methods = list(spec.methods)  # spellings, options included
    # Vanilla (`BASELINE`) runs without being named, unless `--no-baseline` was given or no other
    # method runs.
    if spec.is_baseline_run and methods != [BASELINE]:
        methods = [method for method in methods if method != BASELINE]
    arguments: list[str] = []  # each is a method, or several methods separated by commas
    for has_options, group in groupby(methods, key=_has_options):
        neighbours = list(group)  # adjacent methods that all have options, or all have none
        arguments += neighbours if has_options else [",".join(neighbours)]
    return [f"--method {shlex.quote(argument)}" for argument in arguments]


def _has_options(method: str) -> bool:
    return ":" in method


def _arguments(option: Option, setting: Any) -> list[str]:
    """Return the flag of an option with its value, or no arguments if it is unset or off."""
    if option.item is bool:
        return [option.flag] if setting else []
    is_off = option.name == "top_k" and setting == 0
    if setting in (None, "", ()) or is_off:
        return []
    return [f"{option.flag} {shlex.quote(option.write(setting))}"]


def _wrapped(arguments: Iterable[str]) -> str:
    """Return the command "specbench run", broken into lines of up to `_WIDTH` characters.

    All lines but the last end in a blank and a backslash, which do not count towards the width, and
    all lines but the first are indented. An argument is a flag with its value, such as "--dataset
    mt_bench", and is never broken. If it is too long, it has a line of its own.
    """
    lines = ["specbench run"]
    for argument in arguments:
        if len(lines[-1]) + len(" ") + len(argument) <= _WIDTH:
            lines[-1] += f" {argument}"
        else:
            lines.append(f"  {argument}")
    return " \\\n".join(lines)
