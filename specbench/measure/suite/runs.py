"""The runs of a suite, one after the other. If one fails, the others go on.

A run in a process of its own, which a time limit can end.

Effects of a whole process, such as where its memory lies, differ only between processes, and a
run that hangs can be ended only if it has a process of its own. `python -m
specbench.measure.suite.runs` is such a process: it reads an `Order`, prints the run's messages,
and last the reason if the run failed.

Recipes: TOML files that name the runs of a suite.

title = "EAGLE-2 on two models"

[values]                         # of every run, by the names that `specbench.run` takes
temperatures = [0, 1]
methods = ["sps", "eagle2:depth=[3,5,7]"]

[[runs]]                         # one run for each of its models
models = ["vicuna-7b", "vicuna-13b"]
limit = 20                       # for these only
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from specbench.data.toml_files import line_of, read_toml
from specbench.errors import RunFolderError, SpecbenchError, UserError, describe_error
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.machine.threads import wait_briefly
from specbench.measure.base import Progress
from specbench.measure.plan import SetupMaker, make_plan
from specbench.measure.run_folder import new_run, resumed_run
from specbench.measure.session import run_plan
from specbench.measure.spec import AUTO, RunSpec, make_spec

GRACE_S = 20.0
"""Seconds between the interrupt of a process and its end: a run writes its header meanwhile."""


class RecipeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Order(msgspec.Struct, frozen=True):
    """A run to complete in the folder `path`, as far as it is missing there."""

    spec: RunSpec
    given: tuple[str, ...]
    path: str
    command: tuple[str, ...] = ()
    is_forced: bool = False
    is_offline: bool = False


class Ended(NamedTuple):
    """The exit status of a process, None if it was stopped at its limit, and its last line."""

    code: int | None
    last: str


def complete(order: Order, progress: Progress, setup_maker: SetupMaker | None = None) -> Run:
    """Complete a run in this process, and return it. A complete one is left as it is.

    Raises:
        SpecbenchError: the run cannot be made, or it failed.
    """
    path = Path(order.path)
    is_there = (path / HEADER).exists()
    chosen = (resumed_run if is_there else new_run)(order.spec, order.given, path, path.parent)
    if is_there:
        stored = read_run(path)
        if stored.header.status == "complete" and len(stored.records) == stored.header.num_records:
            return stored
    plan = make_plan(chosen.spec, is_offline=order.is_offline, setup_maker=setup_maker)
    return run_plan(
        plan, path, progress, given=chosen.given, command=order.command, is_forced=order.is_forced
    )


def complete_apart(
    order: Order, progress: Progress, limit_s: float | None = None, total_s: float = math.inf
) -> None:
    """Complete a run in a process of its own, with a second try if it has a limit.

    Raises:
        SpecbenchError: it failed, or the user made a mistake.
    """
    command = (sys.executable, "-m", "specbench.measure.suite.runs")
    given = msgspec.json.encode(order)
    run_tried(command, progress.message, limit_s=limit_s, total_s=total_s, given=given)


def run_tried(
    command: Sequence[str],
    say: Callable[[str], object],
    *,
    limit_s: float | None,
    total_s: float = math.inf,
    given: bytes = b"",
    only_killed: bool = False,
) -> None:
    """Run a command, twice if it has a limit and does not succeed; the second goes on.

    Each try ends after `limit_s` seconds, and all after `total_s`. With `only_killed`, a
    command that ended by itself is not tried again.

    Raises:
        SpecbenchError: it did not succeed, or the user made a mistake.
    """
    ends = time.monotonic() + total_s
    for is_last in (limit_s is None, True):
        most = min(limit_s or math.inf, ends - time.monotonic())
        limited = None if most == math.inf else most
        code, last = run_limited(command, say, limit_s=limited, given=given)
        if code == 0:
            return
        reason = last or f"It ended with {code}."
        if code is None:
            reason = f"It was stopped at its limit of {most:.3g} s."
        has_ended = code is not None and code >= 0
        is_final = code == UserError.exit_code or (only_killed and has_ended)
        if is_last or is_final or time.monotonic() >= ends:
            raise SpecbenchError(reason)
        say(f"{reason} Second try.")


def run_limited(
    command: Sequence[str],
    say: Callable[[str], object],
    *,
    limit_s: float | None = None,
    given: bytes = b"",
) -> Ended:
    """Run a command, and say its lines. All that it started ends with it.

    At its limit, or with this process, it is interrupted, and killed GRACE_S later.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdin and process.stdout
    lines: list[str] = []

    def read(output: IO[bytes]) -> None:
        with output:
            for line in output:
                lines.append(line.decode(errors="replace").rstrip())
                say(lines[-1])

    reader = Thread(target=read, args=(process.stdout,), daemon=True)
    reader.start()
    code: int | None = None
    try:
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(given)
        code = process.wait(limit_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM)  # background jobs ignore SIGINT
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
    return Ended(code, next((line for line in reversed(lines) if line), ""))


def main() -> int:
    """Complete the run that is asked for on stdin; returns the exit code."""
    wait_briefly()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        complete(order, Progress(print))
    except SpecbenchError as error:
        print(f"{error.message} {error.hint}".strip().replace("\n", " "))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # of a library, or of a plug-in
        traceback.print_exc()
        print(describe_error(error))
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The finished runs of a suite, and why the others failed, by the name of the folder."""

    runs: tuple[Run, ...]
    failures: dict[str, str]


def run_suite(
    suite: Suite,
    folder: Path,
    progress: Progress,
    *,
    command: Sequence[str] = (),
    is_resumed: bool = False,
    is_forced: bool = False,
    is_offline: bool = False,
    setup_maker: SetupMaker | None = None,
) -> SuiteResult:
    """Run what the folder lacks.

    Args:
        suite: the runs.
        folder: holds a folder for each run.
        progress: receives the events of all runs in this process, and the messages of the others.
        command: arguments of the command line, for the headers.
        is_resumed: the folder may have runs already, which are continued.
        is_forced: parts of a run may be from another machine or other versions.
        is_offline: use no network.
        setup_maker: as in `make_plan`, for runs in this process.

    Raises:
        RunFolderError: the folder has runs already, and is not to be resumed.
    """
    if not is_resumed and any((folder / run.name / HEADER).exists() for run in suite.runs):
        raise RunFolderError(
            f"{folder} has runs already.", "Go on with them by --resume, or give another --output."
        )
    done: list[Run] = []
    failures: dict[str, str] = {}
    for number, run in enumerate(suite.runs, 1):
        progress.message(f"Run {number} of {len(suite.runs)}: {run.name}")
        path = str(folder / run.name)
        spec = run.spec
        if suite.is_apart and number > 1 and spec.settings == AUTO:
            spec = replace(spec, settings=str(folder / suite.runs[0].name))
        order = Order(spec, run.given, path, tuple(command), is_forced, is_offline)
        try:
            if suite.is_apart:
                complete_apart(order, progress)
                done.append(read_run(Path(path)))
            else:
                done.append(complete(order, progress, setup_maker))
        except SpecbenchError as error:
            failures[run.name] = f"{error.message} {error.hint}".strip()
        except Exception as error:  # of a library: the other runs are worth having
            failures[run.name] = describe_error(error)
        if run.name in failures:
            progress.message(f"{run.name} failed: {failures[run.name]}")
    return SuiteResult(tuple(done), failures)


if __name__ == "__main__":
    sys.exit(main())
