"""Steps far into a long context: the time of a forward, compared with the bytes that it must read.

    python -m benchmarks.gpu.contexts --model M [--contexts 8192 32768] [--out FILE.jsonl]

It uses a stand-in with a long enough context. One prompt of random tokens fills the cache. A
step reads the weights, and the keys and values of the whole context. Its logits are compared with
the logits after a longer prompt, which also has the tokens on a path of the step's tree. The exit
status is 1 if they differ.

A model that cannot hold tiny (because of norms of queries, sinks, or a clamped activation) gets
random weights. Its logits mean nothing, so only its times are measured, and the figures say so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from specbench.engine.clock import DeviceClock
from specbench.engine.kernels.pick_ops import relative_error
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.load import WeightSource, load_target, without_weights
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.log.backend import RooflineHeader
from specbench.measure.local.device import Device, pick_device, pick_mode
from specbench.measure.local.engine_load import make_execution
from specbench.measure.local.stand_ins import stand_in_of
from specbench.measure.local.traffic import measure_traffic
from specbench.models.cards import ModelCard, find_model
from specbench.models.checkpoints import config_if_readable
from specbench.zoo.stand_in.plan import ARCHITECTURES

ROWS = (1, 6, 26, 60)
ROUNDS, STEPS = 5, 4
EXTRA_ROWS = 256
"""Number of cache rows after the context, for trees and for the bucket that they end in."""
NUM_WORDS = 2048
"""Number of tiny's words. Only these have a meaning in a stand-in, so prompts and logits use them.
"""
ALLOWED_DIFFERENCES = {torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.03}
"""Largest difference between a step's and a prompt's logits that counts as rounding.

In bfloat16, the logits of 24 steps of tiny differ by at most 0.03. If a step leaves out an eighth
of the context, or 64 of its 300 to 1700 tokens, one of several trees differs by at least 0.07.
"""


@dataclass(frozen=True, slots=True)
class RandomWeights:
    """A `WeightSource` of random weights in the shape of a config, only for times."""

    name: str
    config: Mapping[str, Any]

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each tensor and the tensor. The weights of norms are one."""
        generator = torch.Generator(device).manual_seed(0)
        model = without_weights(AutoConfig.for_model(**self.config), dtype)
        for name, parameter in model.named_parameters():
            tensor = torch.ones(parameter.shape, device=device, dtype=dtype)
            is_norm = name.endswith("norm.weight")
            yield name, tensor if is_norm else tensor.normal_(0, 0.02, generator=generator)


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
    source = source_of(find_model(given.model), max(given.contexts) + EXTRA_ROWS)
    target = _load(source, device, getattr(torch, given.dtype))
    weights, allowed = measure_traffic(target), ALLOWED_DIFFERENCES[target.dtype]
    wrong = []
    with given.out.open("w", encoding="utf-8") as out:
        for length in given.contexts:
            prompt_ids = drawn_ids(target, length)
            figures = {"context": length, **measure(target, prompt_ids, weights)}
            if isinstance(source, RandomWeights):
                figures["values"] = "random weights: times only"
            else:
                figures["values"] = differences(target, prompt_ids)
                wrong += [
                    f"After {length} tokens, the logits of a step over {num_rows} rows differ from "
                    f"a longer prompt's by {difference:.2g}; rounding explains {allowed:g}."
                    for num_rows, difference in figures["values"].items()
                    if not difference <= allowed
                ]
            line = json.dumps(figures)
            print(line, flush=True)
            print(line, file=out, flush=True)
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


def drawn_ids(target: Target, length: int) -> list[int]:
    """Random tokens of a prompt."""
    generator = torch.Generator().manual_seed(0)
    num_words = min(target.vocab_size, NUM_WORDS)
    return torch.randint(3, num_words, (length,), generator=generator).tolist()


