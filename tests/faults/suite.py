"""The fault suite: attacks on the program, seeded and counted by area.

An area is a module of `tests/faults/areas` with two names:

- `TRIES`: the number of attacks of the long version.
- `attack(random, folder)`: one attack. It draws from `random`, works in `folder`, which is empty
  and its own, and raises if the program does not hold.

`NEEDS` names a package that may be missing: then the area is skipped.

A seed is one attack: `python -m tests.faults AREA --seed SEED --tries 1` repeats it.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import pkgutil
import tempfile
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter

import psutil

from specbench.errors import time_limit
from tests.faults import areas

Attack = Callable[[Random, Path], None]

_AT_ONCE = 25
"""Attacks that a process makes one after the other."""
LONGEST_S = 120
"""Seconds after which an attack has made the program hang."""


@dataclass(frozen=True, slots=True)
class Area:
    """A kind of attack, and how often the long version tries it."""

    name: str
    tries: int
    attack: Attack

    def scaled(self, scale: float) -> int:
        """The tries of a shorter version, at least one."""
        return max(1, round(self.tries * scale))


@dataclass(slots=True)
class AreaResult:
    """The result of an area. `failures` are reasons by seed."""

    area: str
    seeds: range
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_s: float = 0.0


def area_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(areas.__path__))


def missing(name: str) -> str:
    """The package that the area needs and this machine lacks; empty if there is none."""
    needs: str = getattr(importlib.import_module(f"{areas.__name__}.{name}"), "NEEDS", "")
    return needs if needs and importlib.util.find_spec(needs) is None else ""


def load_area(name: str) -> Area:
    module = importlib.import_module(f"{areas.__name__}.{name}")
    return Area(name.replace("_", " "), module.TRIES, module.attack)


def run_areas(asked: Mapping[str, range], num_jobs: int) -> list[AreaResult]:
    """Attack areas with the seeds asked for, some at once, each in a process of its own."""
    parts = [
        (name, seeds[start : start + _AT_ONCE])
        for name, seeds in asked.items()
        for start in range(0, len(seeds), _AT_ONCE)
    ]
    results = {name: AreaResult(load_area(name).name, seeds) for name, seeds in asked.items()}
    os.environ["OMP_NUM_THREADS"] = "1"  # threads of several jobs wait for each other
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_jobs, mp_context=spawn) as pool:
        for (name, _), part in zip(parts, pool.map(_run_part, parts), strict=True):
            results[name].failures |= part.failures
            results[name].seconds += part.seconds
            results[name].cpu_s += part.cpu_s
    return [*results.values()]


def _run_part(part: tuple[str, range]) -> AreaResult:
    name, seeds = part
    return run_area(load_area(name), seeds)


def run_area(area: Area, seeds: range) -> AreaResult:
    """Make an attack with each of the seeds."""
    result = AreaResult(area.name, seeds)
    began, before_s = perf_counter(), cpu_seconds()
    for one in result.seeds:
        with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
            try:
                with time_limit(LONGEST_S, "the attack"):
                    area.attack(Random(one), Path(folder))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever an attack raises is its failure
                at = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(at.filename).name}, line {at.lineno}"
                result.failures[one] = f"{type(error).__name__} ({where}): {error}"
    result.seconds, result.cpu_s = perf_counter() - began, cpu_seconds() - before_s
    return result


def cpu_seconds() -> float:
    """Processor time of this process and of all that it started, with those that have ended."""
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:4]) for one in [me, *me.children(recursive=True)])


def table(results: list[AreaResult]) -> str:
    """One line an area, and the sum: tries, failures, seeds, seconds, and those of a processor."""
    lines = [f"{'area':24}{'tries':>7}{'failures':>10}{'seeds':>14}{'seconds':>9}{'CPU':>9}"]
    for one in results:
        counts = f"{one.area:24}{len(one.seeds):7}{len(one.failures):10}"
        seeds = f"{one.seeds.start} to {one.seeds.stop - 1}"
        lines.append(f"{counts}{seeds:>14}{one.seconds:9.1f}{one.cpu_s:9.1f}")
    sums = (sum(one.seconds for one in results), sum(one.cpu_s for one in results))
    lines.append(f"{'all':55}{sums[0]:9.1f}{sums[1]:9.1f}")
    return "\n".join(lines)
