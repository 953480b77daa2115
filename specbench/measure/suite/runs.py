"""Run the runs of a suite, one after the other. If one fails, the others still run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from specbench.errors import RunFolderError, SpecbenchError, describe_error
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Progress
from specbench.measure.plan import SetupMaker
from specbench.measure.spec import AUTO
from specbench.measure.suite.apart import Order, complete, complete_apart
from specbench.measure.suite.recipe import Suite


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The results of a suite's runs."""

    runs: tuple[Run, ...]
    """The finished runs."""
    failures: dict[str, str]
    """The reasons why the other runs failed, by folder name."""


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
    """Complete a suite's runs. Returns the finished runs, and the reasons why others failed.

    Args:
        suite: the runs.
        folder: holds a folder for each run.
        progress: receives the events of runs in this process, and the messages of runs in other
            processes.
        command: arguments of the command line, for the headers.
        is_resumed: True if the folder may already have runs, which are then continued.
        is_forced: True if parts of a run may be from another machine or other versions.
        is_offline: True to use no network.
        setup_maker: makes the setups of runs on other machines; None for runs from this machine.

    Raises:
        RunFolderError: the folder already has runs, and `is_resumed` is False.
    """
    if not is_resumed and any((folder / run.name / HEADER).exists() for run in suite.runs):
        raise RunFolderError(
            f"{folder} has runs already.", "Continue them with --resume, or give another --output."
        )
    finished: list[Run] = []
    failures: dict[str, str] = {}  # the reason by the name of the run
    for number, run in enumerate(suite.runs, 1):  # a run has the name of its folder
        progress.message(f"Run {number} of {len(suite.runs)}: {run.name}")
        spec = run.spec
        # Equal runs in separate processes take the settings that the first run chose.
        if suite.is_apart and number > 1 and spec.settings == AUTO:
            spec = replace(spec, settings=str(folder / suite.runs[0].name))
        order = Order(
            spec=spec,
            given=run.given,  # names of the options that the user gave
            path=str(folder / run.name),
            command=tuple(command),
            is_forced=is_forced,
            is_offline=is_offline,
        )
        try:
            if suite.is_apart:
                complete_apart(order, progress)
                finished.append(read_run(folder / run.name))
            else:
                finished.append(complete(order, progress, setup_maker))
        except SpecbenchError as error:  # the run cannot start, or failed
            failures[run.name] = f"{error.message} {error.hint}".strip()
        except Exception as error:  # of a library or a plug-in; Ctrl-C is not caught
            failures[run.name] = describe_error(error)
        if run.name in failures:
            progress.message(f"{run.name} failed: {failures[run.name]}")
    return SuiteResult(tuple(finished), failures)
