"""The command: load both sides, measure them in turns, and show the ratio."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from transformers.utils import logging

import benchmarks.official_eagle as package
from benchmarks.official_eagle.official import REPOSITORY, Official, describe_checkout
from benchmarks.official_eagle.summary import show, summarize
from benchmarks.official_eagle.turns import (
    METHODS,
    Complete,
    Entries,
    Measured,
    describe,
    read_samples,
    take_turns,
)
from benchmarks.official_eagle.weights import Folders, write_weights
from specbench.errors import SpecbenchError
from specbench.measure.plan import make_plan
from specbench.measure.spec import RunSpec

_OPTIONS = ("total_tokens", "depth", "top_k", "max_new_tokens", "limit", "repeats")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 if tokens differ in float32."""
    given = _parse(argv)
    logging.disable_progress_bar()
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    try:
        found = run(given, console.print)
    except SpecbenchError as error:
        console.print("Error:", style="red", end=" ")
        console.print(f"{error.message}\n{error.hint}")
        return error.exit_code
    path = given.output / "official_eagle.json"
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    show(found, Console(highlight=False, markup=False))
    print(f"Every sample is in {path}.")
    is_exact = all(row["same_tokens"] == row["samples"] for row in found["summary"].values())
    return 0 if is_exact or given.dtype != "float32" else 1


def run(given: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    """Load, warm up and measure both sides; returns the content of the result file.

    Raises:
        UserError: a value, checkout, interpreter, shape or memory size is not usable.
    """
    import torch

    from specbench.machine import environment
    from specbench.measure.local.device import pick_device
    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import EngineSetup
    from specbench.measure.requests import warm_up_requests

    began = time.monotonic()
    source = describe_checkout(given.checkout)
    device = pick_device(given.device).name
    folders = Folders(given.work or given.output / "work")
    spec = spec_of(given, folders)
    given.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        official = stack.enter_context(Official(given))
        say(f"Writing the weights to {folders.root}, unless they are there …")
        write_weights(given.model, folders, device, given.dtype)
        plan = make_plan(spec, is_offline=True)
        samples = list(read_samples(plan))
        say("Loading the official side …")
        official.load(
            target=str(folders.target), head=str(folders.head), device=device, dtype=given.dtype,
            num_threads=torch.get_num_threads(), total_token=given.total_tokens,
            depth=given.depth, top_k=given.top_k,
        )  # fmt: skip
        say("Loading our side …")
        assert isinstance(plan.setup, EngineSetup)
        backend = stack.enter_context(EngineBackend(plan.setup))
        say("Warming up …")
        backend.warm_up(warm_up_requests(plan))
        ours = {label: partial(backend.complete, label) for label in plan.setup.labels}
        official.warm_up(samples)
        entries = _alternating(official, ours)
        turns = take_turns(samples, entries, given.repeats, say, began + given.seconds)
        measured = list(_kept(turns, given.output / "samples.jsonl"))
    about = backend.describe()
    machine = to_builtins(environment.capture())
    return {
        "model": f"stand-in of {Path(given.model).name}",
        "dtype": given.dtype,
        "device": device,
        "options": {name: getattr(given, name) for name in _OPTIONS},
        "machine": {key: machine[key] for key in ("gpus", "cpu", "os", "variables")},
        "official": {**source, **official.versions},
        "specbench": {
            **_versions(machine),
            "execution": dict(zip(METHODS, to_builtins([*about.execution.values()]), strict=True)),
            "num_late": getattr(backend.target.execution, "num_late", 0),
        },
        "summary": {method: summarize(measured, method) for method in METHODS},
        "samples": [describe(one) for one in measured],
    }


def spec_of(given: argparse.Namespace, folders: Folders) -> RunSpec:
    """The spec of our side: EAGLE-2, and vanilla, which always runs."""
    tree = f"total_tokens={given.total_tokens},depth={given.depth},top_k={given.top_k}"
    import torch

    return RunSpec(
        model=str(folders.target), methods=(f"eagle2:{tree},weights={folders.head}",),
        limit=given.limit, max_new_tokens=given.max_new_tokens, repeats=given.repeats,
        device=given.device, dtype=given.dtype, prompts="bundled",
        threads=torch.get_num_threads(),
    )  # fmt: skip


def _kept(turns: Iterable[Measured], path: Path) -> Iterator[Measured]:
    """The same measurements, each written to a file at once."""
    with path.open("w", encoding="utf-8") as file:
        for one in turns:
            print(json.dumps(describe(one)), file=file, flush=True)
            yield one


def _alternating(official: Official, ours: Mapping[str, Complete]) -> Entries:
    """Both sides' vanilla, then both sides' EAGLE-2."""
    entries: dict[tuple[str, str], Complete] = {}
    for method, complete in zip(METHODS, ours.values(), strict=True):
        entries["official", method] = official.completer(method)
        entries["specbench", method] = complete
    return entries


def _versions(machine: Mapping[str, Any]) -> dict[str, Any]:
    named = {key: machine[key] for key in ("specbench", "git", "python", "transformers")}
    return {**named, "torch": machine["torch"]["version"]}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.official_eagle",
        description=(package.__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--checkout", type=Path, required=True, help=f"of {REPOSITORY}")
    parser.add_argument("--python", default=sys.executable, help="the official code's interpreter")
    parser.add_argument("--site", type=Path, help="packages that precede that interpreter's")
    parser.add_argument("--model", default="vicuna-13b", help="gives the stand-in's shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--limit", type=int, default=2, help="prompts per task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="time limit; no sample begins later"
    )
    parser.add_argument("--total-tokens", type=int, default=60)
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("results/runs/official-eagle"))
    parser.add_argument("--work", type=Path, help="folder of the weights (default: OUTPUT/work)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
