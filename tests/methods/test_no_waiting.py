"""Proposing a tree never waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.engine.decode import decode
from specbench.types import Request, Sampling
from tests.methods.building import HEADS, build_random
from tests.support.models import prompts, random_target

WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique"}


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = (
            name.startswith("index")
            and isinstance(args[1], (list, tuple))
            and any(isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1])
        )
        assert name not in WAITING and not by_mask, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def capture(propose: Callable[[Any], Any], patch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    def refuse(tensor: Tensor) -> None:
        raise AssertionError("a tensor became a list")

    def inner(state: Any) -> Any:
        with patch.context() as inside, NoWaiting():
            inside.setattr(Tensor, "tolist", refuse)
            return propose(state)

    return inner


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("method", HEADS)
def test_a_proposal_waits_for_nothing(
    method: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = random_target(layers=4)
    made = {"arch": "prefix-mlp"} if method == "hydra" else None
    drafter: Any = build_random(method, target, tmp_path, made)
    drafter.propose = capture(drafter.propose, monkeypatch)
    assert decode(target, drafter, Request(prompts()[1], 12, sampling)).num_tokens == 12


def test_the_check_finds_operations_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for wait in (lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x.tolist(),
                 lambda x: x[x > 0]):  # fmt: skip
        with pytest.raises(AssertionError):
            capture(wait, monkeypatch)(torch.ones(3))
