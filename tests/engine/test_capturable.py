"""Captured functions neither copy from the host nor wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.decode import decode
from specbench.engine.target import Target
from specbench.registry import names
from specbench.types import Request, Sampling
from tests.methods.building import build_random
from tests.support.fake_cuda import CheckedGraphs, refusals
from tests.support.models import prompts, random_llama
from tests.support.recorders import rerun
from tests.support.weights import build

SAMPLINGS = [Sampling(), Sampling(1.0)]
WARPED = Sampling(0.7, top_p=0.9, top_k=20)


def checked(name: str, sampling: Sampling, folder: Path, **options: Any) -> CheckedGraphs:
    """The graphs that a short completion captured; `arch` is an option of the checkpoint."""
    graphs = CheckedGraphs(rerun)
    target = Target(random_llama(), graphs)
    if arch := options.pop("arch", None):
        drafter = build_random(name, target, folder, {"arch": arch})
    else:
        drafter = build(name, target, folder, **options)
    decode(target, drafter, Request(prompts()[3], 8, sampling))
    assert graphs.failures == set()
    return graphs


@pytest.mark.parametrize(
    ("name", "options", "sampling"),
    [
        *((name, {}, SAMPLINGS[place % 2]) for place, name in enumerate(names(), 1)),
        ("hydra", {"arch": "prefix-mlp"}, Sampling()),
        ("medusa", {"acceptance": "typical"}, Sampling(1.0)),
        ("eagle", {}, WARPED),
    ],
    ids=str,
)
def test_every_captured_function_can_be_captured(
    name: str, options: dict[str, str], sampling: Sampling, tmp_path: Path
) -> None:
    graphs = checked(name, sampling, tmp_path, **options)
    assert graphs.num_checked >= 2
    assert graphs.refused == set()


@pytest.mark.parametrize(
    "planted",
    [
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x + torch.ones(3, device="cpu"),
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x[[0, 1]],
        lambda x: x.nonzero(),
        lambda x: torch.rand(3, device=x.device),
    ],
)
def test_what_a_capture_refuses_is_found(planted: Callable[[Tensor], object]) -> None:
    (refused,) = refusals(planted, (torch.ones(3),))
    assert refused.startswith("test_capturable.py:")
