"""The runs of a tune. A second call continues the runs in its folder."""

from pathlib import Path

from specbench.errors import RunFolderError, UserError
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Plan, Progress
from specbench.measure.resume import check_same_run
from specbench.measure.session import run_plan


def continued_run(plan: Plan, folder: Path, progress: Progress) -> Run:
    """The run of a plan in a folder: the complete one that is there, or a new or continued one.

    Raises:
        UserError: the folder has a run with other inputs, or of another machine or version.
    """
    if (folder / HEADER).is_file():  # a run's header
        stored = read_run(folder)
        if stored.header.status == "complete":
            try:
                check_same_run(stored, plan, folder)
            except RunFolderError as error:
                raise UserError(error.message, "Give --out another folder.") from error
            return stored
    progress.message("Measuring …")
    # `run_plan` continues an incomplete run. `given` are the user's options for the header: none.
    return run_plan(plan, folder, progress, given=())
