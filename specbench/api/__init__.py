"""Use specbench from Python: models that complete prompts, and runs as data frames."""

from specbench.api.models import Generation, LoadedModel, load
from specbench.api.runs import Run, read_run, run

__all__ = ["Generation", "LoadedModel", "Run", "load", "read_run", "run"]
