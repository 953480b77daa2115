"""Steps far into a long context: the time of a forward against the bytes that it must read.

    python -m benchmarks.gpu.contexts --model M [--contexts 8192 32768] [--out FILE.jsonl]

It uses a stand-in with a long enough context. One prompt of random tokens fills the cache. A
step reads the weights, and the keys and values of the whole context.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specbench.engine.clock import DeviceClock
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.load import WeightSource, load_target
from specbench.engine.model_parts import pass_bytes
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.machine.bandwidth import bandwidth
from specbench.measure.local.device import Device, pick_device, pick_mode
from specbench.measure.local.engine_load import make_execution
from specbench.measure.local.stand_ins import stand_in_of
from specbench.models.cards import find_model

ROWS = (1, 6, 26, 60)
ROUNDS, STEPS = 5, 4
EXTRA_ROWS = 256
"""Cache rows after the context, for trees and for the bucket that they end in."""


@torch.inference_mode()
@without_cudnn_attention()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the figures of each context."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--out", type=Path, default=Path(os.devnull), help="lines of JSON")
    given = parser.parse_args(argv)
    device = torch.device(pick_device(given.device).name)
    target = _load(
        given.model, device, getattr(torch, given.dtype), max(given.contexts) + EXTRA_ROWS
    )
    fastest = bandwidth(device)
    with given.out.open("a", encoding="utf-8") as out:
        for length in given.contexts:
            line = json.dumps({"context": length, **measure(target, length, fastest)})
            print(line, flush=True)
            print(line, file=out, flush=True)
    return 0


def measure(target: Target, length: int, fastest: float) -> dict[str, Any]:
    """Times of a prefill of `length` tokens, and of steps over several numbers of rows after it.

    `share` is the speed at which weights and cache are read / `fastest`, the bandwidth in bytes/s.
    """
    ids = torch.randint(3, target.vocab_size, (length,), generator=torch.Generator().manual_seed(0))
    clock = DeviceClock(target.device)
    prefill_s = _seconds(lambda: target.prefill(ids.tolist(), num_new=EXTRA_ROWS), clock, rounds=2)
    num_bytes = pass_bytes(target.model) + length * target.cache.bytes_per_token
    steps = {}
    for num_rows in ROWS:
        tree = DraftTree.chain(torch.full((num_rows,), 5, device=target.device))
        step_s = _seconds(partial(_run_steps, target, tree), clock, ROUNDS) / STEPS
        share = num_bytes / (step_s * fastest)
        steps[num_rows] = {"step_ms": round(1e3 * step_s, 3), "share": round(share, 4)}
    return {
        "prefill_s": round(prefill_s, 4),
        "cache_share": round(1 - pass_bytes(target.model) / num_bytes, 4),
        "rows": steps,
        "failures": sorted(target.execution.failures),
    }


def _run_steps(target: Target, tree: DraftTree) -> None:
    for _ in range(STEPS):
        target.forward(tree)


def _seconds(work: Callable[[], object], clock: DeviceClock, rounds: int) -> float:
    """Median seconds, without a first round that loads kernels and captures graphs."""
    work()
    times = []
    for _ in range(rounds):
        began = clock.now()
        work()
        times.append(clock.now() - began)
    return statistics.median(times)


def _load(name: str, device: torch.device, dtype: torch.dtype, context: int) -> Target:
    """Load a model's stand-in with this context; tiny is loaded itself, with its own context."""
    card = find_model(name)
    source: WeightSource | Path = Path(card.repo)
    if not card.is_embedded:
        stand_in = stand_in_of(card).target
        source = replace(stand_in, config={**stand_in.config, "max_position_embeddings": context})
    execution = make_execution(pick_mode("auto", Device(str(device))), device, dtype)
    return load_target(source, dtype=dtype, device=device, execution=execution)


if __name__ == "__main__":
    sys.exit(main())
