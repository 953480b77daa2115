"""The command of the check. It measures what is missing, in order, and prints the table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import benchmarks.tune_check as package
from benchmarks.tune_check.rows import Sweep, measured_rows, picks_of
from benchmarks.tune_check.settings import label_in, twins_of, weighed_settings
from benchmarks.tune_check.stored import curve_in, profile_in, run_in
from benchmarks.tune_check.table import regret_lines, table_lines
from specbench.measure.base import Plan
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.progress import Lines
from specbench.measure.spec import make_spec
from specbench.settings.cost_model import CostModel
from specbench.settings.speedup import NUM_RESAMPLES, estimate
from specbench.tune.engine_plan import EnginePlan

METHODS = "eagle2,eagle3,medusa,hydra,eagle,sps,pld,suffix"
LEAST_AGAIN_S = 60.0
"""Least number of seconds for the second measurement, even if the first one took all the time."""


def main() -> int:
    """Check the predictions in several processes, one after the other."""
    parser = argparse.ArgumentParser(description=(package.__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--method", default=METHODS)
    parser.add_argument("--settings", type=int, default=44)
    parser.add_argument("--limit", type=int, default=8, help="prompts per task, both halves")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=20.0, help="minutes per process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process is not None:
        check_predictions(arguments)
        return 0
    command = [sys.executable, "-m", package.__name__, *sys.argv[1:]]
    for number in range(1, arguments.processes + 1):
        subprocess.run([*command, "--process", str(number)], check=True)
    return 0


def check_predictions(arguments: argparse.Namespace) -> None:
    """Predict and measure in this process, then print and write the table."""
    began = time.perf_counter()
    time_s = arguments.minutes * 60
    folder = arguments.out / str(arguments.process)
    progress = Lines(lambda line: print(line, file=sys.stderr, flush=True))
    plan = make_check_plan(arguments, arguments.method.split(","), num_passes=1)
    assert isinstance(plan.setup, EngineSetup)
    engine_plan = EnginePlan(plan, plan.setup, is_offline=True)
    profile = profile_in(arguments.out / "profile", engine_plan, progress)
    curve = curve_in(folder, engine_plan, arguments.minutes / 4, progress)
    model = CostModel(curve, NUM_RESAMPLES)
    weighed = weighed_settings(profile, model, arguments.settings)

    # The first run gets half of the time.
    vanilla_steps = sum(
        estimate(weights, model, label_in(curve, setting)).vanilla_steps
        for setting, weights in weighed.items()
    )
    pass_s = vanilla_steps * curve.vanilla_s
    num_passes = max(1, min(5, round(time_s / 2 / pass_s)))
    settings = [*weighed, *twins_of(weighed).values()]
    plan = make_check_plan(arguments, settings, num_passes)
    sweep = Sweep(profile, model, weighed, run_in(folder / "run", plan, progress))
    rows = measured_rows(sweep)
    lines = table_lines(sweep, rows)

    # The settings that are measured again get the rest of the time.
    picks = picks_of(rows)
    picked = [*dict.fromkeys(setting for of_method in picks.values() for setting in of_method)]
    left_s = max(LEAST_AGAIN_S, time_s - (time.perf_counter() - began))
    picked_pass_s = pass_s * len(picked) / len(weighed)
    num_passes = max(2, min(9, round(left_s / picked_pass_s)))
    plan = make_check_plan(arguments, picked, num_passes)
    lines += regret_lines(run_in(folder / "again", plan, progress), picks)

    print(f"\n{arguments.model}, process {arguments.process}, {curve.about['machine']}:\n")
    print("\n".join(lines), flush=True)
    (folder / "table.md").write_text("\n".join(lines) + "\n")


def make_check_plan(arguments: argparse.Namespace, methods: Sequence[str], num_passes: int) -> Plan:
    """The plan of a run of these methods on all prompts."""
    spec = make_spec(
        model=arguments.model,
        methods=list(methods),
        limit=arguments.limit,
        max_new_tokens=arguments.max_new_tokens,
        prompts="bundled",
        repeats=num_passes,
    )
    return make_plan(spec, is_offline=True)


if __name__ == "__main__":
    sys.exit(main())
