"""Suites of runs, and the recipes that describe them.

A recipe is a TOML file:

title = "EAGLE-2 on two models"

[values]                         # for every run, by the names that `specbench.run` takes
temperatures = [0, 1]
methods = ["sps", "eagle2:depth=[3,5,7]"]

[[runs]]                         # one run for each of its models
models = ["vicuna-7b", "vicuna-13b"]
limit = 20                       # for these runs only
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specbench.data.toml_files import line_of, read_toml
from specbench.errors import UserError
from specbench.measure.spec import SPREAD, RunSpec, make_spec


class RecipeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a recipe's file."""

    title: str
    """The title of the report."""
    runs: tuple[dict[str, Any], ...]
    """The tables [[runs]], each with `models` and with values by name."""
    values: dict[str, Any] = {}
    """Values for every run, by the names that `specbench.run` takes."""


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A run of a suite."""

    name: str
    """The name of its folder."""
    spec: RunSpec
    """The specification of the run."""
    given: tuple[str, ...]
    """Names of the options that the user gave."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Several runs, in order, with one report."""

    name: str
    """The default name of its folder."""
    title: str
    """The title of the report."""
    runs: tuple[SuiteRun, ...]
    is_apart: bool = False
    """True if each run has a separate process, and all take the settings that the first run
    chose.
    """


def equal_runs(spec: RunSpec, given: Sequence[str], num_runs: int) -> Suite:
    """A suite of several runs with the same spec, each in a separate process."""
    runs = tuple(SuiteRun(f"run-{i}", spec, tuple(given)) for i in range(1, num_runs + 1))
    title = "1 run" if num_runs == 1 else f"{num_runs} runs"
    return Suite("runs", title, runs, is_apart=True)


def read_recipe(path: Path) -> Suite:
    """The suite of a recipe, which has a run for each model in each of its tables [[runs]].

    `path` is the recipe's TOML file.

    Raises:
        UserError: the file is unreadable, or a key or value is wrong. The message has the line
            if it is known.
    """
    recipe = read_toml(path, RecipeFile, what="Recipe", hint="docs/suites.md shows one.")
    runs: list[SuiteRun] = []
    for run_table in recipe.runs:
        # Arguments of `specbench.run` by name: the values for every run, overridden by those of the
        # table.
        arguments = {**recipe.values, **run_table}
        for model in _take_models(path, arguments):  # takes the models out of `arguments`
            # A `limit` takes prompts spread over a task, unless the recipe says otherwise.
            spec = _make_spec(path, {"limit_order": SPREAD, **arguments, "model": model})
            folder_name = _folder(len(runs) + 1, model)  # such as "01-tiny"
            # `given` has the names of the arguments.
            runs.append(SuiteRun(folder_name, spec, given=("model", *arguments)))
    if not runs:
        raise UserError(f"Recipe {path} has no [[runs]].", 'Add one with models = ["tiny"].')
    return Suite(name=path.stem, title=recipe.title, runs=tuple(runs))


def _take_models(path: Path, values: dict[str, Any]) -> list[str]:
    """Remove the models of a table [[runs]] from its values, and return them.

    Raises:
        UserError: the models are not a list of names.
    """
    models = values.pop("models", None)
    is_list = isinstance(models, list) and all(isinstance(model, str) for model in models)
    if not is_list or not models:
        raise UserError(
            f"Recipe {path}{_line_phrase(path, 'models', models)}: the models of [[runs]] are "
            f"{models!r}.",
            'Write models = ["vicuna-7b", "vicuna-13b"].',
        )
    return models


def _make_spec(path: Path, values: Mapping[str, Any]) -> RunSpec:
    """The spec of a run. An error's message has the recipe's line with the first wrong value.

    `path` is the recipe's file, for the message. `values` are the run's options by name.
    """
    try:
        return make_spec(**values)
    except UserError as error:
        # Empty if every value is right by itself.
        wrong_name = next((name for name, value in values.items() if _is_wrong(name, value)), "")
        line_phrase = _line_phrase(path, wrong_name, values.get(wrong_name))  # such as ", line 3"
        raise UserError(f"Recipe {path}{line_phrase}: {error.message}", error.hint) from error


def _is_wrong(name: str, value: Any) -> bool:
    """True if an option's value is wrong whatever the others are."""
    try:
        make_spec(**{name: value})
    except UserError:
        return True
    return False


def _line_phrase(path: Path, key: str, value: Any) -> str:
    """A phrase such as ", line 3" with the line of the recipe that sets a key to a value, or ""."""
    if not key:
        return ""
    line = line_of(path.read_text(encoding="utf-8"), key, value)
    return f", line {line}" if line else ""


def _folder(number: int, model: str) -> str:
    """The name of a run's folder, made of the run's number in the suite and its model."""
    model_name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name)
    return f"{number:02d}-{model_name}"
