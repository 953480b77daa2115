"""The runs of a suite, one after the other. If one fails, the others go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import RunFolderError, SpecbenchError, UserError, describe_error
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Progress
from specbench.measure.plan import SetupMaker
from specbench.measure.suite.apart import Order, complete, complete_apart
from specbench.measure.suite.recipe import Suite


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The runs of a suite that ended, and the reason of each other one by its folder's name."""

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
        setup_maker: as in `make_plan`.

    Raises:
        RunFolderError: the folder has runs already, and is not to be resumed.
        UserError: a run has to be a process of this machine, and `setup_maker` uses others.
    """
    if not is_resumed and any((folder / run.name / HEADER).exists() for run in suite.runs):
        raise RunFolderError(
            f"{folder} has runs already.", "Go on with them by --resume, or give another --output."
        )
    if setup_maker and any(run.is_apart for run in suite.runs):
        raise UserError(
            "Runs with a time limit, and those of --runs, are processes of this machine, and --ray "
            "uses others.",
            "Leave out limit_s, or --ray.",
        )
    done: list[Run] = []
    failures: dict[str, str] = {}
    for number, run in enumerate(suite.runs, 1):
        progress.message(f"Run {number} of {len(suite.runs)}: {run.name}")
        path = str(folder / run.name)
        order = Order(run.spec, run.given, path, tuple(command), is_forced, is_offline)
        try:
            if run.is_apart:
                complete_apart(order, progress, run.limit_s)
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
