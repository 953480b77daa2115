"""The kernels of a layer that transformers runs, as the estimate of graphs counts them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CONFIG_MAPPING

from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.models.memory import _PLAIN_KERNELS
from tests.support.architectures import FULL, LIMITED, config_of, random_of

_NONE = {"_local_scalar_dense", "alias", "detach", "empty", "empty_like", "unsqueeze"}
"""Operations without a kernel, besides views."""
_SEVERAL = {
    "_grouped_mm": 2, "cumsum": 2, "histc": 2, "index_put_": 4, "sort": 4, "topk": 2,
}  # fmt: skip
"""Kernels on a GPU of operations that take more than one, at most."""


class _Counter(TorchDispatchMode):
    """Counts the kernels before, in, between and after the layers."""

    def __init__(self, layers: torch.nn.ModuleList) -> None:
        super().__init__()
        self.counts = [0]
        for layer in layers:
            layer.register_forward_pre_hook(lambda *_: self.counts.append(0))
            layer.register_forward_hook(lambda *_: self.counts.append(0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, results = func.overloadpacket.__name__, func._schema.returns
        is_view = any(one.alias_info and not one.alias_info.is_write for one in results)
        if not is_view and name not in _NONE:
            self.counts[-1] += _SEVERAL.get(name, 1)
        return func(*args, **(kwargs or {}))


@cache
@torch.inference_mode()
def num_kernels(model_type: str, **changes: Any) -> int | None:
    """The most kernels of a layer in a step of four nodes; None if it is fused."""
    target = Target(random_of(config_of(model_type, **changes)).to(torch.bfloat16))
    if target.unfused_reason is None:
        return None
    target.prefill((1, 7, 8, 9))
    with _Counter(target.layers) as counter:
        target.forward(DraftTree.chain(torch.tensor([5, 9, 8, 7])))
    return max(counter.counts[1:-1])


@pytest.mark.parametrize("model_type", [*FULL, *LIMITED])
def test_a_layer_has_no_more_kernels_than_the_estimate(model_type: str) -> None:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {model_type}")
    found = num_kernels(model_type)
    assert found is None or 10 < found <= _PLAIN_KERNELS


def test_the_estimate_is_that_of_the_largest_layer_and_experts_are_not_counted_one_by_one() -> None:
    found = num_kernels("deepseek_v3")
    assert found is not None and 0.9 * _PLAIN_KERNELS < found <= _PLAIN_KERNELS
    assert num_kernels("deepseek_v3", n_routed_experts=16) == found
