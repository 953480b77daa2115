"""The folder of a run: a new one, or one to resume."""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict

from specbench.errors import RunFolderError
from specbench.log.header import RunHeader
from specbench.log.options import options
from specbench.log.spec import SpecValues
from specbench.log.store import HEADER, is_being_written, list_runs, read_header, run_folder
from specbench.measure.base import Plan
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from specbench.registry import expand_groups


class ChosenRun(NamedTuple):
    """A run to start or to resume: its folder, its values, and which of them were given."""

    path: Path
    spec: RunSpec
    given: tuple[str, ...]


def new_run(spec: RunSpec, given: Collection[str], output: Path | None, root: Path) -> ChosenRun:
    """A run in the folder `output`, or in a new one in `root`.

    Raises:
        RunFolderError: the folder has a run already, or cannot be written.
    """
    if output is None:
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        is_here = Path(spec.model).expanduser().exists()
        name = find_model(spec.model).title if is_here else Path(spec.model).name
        output = root / f"{now}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}"
    elif (output / HEADER).exists():
        raise RunFolderError(
            f"{output} holds a run already.",
            "Go on with it by --resume, or give another --output.",
        )
    above = next(one for one in (output, *output.absolute().parents) if os.access(one, os.F_OK))
    if not os.access(f"{above}/.", os.W_OK | os.X_OK):
        raise RunFolderError(f"{above} cannot be written to.", "Choose another --output.")
    return ChosenRun(output, spec, tuple(given))


def claim_folder(path: Path) -> Path:
    """Make a new run's folder, under another name if a run of the same second has this one."""
    for number in count(1):
        claimed = path.with_name(f"{path.name}-{number}") if number > 1 else path
        with suppress(FileExistsError):
            claimed.mkdir(parents=True)
            return claimed
    raise AssertionError


def resumed_run(
    spec: RunSpec, given: Collection[str], output: Path | None, root: Path
) -> ChosenRun:
    """The run in the folder `output`, or the newest unfinished one in `root`, with its own options.

    Of `spec` only the options in `given` count, which must agree with the run's.

    Raises:
        RunFolderError: there is no run to resume, or the given options are not the run's.
    """
    path = run_folder(output) if output else _newest_unfinished(spec, given, root)
    header = read_header(path)
    if differences := _differences(spec, given, header):
        raise RunFolderError(
            f"The run in {path} has other options: {'; '.join(differences)}.",
            "Leave them out: --resume takes those of the run. Or start a new run without --resume.",
        )
    asked = RunSpec(**asdict(header.spec.asked or header.spec.values))
    return ChosenRun(path, asked, tuple(sorted({*header.spec.given, *given})))


def _newest_unfinished(spec: RunSpec, given: Collection[str], root: Path) -> Path:
    for path, header in list_runs(root).items():
        if not isinstance(header, RunHeader) or header.status == "complete":
            continue
        if not _differences(spec, given, header) and not is_being_written(path):
            return path
    raise RunFolderError(
        f"{root} has no unfinished run with these options.",
        "See `specbench list runs`, and name one with --output DIR --resume.",
    )


def earlier_runs(plan: Plan, root: Path) -> Iterator[tuple[Path, RunHeader]]:
    """The complete runs of a plan's model on its device, the newest first."""
    about = plan.about
    for path, header in list_runs(root).items():
        if isinstance(header, RunHeader) and header.status == "complete":
            device = about.values.get("device", plan.spec.device)
            if (header.model.label, header.spec.values.device) == (about.model.label, device):
                yield path, header


def expected_seconds(plan: Plan, root: Path) -> float | None:
    """Seconds that a plan takes, by the newest run that was made in one go; None without one."""
    for _, header in earlier_runs(plan, root):
        if header.finished and header.num_records and not header.segments:
            began, ended = map(datetime.fromisoformat, (header.created, header.finished))
            budget = header.spec.values.max_new_tokens or plan.max_new_tokens
            work = plan.num_records * plan.max_new_tokens / (header.num_records * budget)
            return max(1.0, (ended - began).total_seconds() * work)
    return None


def _differences(spec: RunSpec, given: Collection[str], header: RunHeader) -> list[str]:
    """The given options that agree neither with what the run was asked nor with what it did."""
    asked, done = header.spec.asked or header.spec.values, header.spec.values
    found = []
    for option in options(SpecValues):
        name = option.name
        mine, theirs, ran = (_value(one, name) for one in (spec, asked, done))
        if {name, option.parameter} & {*given} and mine not in (theirs, ran):
            found.append(f"{name} is {theirs!r} there and {mine!r} here")
    return found


def _value(values: SpecValues, name: str) -> Any:
    """A value of a spec; methods one by one, however they were given."""
    return expand_groups(values.methods) if name == "methods" else getattr(values, name)
