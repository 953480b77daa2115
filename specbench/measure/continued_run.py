"""Measure a run of a tune, or continue the run that its folder already has."""

from pathlib import Path

from specbench.errors import RunFolderError, UserError
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Plan, Progress
from specbench.measure.resume import check_same_run
from specbench.measure.session import run_plan


def continued_run(plan: Plan, folder: Path, progress: Progress) -> Run:
    """The complete run of a plan (prompts, methods and options), stored in `folder`.

    If the folder has a complete run, it is only read. An incomplete run is continued. Without a
    run, a new one is measured. `progress` receives events and messages to show.

    Raises:
        UserError: the folder has a run with other inputs, or from another machine or version.
        SpecbenchError: the measurement failed.
    """
    if (folder / HEADER).is_file():  # the file run.json, which every run's folder has
        stored = read_run(folder)
        if stored.header.status == "complete":
            try:
                check_same_run(stored, plan, folder)
            except RunFolderError as error:  # its hint is about --resume, which a tune lacks
                raise UserError(error.message, "Give --out another folder.") from error
            return stored
    progress.message("Measuring …")
    # `given` are the options that the header names as the user's: none here.
    return run_plan(plan, folder, progress, given=())
