"""The runs of a suite, one after the other. A run that fails is told, and the others go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import RunFolderError, SpecbenchError, describe_error
from specbench.log.run import Run
from specbench.log.store import HEADER
from specbench.measure.base import Progress
from specbench.measure.folder import new_run, resumed_run
from specbench.measure.plan import SetupMaker, make_plan
from specbench.measure.session import run_plan
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
        progress: receives the events of all runs.
        command: arguments of the command line, for the headers.
        is_resumed: the folder may have runs already, which are continued.
        is_forced: parts of a run may be from another machine or other versions.
        is_offline: use no network.
        setup_maker: as in `make_plan`.

    Raises:
        RunFolderError: the folder has runs already, and is not to be resumed.
    """
    if not is_resumed and any((folder / run.name / HEADER).exists() for run in suite.runs):
        raise RunFolderError(
            f"{folder} holds runs of this suite already.",
            "Go on with them by --resume, or give another --output.",
        )
    done: list[Run] = []
    failures: dict[str, str] = {}
    for number, run in enumerate(suite.runs, 1):
        progress.message(f"Run {number} of {len(suite.runs)}: {run.name}")
        try:
            choose = resumed_run if (folder / run.name / HEADER).exists() else new_run
            chosen = choose(run.spec, run.given, folder / run.name, folder)
            plan = make_plan(chosen.spec, is_offline=is_offline, setup_maker=setup_maker)
            stored = run_plan(
                plan,
                chosen.path,
                progress,
                given=chosen.given,
                command=command,
                is_forced=is_forced,
            )
            done.append(stored)
        except SpecbenchError as error:
            failures[run.name] = f"{error.message} {error.hint}".strip()
        except Exception as error:  # of a library: the other runs are worth having
            failures[run.name] = describe_error(error)
        if run.name in failures:
            progress.message(f"{run.name} failed: {failures[run.name]}")
    return SuiteResult(tuple(done), failures)
