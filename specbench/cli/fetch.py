"""`specbench fetch`: download ahead of a run."""

from typing import Any

import typer

from specbench.cli.options import say, takes
from specbench.errors import UserError
from specbench.log.options import options
from specbench.log.spec import SpecValues


@takes(*options(SpecValues, "model", "tasks"))
def fetch(values: dict[str, Any]) -> None:
    """Download prompts, models and draft weights ahead of a run."""
    from specbench.measure.fetch import downloads, size_of
    from specbench.report.formats import num_bytes

    model = values.get("model")
    tasks = values.get("tasks") or (() if model else None)
    errors: list[UserError] = []
    for what, download in downloads(tasks, model):
        try:
            path = download(offline=False)
            say(f"{what}: {num_bytes(size_of(path))} in {path}", is_error=False)
        except UserError as error:
            errors.append(error)
            say(error.message)
    for hint in dict.fromkeys(error.hint for error in errors):
        if "specbench fetch" not in hint:  # the user is running it now
            say(hint)
    if errors:
        say("Run the command again to fetch what is missing; finished downloads are kept.")
    raise typer.Exit(2 if errors else 0)
