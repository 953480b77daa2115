"""Costs of the harness itself: our loop against `generate`, host time per step, start-up time.

    python benchmarks/overhead.py [MODEL_DIR]

Prints a table of ratios measured in one run with alternating methods. The best of several rounds
counts, because other work on the machine can only slow a round down. Without a folder, it makes a
small random Llama.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.registry import get
from specbench.types import Request

TOKENS, ROUNDS = 128, 9
METHODS = ("vanilla", "pld", "lookahead")


class Stopwatch:
    """Adds up the seconds spent inside a model's forward."""

    def __init__(self, model: Any) -> None:
        self.seconds = 0.0
        self._forward = model.forward
        model.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._forward(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - began


def small_target() -> Target:
    """A random Llama with a million parameters in its layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=344, num_hidden_layers=4,
        num_attention_heads=4, max_position_embeddings=2048,
    )  # fmt: skip
    return Target(LlamaForCausalLM(config).eval())


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(2)
    if len(sys.argv) > 1:
        target = load_target(Path(sys.argv[1]), dtype=torch.float32, device=torch.device("cpu"))
    else:
        target = small_target()
    prompt = tuple(range(5, 45)) * 2
    request = Request(prompt, TOKENS)
    drafters = {
        name: get(name).build(get(name).options(), BuildContext(target)) for name in METHODS
    }
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        expected = target.model.generate(
            torch.tensor([prompt]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        keep_best(best, "generate", (time.perf_counter() - began) / TOKENS)
        for name, drafter in drafters.items():
            done = decode(target, drafter, request)
            assert list(done.token_ids) == expected[0, len(prompt) :].tolist()
            keep_best(best, name, done.wall_s / TOKENS)
    watch = Stopwatch(target.model)
    for _ in range(ROUNDS):
        for name, drafter in drafters.items():
            watch.seconds = 0.0
            done = decode(target, drafter, request)
            host = (done.wall_s - watch.seconds) / len(done.steps)
            keep_best(best, f"host of {name}", host)
    print(f"{'vanilla / generate, per token':44}{best['vanilla'] / best['generate']:.2f}")
    for name in ("generate", "vanilla"):
        print(f"{name + ', ms per token':44}{best[name] * 1e3:.3f}")
    for name in METHODS:
        print(f"{f'host time of {name}, ms per step':44}{best[f'host of {name}'] * 1e3:.3f}")
    for command in ("--help", "list methods"):
        print(f"{f'specbench {command}, s':44}{start_up(command):.2f}")


def keep_best(best: dict[str, float], name: str, value: float) -> None:
    """Keep the smallest value of each name."""
    best[name] = min(best.get(name, value), value)


def start_up(command: str) -> float:
    """Seconds of the fastest of five starts."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        line = [sys.executable, "-m", "specbench", *command.split()]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
