"""The outputs of the official implementations on tiny checkpoints in their own formats.

They are not part of the project. `SPECBENCH_PARITY` names their folder.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.measure.local.device import Device, pick_mode
from specbench.measure.local.engine_load import make_execution
from specbench.registry import get
from specbench.types import Completion, Request, Sampling

FOLDER = Path(os.environ.get("SPECBENCH_PARITY", "")) / "set_a"
needs_parity = pytest.mark.skipif(
    not ("SPECBENCH_PARITY" in os.environ and FOLDER.is_dir()),
    reason="SPECBENCH_PARITY names no folder with set_a, the official implementations' outputs",
)
EOS = 2


@dataclass(frozen=True)
class Golden:
    """The output of an official implementation for one prompt."""

    id: str
    output_ids: list[int]
    accept_lengths: list[int]


@cache
def load_golden(name: str) -> list[Golden]:
    lines = (FOLDER / "golden" / f"{name}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [Golden(row["id"], row["output_ids"], row["accept_lengths"]) for row in rows]


@cache
def prompt_ids() -> list[tuple[int, ...]]:
    lines = (FOLDER / "prompts.jsonl").read_text().splitlines()
    return [tuple(json.loads(line)["input_ids"]) for line in lines]


@cache
def target() -> Target:
    """The target as a run loads it, with compiled operations if they can be built."""
    device, dtype = torch.device("cpu"), torch.float32
    execution = make_execution(pick_mode("auto", Device("cpu")), device, dtype)
    return load_target(FOLDER / "target", dtype=dtype, device=device, execution=execution)


@cache
def complete_all(
    method: str,
    weights: str | None = None,
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    **options: Any,
) -> list[Completion]:
    """All golden prompts through one drafter, computed once for all tests."""
    drafting = get(method)
    given = drafting.options(**options)
    drafter = drafting.build(given, BuildContext(target(), FOLDER / weights if weights else None))
    done = []
    for ids in prompt_ids():
        request = Request(ids, max_new_tokens, Sampling(temperature), frozenset({EOS}), 10)
        done.append(decode(target(), drafter, request))
        if drafting.scope_with(given) == "run":
            drafter.remember()
    return done


def mean_accepted(lists: Sequence[Sequence[int]]) -> float:
    return sum(map(sum, lists)) / sum(map(len, lists))
