"""Time per step on the CPU, compared with the official implementations.

    SPECBENCH_PARITY=DIR python benchmarks/step_time.py [--method M ...] [--rounds N]

DIR holds `calibrate.py` and `set_a`: a target, heads, prompts, and the times of the official code
on another machine. Times measured here are scaled by the ratio of the two machines' calibrations.
All prompts run in every round, and the fastest round of each prompt counts, to limit the effect of
other work on the machine. The fastest of several calibrations counts too, to our disadvantage.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from specbench import registry
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.measure.local.device import Device, pick_mode
from specbench.measure.local.engine_load import make_execution
from specbench.types import Request

ROWS: dict[str, tuple[str, dict[str, str], float]] = {
    "vanilla": ("vanilla", {}, 0.45),
    "medusa": ("medusa", {}, 0.45),
    "hydra": ("hydra", {}, 0.45),
    "eagle": ("eagle", {}, 0.45),
    "eagle2": ("eagle2", {}, 0.45),
    "eagle2_d5": ("eagle2", {"depth": "5"}, 0.45),
    "eagle3": ("eagle3", {}, 0.45),
    "eagle3_d5": ("eagle3", {"depth": "5"}, 0.45),
}
"""Row of the official times -> method, its options, and the allowed share of the official time."""


@dataclass
class Timing:
    """Seconds of the fastest run of each prompt, and its steps."""

    best_s: list[float]
    steps: list[int]

    @property
    def ms_per_step(self) -> float:
        return sum(self.best_s) * 1e3 / sum(self.steps)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 if a row exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", action="append", choices=sorted(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(argv)
    folder = os.environ.get("SPECBENCH_PARITY")
    if not folder:
        print("Set SPECBENCH_PARITY to the folder of official outputs.", file=sys.stderr)
        return 2
    torch.set_num_threads(given.threads)
    root = Path(folder)
    root = root.parent if root.name == "set_a" else root
    official = json.loads((root / "set_a/golden/timing.json").read_text("utf-8"))
    calibrate = _calibration(root)
    names = given.method or list(ROWS)
    timings, calibration_ms = measure(root / "set_a", names, given.rounds, calibrate)
    scale = official["calibration_ms"] / calibration_ms
    print(f"calibration {calibration_ms:.2f} ms here, {official['calibration_ms']} ms there")
    print(_table(names, timings, official, scale))
    is_kept = all(
        timings[name].ms_per_step * scale <= limit * official[name]["ms_per_step"]
        for name, limit in ((name, ROWS[name][2]) for name in names)
    )
    return 0 if is_kept else 1


def _table(
    names: Sequence[str], timings: dict[str, Timing], official: dict[str, Any], scale: float
) -> str:
    """One line per method; the last two columns are in units of a vanilla step."""
    heads = ("ms/step", "scaled", "official", "ratio", "limit", "in vanilla", "official")
    lines = [f"{'method':12}" + "".join(f"{head:>11}" for head in heads)]
    for name in names:
        ours, theirs = timings[name].ms_per_step, official[name]["ms_per_step"]
        limit = ROWS[name][2]
        cells = [f"{ours:.2f}", f"{ours * scale:.2f}", f"{theirs:.2f}"]
        cells += [f"{ours * scale / theirs:.0%}", f"{limit:.0%}"]
        if "vanilla" in timings:
            cells.append(f"{ours / timings['vanilla'].ms_per_step:.2f}")
            cells.append(f"{theirs / official['vanilla']['ms_per_step']:.2f}")
        lines.append(f"{name:12}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def measure(
    folder: Path, names: Sequence[str], rounds: int, calibrate: Callable[[], float]
) -> tuple[dict[str, Timing], float]:
    """Run every row's method over all prompts; rows alternate within each prompt."""
    device, dtype = torch.device("cpu"), torch.float32
    execution = make_execution(pick_mode("auto", Device("cpu")), device, dtype)
    target = load_target(folder / "target", dtype=dtype, device=device, execution=execution)
    drafters = {name: _build(name, target, folder) for name in names}
    lines = (folder / "prompts.jsonl").read_text("utf-8").splitlines()
    requests = [
        Request(tuple(json.loads(line)["input_ids"]), 128, eos_ids=frozenset({2})) for line in lines
    ]
    for drafter in drafters.values():
        for request in requests[:2]:
            decode(target, drafter, request)
    gc.freeze()  # as a run does: else the collector searches all that is loaded, in some sample
    timings = {name: Timing([float("inf")] * len(requests), [0] * len(requests)) for name in names}
    calibration_ms = float("inf")
    for _ in range(rounds):
        calibration_ms = min(calibration_ms, calibrate())
        for i, request in enumerate(requests):
            for name, drafter in drafters.items():
                done = decode(target, drafter, request)
                timings[name].best_s[i] = min(timings[name].best_s[i], done.wall_s)
                timings[name].steps[i] = len(done.steps)
    gc.unfreeze()
    return timings, calibration_ms


def _build(row: str, target: Target, folder: Path) -> Drafter:
    name, options, _ = ROWS[row]
    method = registry.get(name)
    weights = folder / method.weights if method.weights else None
    return method.build(registry.make_options(method, options), BuildContext(target, weights))


def _calibration(root: Path) -> Callable[[], float]:
    """The function that `calibrate.py` defines."""
    spec = importlib.util.spec_from_file_location("calibrate", root / "calibrate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Callable[[], float], module.calibrate)


if __name__ == "__main__":
    sys.exit(main())
