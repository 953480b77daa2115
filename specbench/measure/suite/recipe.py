"""Recipes: TOML files that name the runs of a suite.

title = "EAGLE-2 on two models"

[values]                         # of every run, by the names that `specbench.run` takes
temperatures = [0, 1]
methods = ["sps", "eagle2:depth=[3,5,7]"]

[[runs]]                         # one run for each of its models
models = ["vicuna-7b", "vicuna-13b"]
limit = 20                       # for these only
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from specbench.data.toml_files import line_of, read_toml
from specbench.errors import UserError
from specbench.measure.spec import RunSpec, make_spec


class RecipeFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A recipe as it is written."""

    title: str
    runs: tuple[dict[str, Any], ...]
    values: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A run of a suite: the name of its folder, its values, and the names of those given."""

    name: str
    spec: RunSpec
    given: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """Runs in their order.

    With `is_apart`, each is a process of its own, with the settings that the first one chose.
    """

    name: str
    title: str
    runs: tuple[SuiteRun, ...]
    is_apart: bool = False


def equal_runs(spec: RunSpec, given: Sequence[str], number: int) -> Suite:
    """Several runs of one spec, each in a process of its own."""
    runs = (SuiteRun(f"run-{i}", spec, tuple(given)) for i in range(1, number + 1))
    return Suite("runs", f"{number} run{'s' * (number > 1)}", tuple(runs), is_apart=True)


def read_recipe(path: Path) -> Suite:
    """The suite of a recipe.

    Raises:
        UserError: the file is unreadable, or a key or value is wrong. The message has the line.
    """
    file = read_toml(path, RecipeFile, what="Recipe", hint="docs/suites.md shows one.")
    runs: list[SuiteRun] = []
    for table in file.runs:
        values = {**file.values, **table}
        models = values.pop("models", None)
        is_list = isinstance(models, list) and all(isinstance(m, str) for m in models)
        if not (is_list and models):
            raise UserError(
                f"Recipe {path}{_place(path, 'models', models)}: the models of [[runs]] are "
                f"{models!r}.",
                'Write models = ["vicuna-7b", "vicuna-13b"].',
            )
        for model in models:
            spec = _spec(path, {**values, "model": model})
            runs.append(SuiteRun(_folder(len(runs) + 1, model), spec, ("model", *values)))
    if not runs:
        raise UserError(f"Recipe {path} has no [[runs]].", 'Add one with models = ["tiny"].')
    return Suite(path.stem, file.title, tuple(runs))


def _spec(path: Path, values: Mapping[str, Any]) -> RunSpec:
    try:
        return make_spec(**values)
    except UserError as error:
        wrong = next((name for name, value in values.items() if _is_wrong(name, value)), "")
        place = _place(path, wrong, values.get(wrong))
        raise UserError(f"Recipe {path}{place}: {error.message}", error.hint) from error


def _is_wrong(name: str, value: Any) -> bool:
    """True if a value is wrong, whatever the others are."""
    try:
        make_spec(**{name: value})
    except UserError:
        return True
    return False


def _place(path: Path, key: str, value: Any) -> str:
    """The line that sets a key to a value: ", line 3"; empty without one."""
    line = line_of(path.read_text(encoding="utf-8"), key, value) if key else None
    return f", line {line}" if line else ""


def _folder(number: int, model: str) -> str:
    return f"{number:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(model).name)}"
