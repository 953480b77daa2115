"""Names of columns of record tables, and names in them that every room knows."""

from dataclasses import fields

from specbench.types import BASELINE as BASELINE
from specbench.types import Phases

POOLED = ""
"""The task of a cell that takes all tasks together."""
CELL_KEY = ["method", "temperature", "task"]
"""The columns that identify a cell."""
REQUEST_KEY = [
    "temperature", "task", "sample_id", "turn", "repeat", "concurrency", "request_rate",
]  # fmt: skip
"""The columns that identify a request over methods and runs."""
PHASES = [phase.name for phase in fields(Phases)]
