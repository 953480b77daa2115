"""The fault suite: attacks on the program, seeded and counted by area.

An area is a module of `tests/faults/areas` with two names:

- `TRIES`: the number of attacks of the long version.
- `attack(random, folder)`: one attack. It draws from `random`, works in an empty folder of its own,
  and raises if the program fails.

A seed is one attack: `python -m tests.faults AREA --seed SEED --tries 1` repeats it.
"""

import importlib
import multiprocessing
import os
import pkgutil
import tempfile
import traceback
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from specbench.errors import time_limit
from tests.faults import areas

_BATCH_SIZE = 25
"""The number of attacks that a process makes, one after the other."""
LONGEST_S = 120
"""The seconds after which the program counts as hanging."""


@dataclass(slots=True)
class Result:
    """The result of an area. `failures` has the reason of each seed that failed."""

    area: str
    seeds: range
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


def area_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(areas.__path__))


def load_area(name: str) -> Any:
    return importlib.import_module(f"{areas.__name__}.{name}")


def run_areas(seeds_by_area: Mapping[str, range], num_jobs: int) -> list[Result]:
    """Attack areas with these seeds. `num_jobs` batches run at once, each in its own process."""
    batches = [
        (name, seeds[start : start + _BATCH_SIZE])
        for name, seeds in seeds_by_area.items()
        for start in range(0, len(seeds), _BATCH_SIZE)
    ]
    results = {name: Result(name, seeds) for name, seeds in seeds_by_area.items()}
    os.environ["OMP_NUM_THREADS"] = "1"  # the threads of several jobs would wait for each other
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_jobs, mp_context=spawn) as pool:
        for batch_result in pool.map(_run_batch, *zip(*batches, strict=True)):
            results[batch_result.area].failures |= batch_result.failures
            results[batch_result.area].seconds += batch_result.seconds
    return [*results.values()]


def _run_batch(name: str, seeds: range) -> Result:
    """Make an attack with each of the seeds."""
    result = Result(name, seeds)
    attack = load_area(name).attack
    began = perf_counter()
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
            try:
                with time_limit(LONGEST_S, "the attack"):
                    attack(Random(seed), Path(folder))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # an attack fails with any exception
                last_call = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last_call.filename).name}, line {last_call.lineno}"
                result.failures[seed] = f"{type(error).__name__} ({where}): {error}"
    result.seconds = perf_counter() - began
    return result


def table(results: list[Result]) -> str:
    """A table of the areas' tries, failures, seeds and seconds, and the sum of the seconds."""
    lines = [f"{'area':24}{'tries':>7}{'failures':>10}{'seeds':>14}{'seconds':>9}"]
    for result in results:
        seeds = f"{result.seeds.start} to {result.seeds.stop - 1}"
        counts = f"{len(result.seeds):7}{len(result.failures):10}{seeds:>14}{result.seconds:9.1f}"
        lines.append(f"{result.area.replace('_', ' '):24}{counts}")
    lines.append(f"{'all':55}{sum(result.seconds for result in results):9.1f}")
    return "\n".join(lines)
