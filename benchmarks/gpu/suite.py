"""One model, loaded once: speed and phases of every method, and graphs against eager.

    python -m benchmarks.gpu.suite --model M --folder DIR [--device cuda] [--limit N] [...]

Measures in this order, and writes each figure to disk as soon as it is known:

1. build the stand-in, and run all methods on every task;
2. every method's phases, on one task;
3. every method eager, on the same task: vanilla's speed, and a comparison of the tokens;
4. the model's own `generate`.

Above temperature 0, only the first. `specbench report` makes tables of the runs in the folder.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from benchmarks.gpu.agreement import compare
from benchmarks.gpu.figures import describe_host, describe_run, shown, vanilla_share
from benchmarks.gpu.lines import FIGURES, append_line
from specbench.analysis.metrics import measure
from specbench.analysis.roofline import NO_BANDWIDTH, read_roofline
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.cli.progress import progress_view
from specbench.engine.clock import DeviceClock
from specbench.engine.graphs.execution import Eager
from specbench.engine.target import Target
from specbench.log.run import Run
from specbench.measure.base import Plan
from specbench.measure.doctor import generate
from specbench.measure.local.device import pick_mode
from specbench.measure.local.drafters import build_drafters
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import LoadedEngine, load_model, make_execution
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.local.peak_memory import MemoryLedger
from specbench.measure.plan import make_plan
from specbench.measure.session import failures, run_plan
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model

TASK = "gsm8k"
"""The task of all but the first run."""
GENERATED, ROUNDS = 64, 3
"""Tokens and timed rounds of `generate`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit status is 1 if a sample failed or a method's tokens are wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="vicuna-13b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--limit", type=int, default=2, help="prompts per task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args(argv)
    suite = Suite(given)
    suite.run()
    for problem in suite.problems:
        print(f"FAILED: {problem}")
    return 1 if suite.problems else 0


def engine_setup(plan: Plan) -> EngineSetup:
    """The engine's setup of a plan."""
    assert isinstance(plan.setup, EngineSetup)
    return plan.setup


class Suite:
    """The measurements of one model, which share what is loaded."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.problems: list[str] = []
        self._folder: Path = given.folder
        weights = "hub" if find_model(given.model).is_embedded else "stand-in"
        self._spec = RunSpec(
            model=given.model, limit=given.limit, temperatures=(given.temperature,),
            max_new_tokens=given.max_new_tokens, device=given.device, dtype=given.dtype,
            weights=weights,
        )  # fmt: skip

    def run(self) -> None:
        """Run all measurements, the most important first."""
        plan = make_plan(self._spec, is_offline=True)
        loaded = self._load(plan)
        run = self._run("all", plan, loaded)
        self._keep(**describe_run(run))
        if self._spec.temperatures != (0.0,):
            return
        phases = one_task(plan, phases=True)
        self._keep(host=describe_host(self._run("phases", phases, loaded)))
        model = loaded.target.model
        del loaded  # with its graphs and joined weights
        gc.collect()
        target = Target(model, Eager())
        self._eager(run, target, one_task(plan, execution="eager"))
        self._generate(run, target, one_task(plan))

    def _load(self, plan: Plan) -> LoadedEngine:
        """Load target and drafters; kernels are compiled and checked before this is timed."""
        setup = engine_setup(plan)
        device = torch.device(setup.device.name)
        clock = DeviceClock(device)
        times = [clock.now()]
        make_execution(setup.mode, device, getattr(torch, setup.dtype))
        times.append(clock.now())
        target = load_model(setup)
        times.append(clock.now())
        ledger = MemoryLedger(target)
        drafters = build_drafters(target, setup.methods, ledger)
        times.append(clock.now())
        kernels_s, build_s, heads_s = (round(b - a, 2) for a, b in pairwise(times))
        self._keep(kernels_s=kernels_s, build_s=build_s, heads_s=heads_s)
        return LoadedEngine(target, drafters, build_s + heads_s, ledger)

    def _run(self, name: str, plan: Plan, loaded: LoadedEngine) -> Run:
        backend = EngineBackend(engine_setup(plan), is_metered=True, loaded=loaded)
        folder = self._folder / name
        run = run_plan(plan, folder, progress_view(), given=(), backend=backend)
        if failed := failures(run.records):
            self.problems.append(f"{name}: {len(failed)} samples, {failed[0].error}")
        return run

    def _eager(self, run: Run, target: Target, plan: Plan) -> None:
        """Run the same methods eagerly, and compare their tokens with the first run's."""
        began = time.perf_counter()
        ledger = MemoryLedger(target)
        drafters = build_drafters(target, engine_setup(plan).methods, ledger)
        loaded = LoadedEngine(target, drafters, time.perf_counter() - began, ledger)
        eager = self._run("eager", plan, loaded)
        found = compare(run, eager, plan, target)
        wrong = [method for method, one in found.items() if one["verdict"] == "bug"]
        self._keep(
            eager_tokens=found, num_wrong=len(wrong),
            vanilla_bandwidth_share_eager=vanilla_share(measure(eager)),
        )  # fmt: skip
        if wrong:
            self.problems.append(f"tokens differ beyond a near-tie: {', '.join(wrong)}")

    def _generate(self, run: Run, target: Target, plan: Plan) -> None:
        """Measure the share of the bandwidth that steps of the model's own `generate` use."""
        prompt = plan.prompts[TASK][0].turns[0]
        ids = plan.setup.codec.render([{"role": "user", "content": prompt}])
        count = min(GENERATED, self._spec.max_new_tokens or GENERATED)
        clock = DeviceClock(target.device)
        medians = []
        for num_tokens in (1, 1 + count):
            generate(target, ids, num_tokens)
            times = []
            for _ in range(ROUNDS):
                began = clock.now()
                generate(target, ids, num_tokens)
                times.append(clock.now() - began)
            medians.append(statistics.median(times))
        roofline = read_roofline(run.header.roofline, ())
        share: Value = NO_BANDWIDTH
        if not isinstance(roofline, Missing):
            share = roofline.bandwidth_share(Estimate((medians[1] - medians[0]) / count))
        self._keep(vanilla_bandwidth_share_generate=shown(share))

    def _keep(self, **figures: Any) -> None:
        """Print figures and write them to disk at once."""
        print(figures, flush=True)
        append_line(self._folder / FIGURES, figures)


def one_task(plan: Plan, **changes: Any) -> Plan:
    """A plan on one task, with changes of its spec, for a model that is already loaded."""
    sets = tuple(one for one in plan.prompt_sets if one.task.name == TASK)
    spec = structs.replace(plan.spec, tasks=(TASK,), **changes)
    setup = engine_setup(plan)
    mode = pick_mode(spec.execution, setup.device)
    setup = replace(setup, mode=mode, has_phases=spec.phases)
    return replace(plan, spec=spec, prompt_sets=sets, setup=setup)


if __name__ == "__main__":
    sys.exit(main())
