"""Checks that need a GPU, in two minutes: one line per check, with its value and verdict.

    python -m benchmarks.gpu.checks [--out FILE.jsonl] [--device cuda] [--model vicuna-13b] [...]

1. the machine and its memory bandwidth;
2. the statements that a capture allows;
3. the cost of attention at a new length, with and without cuDNN's kernel;
4. the share of the bandwidth that torch's products of few rows reach, in the shape of a model;
5. every method's steps can be captured, and give the tokens of eager steps (float32);
6. layers with overlapping launches give the same results in every replay.

Without a CUDA device, checks that need one are skipped with a note. The exit status is 1 if a check
found a problem; facts without a verdict are a "note".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from msgspec import to_builtins

from benchmarks.gpu.captures import capture_every_method, capture_statements
from benchmarks.gpu.check import Check, CheckSettings
from benchmarks.gpu.operations import attention_at_new_lengths, overlapping_layers, products
from specbench.errors import reason_of
from specbench.machine import environment
from specbench.machine.bandwidth import bandwidth
from specbench.measure.local.device import pick_device
from specbench.models.cards import find_model

Checker: TypeAlias = Callable[[CheckSettings], Iterator[Check]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks; returns 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default="vicuna-13b", help="gives the layers' shape")
    parser.add_argument("--prompts", type=int, default=6, help="prompts per method")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--replays", type=int, default=1000, help="replays of overlapping layers")
    parser.add_argument(
        "--out", type=Path, default=Path(os.devnull), help="a line of JSON for each"
    )
    given = parser.parse_args(argv)
    device = torch.device(pick_device(given.device).name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    settings = CheckSettings(
        device, getattr(torch, given.dtype), find_model(given.model).shape, given.prompts,
        given.max_new_tokens, given.replays,
    )  # fmt: skip
    problems = []
    with given.out.open("a", encoding="utf-8") as out:
        for check in run_checks(CHECKERS, settings):
            print(f"{check.verdict:8}{check.name}: {check.text}", flush=True)
            found = {"check": check.name, "verdict": check.verdict, "value": check.value}
            print(json.dumps(found), file=out, flush=True)
            if check.is_ok is False:
                problems.append(check.name)
    if problems:
        print(f"PROBLEM in {', '.join(problems)}")
    return 1 if problems else 0


def run_checks(checkers: Sequence[Checker], settings: CheckSettings) -> Iterator[Check]:
    """Results of all checkers. An exception is a problem, and the next checker still runs."""
    for checker in checkers:
        try:
            yield from checker(settings)
        except Exception as error:  # devices, drivers and compilers raise anything
            yield Check(checker.__name__, False, f"fails: {reason_of(error)}")


def machine(settings: CheckSettings) -> Iterator[Check]:
    """The machine and its bandwidth."""
    facts = environment.capture()
    yield Check("machine", None, ", ".join(facts.torch.devices) or "no GPU", to_builtins(facts))
    speed = bandwidth(settings.device)
    yield Check("bandwidth", None, f"{speed / 1e9:.0f} GB/s", round(speed / 1e9, 1))


CHECKERS: tuple[Checker, ...] = (
    machine,
    capture_statements,
    attention_at_new_lengths,
    products,
    capture_every_method,
    overlapping_layers,
)
"""Checks that may leave the device in a bad state come last."""


if __name__ == "__main__":
    sys.exit(main())
