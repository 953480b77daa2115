"""specbench from Python: models that complete prompts, and runs, new or stored, as data frames."""

from specbench.api.models import Generation, LoadedModel, load
from specbench.api.runs import Run, explain, read_run, run

__all__ = ["Generation", "LoadedModel", "Run", "explain", "load", "read_run", "run"]