def measure(target: Target, prompt_ids: Sequence[int], weights: RooflineHeader) -> dict[str, Any]:
    """Time a prefill, and steps over several numbers of rows after it.

    `share` is the speed at which weights and cache are read, divided by the bandwidth. It is None
    for several rows of a mixture of experts, because the number of experts they read is unknown.
    """
    clock = DeviceClock(target.device)
    prefill_s = _seconds(lambda: target.prefill(prompt_ids, num_new=EXTRA_ROWS), clock, rounds=2)
    cache_bytes = len(prompt_ids) * target.cache.bytes_per_token
    num_bytes = weights.target_bytes - weights.unread_bytes + cache_bytes
    steps = {}
    for num_rows in ROWS:
        tree = DraftTree.chain(torch.full((num_rows,), 5, device=target.device))
        step_s = _seconds(partial(_run_steps, target, tree), clock, ROUNDS) / STEPS
        share = round(num_bytes / (step_s * weights.bandwidth_bytes_per_s), 4)
        is_known = num_rows == 1 or not weights.is_mixture_of_experts
        steps[num_rows] = {"step_ms": round(1e3 * step_s, 3), "share": share if is_known else None}
    return {
        "prefill_s": round(prefill_s, 4),
        "cache_share": round(cache_bytes / num_bytes, 4),
        "rows": steps,
        "failures": sorted(target.execution.failures),
    }


def differences(target: Target, prompt_ids: Sequence[int]) -> dict[int, float]:
    """Compare a step's logits with the logits after a longer prompt, for each number of rows.

    A difference is |step - prompt| / |prompt|, where the mean is subtracted from the logits first.
    The step's tree has two branches. The longer prompt ends with the path to the tree's last node.
    """
    target.prefill(prompt_ids, num_new=EXTRA_ROWS)
    trees = {num_rows: _two_branches(num_rows, target.device) for num_rows in ROWS}
    logits = {num_rows: _centred(target.forward(tree)) for num_rows, tree in trees.items()}
    by_rows = {}
    for num_rows, tree in trees.items():
        path_ids = tree.tokens[tree.layout.ancestors[-1]].tolist()
        expected = _centred(target.prefill([*prompt_ids, *path_ids]))
        by_rows[num_rows] = round(relative_error(logits[num_rows], expected), 6)
    return by_rows


def _centred(forward: Forward) -> Tensor:
    """The last row's logits of tiny's words, minus their mean."""
    logits = forward.logits[-1, :NUM_WORDS].float()
    return logits - logits.mean()


def _two_branches(num_rows: int, device: torch.device) -> DraftTree:
    """A tree of two branches: the parent of each node is the node two places before it."""
    layout = TreeLayout.from_parents([max(node - 2, 0) for node in range(num_rows)], device)
    return DraftTree(torch.arange(5, 5 + num_rows, device=device), layout, num_rows)


def _run_steps(target: Target, tree: DraftTree) -> None:
    for _ in range(STEPS):
        target.forward(tree)


def _seconds(work: Callable[[], object], clock: DeviceClock, rounds: int) -> float:
    """The median seconds of `work`. A first round, which loads kernels, is not counted."""
    work()
    times = []
    for _ in range(rounds):
        began = clock.now()
        work()
        times.append(clock.now() - began)
    return statistics.median(times)


def source_of(card: ModelCard, context: int) -> WeightSource | Path:
    """A model's stand-in with this context, or random weights if the model cannot hold tiny.

    For an embedded model, the result is the model's own folder, and its context stays as it is.
    """
    if card.is_embedded:
        return Path(card.repo)
    config = config_if_readable(Path(card.repo))
    if card.shape:
        shape = card.shape
        config = {
            "model_type": shape.architecture,
            **shape.config,
            "num_experts": shape.num_experts,
            "moe_intermediate_size": shape.intermediate_size,
        }
    changes = {"max_position_embeddings": context}
    if config.get("model_type") not in (None, *ARCHITECTURES):
        config = {**config, **changes, "tie_word_embeddings": False}
        return RandomWeights(f"random weights in the shape of {card.name}", config)
    stand_in = stand_in_of(card).target
    return replace(stand_in, config={**stand_in.config, **changes})


def _load(source: WeightSource | Path, device: torch.device, dtype: torch.dtype) -> Target:
    execution = make_execution(pick_mode("auto", Device(str(device))), device, dtype)
    return load_target(source, dtype=dtype, device=device, execution=execution)


if __name__ == "__main__":
    sys.exit(main())
