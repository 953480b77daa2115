"""Show the command of a run: as the user typed it, and with every setting written out."""

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
"""The most characters of a line."""


def typed_command(info: RunHeader) -> str:
    """The command as the user typed it; empty if unknown."""
    return shlex.join(["specbench", *info.command]) if info.command else ""


def full_command(info: RunHeader) -> str:
    """The command that repeats a run: "specbench run" with every setting that is not off.

    Settings with default values are written, too, since a later version may change a default. For
    an imported run, the command is as the user typed it, and empty if unknown. `info` is the header
    of the run. The settings of a complete run have the number of passes that were run, so
    `--until-ci` (passes until intervals are narrow) is left out.
    """
    if info.imported:
        return typed_command(info)
    spec = info.spec.values  # the settings in effect
    # The settings that the user asked for, with defaults filled in; if unknown, those in effect.
    asked = info.spec.asked or spec
    # A card TASK.toml defines the task TASK, or its sub-tasks TASK/NAME.
    cards = [name for name in asked.tasks if name.endswith(".toml")]  # paths of the cards
    tasks_of_cards = {Path(card).stem for card in cards}
    tasks = [task for task in spec.tasks if task.partition("/")[0] not in tasks_of_cards]
    # The settings to write. The template is as the user gave it, since `spec` has the name that
    # `auto` chose. Cards are added below, so the tasks are only those that no card defines.
    written_spec = structs.replace(spec, template=asked.template, tasks=tuple(tasks))
    # By field of the settings, the arguments of options that are not a flag with its value. For
    # example, a server is "--url URL --label NAME". An empty list leaves the option out.
    special_arguments = _special_arguments(spec)
    arguments: list[str] = []  # each element is a flag with its value
    for option in options(SpecValues):  # declared options; `name` is the field of the settings
        if option.name in special_arguments:
            arguments += special_arguments[option.name]
        else:
            # A flag with its value, or no arguments if the option is unset or off.
            arguments += _arguments(option, getattr(written_spec, option.name))
        if option.name == "tasks":
            arguments += [f"--task {shlex.quote(card)}" for card in cards]
    return _wrapped(arguments)


def _special_arguments(spec: SpecValues) -> dict[str, list[str]]:
    """The arguments of options that are not written as a flag and its value, by field."""
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
    """The flags with arguments for the methods of a run, in order, such as "--method sps,eagle2".

    A method with options ("pld:ngram=2") has a separate argument, since options may have commas.
    Neighbours without options share an argument.
    """
    methods = list(spec.methods)  # spellings, options included
    # Vanilla (`BASELINE`) runs without being named, unless `--no-baseline` was given or no other
    # method runs.
    if spec.is_baseline_run and methods != [BASELINE]:
        methods = [method for method in methods if method != BASELINE]
    arguments: list[str] = []  # each a method, or several methods separated by commas
    for has_options, group in groupby(methods, key=_has_options):
        neighbours = list(group)  # methods in a row that all have options, or all have none
        arguments += neighbours if has_options else [",".join(neighbours)]
    return [f"--method {shlex.quote(argument)}" for argument in arguments]


def _has_options(method: str) -> bool:
    return ":" in method


def _arguments(option: Option, setting: Any) -> list[str]:
    """The flag of an option with its value, or no arguments if the option is unset or off."""
    if option.item is bool:
        return [option.flag] if setting else []
    is_off = option.name == "top_k" and setting == 0
    if setting in (None, "", ()) or is_off:
        return []
    return [f"{option.flag} {shlex.quote(option.write(setting))}"]


def _wrapped(arguments: Iterable[str]) -> str:
    """The command "specbench run", broken into lines of up to `_WIDTH` characters.

    All lines except the last end in a blank and a backslash, which do not count. Lines after the
    first are indented. An argument is a flag with its value, such as "--task mtbench", and stays on
    one line. If it is too long, it has a line of its own.
    """
    lines = ["specbench run"]
    for argument in arguments:
        if len(lines[-1]) + len(" ") + len(argument) <= _WIDTH:
            lines[-1] += f" {argument}"
        else:
            lines.append(f"  {argument}")
    return " \\\n".join(lines)
