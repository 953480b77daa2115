"""Check captures of single statements and of every method's steps.

Without a GPU, recordings are fake.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import islice

import torch

from benchmarks.gpu.check import Check, CheckSettings
from benchmarks.gpu.fake_capture import FakeRecorder
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.execution import Eager, Execution
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.graphs.recorder import CudaRecorder
from specbench.engine.kernels.pick_ops import pick_ops
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.measure.base import Plan
from specbench.measure.local.engine_load import build_drafters
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.local.peak_memory import MemoryLedger
from specbench.measure.plan import make_plan
from specbench.measure.spec import RunSpec
from specbench.types import Request

STATEMENTS = ("x[:, 0] = True", "x[0] = True", "x[:1] = True", "x[0, 0] = True", "x.fill_(True)")
"""Statements that write a single number into a tensor x."""
_PROGRAM = """
import torch
x = torch.zeros(5, 5, dtype=torch.bool, device="cuda")
{0}  # loads what it needs
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    {0}
print("captured")
"""


def capture_statements(settings: CheckSettings) -> Iterator[Check]:
    """Capture each statement in its own process: a failed capture breaks its process."""
    name = "statements that a capture allows"
    if settings.device.type != "cuda":
        yield Check(name, None, "needs a CUDA device")
        return
    processes = {
        statement: subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(statement)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for statement in STATEMENTS
    }  # fmt: skip
    output = {statement: one.communicate()[0].strip() for statement, one in processes.items()}
    value = {statement: text.split("\n")[-1] for statement, text in output.items()}
    refused = [statement for statement, line in value.items() if line != "captured"]
    yield Check(name, None, f"all but {', '.join(refused)}" if refused else "all", value)


def capture_every_method(settings: CheckSettings) -> Iterator[Check]:
    """Compare the tokens and steps of tiny in float32, eager and recorded."""
    spec = RunSpec(
        "tiny", limit=1, max_new_tokens=settings.max_new_tokens, device=str(settings.device),
        dtype="float32", temperatures=(0.0, 1.0),
    )  # fmt: skip
    plan = make_plan(spec, is_offline=True)
    graphs = recorded(settings.device)
    sides = [_Side(plan, execution) for execution in (Eager(), graphs)]
    for temperature in spec.temperatures:
        requests = list(islice(_requests(plan, temperature), settings.num_prompts))
        failing: dict[str, list[str]] = {}
        same: dict[str, int] = {}
        for label in sides[0].drafters:
            graphs.failures.clear()
            pairs = [[side.complete(label, request) for side in sides] for request in requests]
            same[label] = sum(eager == graph for eager, graph in pairs)
            if graphs.failures:
                failing[label] = sorted(graphs.failures)
        at = f"at T={temperature:g}"
        text = "; ".join(f"{label}: {reasons[0]}" for label, reasons in failing.items())
        yield Check(f"captured steps {at}", not failing, text or "of every method", failing)
        differing = [label for label, count in same.items() if count < len(requests)]
        # Rounding may change a drawn token, but no greedy token in float32.
        is_ok = None if temperature and differing else not differing
        text = f"different tokens: {', '.join(differing)}" if differing else "the same tokens"
        num_differing = len(requests) * len(same) - sum(same.values())
        value = {"num_differing": num_differing, "same": same, "of": len(requests)}
        yield Check(f"graphs against eager {at}", is_ok, text, value)


def recorded(device: torch.device) -> Graphs:
    """Steps as CUDA graphs, as in a float32 run; fake recordings on a CPU."""
    if device.type != "cuda":
        return Graphs(FakeRecorder())
    return Graphs(CudaRecorder(device), pick_ops(device, torch.float32))


class _Side:
    """Tiny with all its methods and one way to run steps."""

    def __init__(self, plan: Plan, execution: Execution) -> None:
        setup = plan.setup
        assert isinstance(setup, EngineSetup)
        device = torch.device(setup.device.name)
        self._target: Target = load_target(
            setup.path, dtype=torch.float32, device=device, execution=execution
        )
        self.drafters: Mapping[str, Drafter] = build_drafters(
            self._target, setup.methods, MemoryLedger(self._target)
        )

    def complete(self, label: str, request: Request) -> tuple[object, ...]:
        """The tokens and the accept lengths of a completion."""
        done = decode(self._target, self.drafters[label], request)
        return done.token_ids, done.accept_lengths


def _requests(plan: Plan, temperature: float) -> Iterator[Request]:
    """The first turn of every prompt."""
    prompts = [prompt for prompts in plan.prompts.values() for prompt in prompts]
    codec, sampling = plan.setup.codec, plan.spec.sampling(temperature)
    for seed, prompt in enumerate(prompts):
        ids = codec.render([{"role": "user", "content": prompt.turns[0]}])
        yield Request(ids, plan.max_new_tokens, sampling, codec.eos_ids, seed)
