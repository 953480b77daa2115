"""Choose the folder of a run: a new folder, or that of an unfinished run to resume."""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict

from specbench.errors import RunFolderError
from specbench.log.folders import is_being_written, list_runs, run_folder
from specbench.log.header import RunHeader
from specbench.log.options import options
from specbench.log.spec import SpecValues
from specbench.log.store import HEADER, read_header
from specbench.measure.spec import RunSpec


class ChosenRun(NamedTuple):
    """A run to start or to resume."""

    path: Path
    """The run's folder."""
    spec: RunSpec
    """The run's options with their values."""
    given: tuple[str, ...]
    """The names of the options that the user gave."""


def new_run(spec: RunSpec, given: Collection[str], output: Path | None, root: Path) -> ChosenRun:
    """A new run in the folder `output`, or in a folder in `root` named after time and model.

    `spec` has the run's options; `given` has the names of the options that the user gave. No folder
    is made yet.

    Raises:
        RunFolderError: the folder has a run already, or cannot be written.
    """
    if output is None:
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        is_path = Path(spec.model).expanduser().exists()  # else a model's name or Hub id
        model_name = spec.card.title if is_path else Path(spec.model).name
        # Characters that a file's name should not have become hyphens.
        output = root / f"{now}-{re.sub(r'[^A-Za-z0-9._-]+', '-', model_name)}"
    elif (output / HEADER).exists():  # the file run.json
        raise RunFolderError(
            f"{output} holds a run already.",
            "Continue it with --resume, or give another --output.",
        )
    folders = (output, *output.absolute().parents)  # the innermost first
    # The innermost folder that exists: the missing folders will be made in it.
    existing = next(folder for folder in folders if os.access(folder, os.F_OK))
    # "/." makes the check fail for a file: the path "FILE/." does not exist.
    if not os.access(f"{existing}/.", os.W_OK | os.X_OK):
        raise RunFolderError(f"{existing} cannot be written to.", "Choose another --output.")
    return ChosenRun(output, spec, tuple(given))


def claim_folder(path: Path) -> Path:
    """Make a new run's folder. If `path` exists, a number is added to the name."""
    for number in count(1):
        folder = path.with_name(f"{path.name}-{number}") if number > 1 else path
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


def resumed_run(
    spec: RunSpec, given: Collection[str], output: Path | None, root: Path
) -> ChosenRun:
    """The run to resume: the run in the folder `output`, or the newest unfinished run in `root`.

    It keeps its options. `given` has the names of the options that the user gave now, and `spec`
    has their values, which must be equal to the run's.

    Raises:
        RunFolderError: there is no run to resume, or the options given differ from the run's.
    """
    path = run_folder(output) if output else _newest_unfinished(spec, given, root)
    header = read_header(path)
    header.refuse_import("resumed")
    if mismatches := _mismatches(spec, given, header):
        raise RunFolderError(
            f"The run in {path} has other options: {'; '.join(mismatches)}.",
            "Leave them out: --resume uses the run's options. Or start a new run without it.",
        )
    asked_spec = RunSpec(**asdict(header.spec.asked or header.spec.values))
    return ChosenRun(path, asked_spec, tuple(sorted({*header.spec.given, *given})))


def _newest_unfinished(spec: RunSpec, given: Collection[str], root: Path) -> Path:
    """The folder of the newest unfinished run in `root` that has the options the user gave.

    Raises:
        RunFolderError: there is no such run.
    """
    for path, header in list_runs(root).items():
        if not isinstance(header, RunHeader) or header.status == "complete":
            continue
        if not _mismatches(spec, given, header) and not is_being_written(path):
            return path
    raise RunFolderError(
        f"{root} has no unfinished run with these options.",
        "See `specbench list runs`, and name one with --output DIR --resume.",
    )


def _mismatches(spec: RunSpec, given: Collection[str], header: RunHeader) -> list[str]:
    """A phrase about each option whose value, as the user gave it, is not that of the stored run.

    `given` has the names of the options that the user gave, and `spec` has their values. `header`
    is the stored run's header. It has two values per option: the value asked for, such as "auto"
    (unknown if `asked` is None), and the value in effect. The user may give either of them.
    """
    mismatches = []
    for option in options(SpecValues):
        # `name` is the option's name in Python, `parameter` its name in commands.
        if not {option.name, option.parameter} & {*given}:
            continue
        given_now = _comparable(spec, option.name)
        asked = _comparable(header.spec.asked or header.spec.values, option.name)
        in_effect = _comparable(header.spec.values, option.name)
        if given_now not in (asked, in_effect):
            mismatches.append(f"{option.name} is {asked!r} in the run and {given_now!r} here")
    return mismatches


def _comparable(values: SpecValues, name: str) -> Any:
    """An option's value in a spec. The methods of groups are listed one by one, to compare them."""
    if name == "methods":
        return tuple(str(method.asked) for method in RunSpec(methods=values.methods).run_methods)
    return getattr(values, name)
