"""Types of the values that packages exchange and that the log stores.

They hold plain numbers, strings and token ids.
"""

from specbench.types.completion import (
    Completion,
    Phases,
    Request,
    Sampling,
    Serving,
    Step,
    StopReason,
    TracedStep,
)
from specbench.types.method import BASELINE, ProfileKind, Scope, option
from specbench.types.package import CHECKOUT, ROOTS, RUNS, VERSION
from specbench.types.record import ImportedCounts, Record, RecordKey, RequestKey, seed_of
from specbench.types.shape import CONFIG_NAMES, Shape

__all__ = [
    "BASELINE",
    "CHECKOUT",
    "CONFIG_NAMES",
    "ROOTS",
    "RUNS",
    "VERSION",
    "Completion",
    "ImportedCounts",
    "Phases",
    "ProfileKind",
    "Record",
    "RecordKey",
    "Request",
    "RequestKey",
    "Sampling",
    "Scope",
    "Serving",
    "Shape",
    "Step",
    "StopReason",
    "TracedStep",
    "option",
    "seed_of",
]
