"""Overlapped kernels give bit-identical results."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.graphs.cuda import Graphs
from specbench.engine.graphs.recorder import CudaRecorder
from specbench.engine.kernels.pick_ops import NO_OVERLAP, pick_ops
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree, TreeLayout
from tests.support.fallbacks import fallbacks
from tests.support.models import random_llama

pytest.importorskip("triton", reason="triton is not installed")

from specbench.engine.kernels.triton_ops import TritonOps

NUM_REPLAYS = 1000
SMALL = {
    "layers": 8, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 4000, "max_position_embeddings": 1024,
}  # fmt: skip
LARGE = {
    **SMALL, "layers": 2, "hidden_size": 5120, "intermediate_size": 13824,
    "num_attention_heads": 40, "num_key_value_heads": 40,
}  # fmt: skip
"""The layers of SMALL are as small as an EAGLE head's, those of LARGE as large as vicuna-13b's."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


TREES = [1, 2, 16, 17, 26, 33, 60, 64]
"""Numbers of nodes of a tree."""


@pytest.fixture(scope="module")
def targets() -> Callable[[bool], list[Target]]:
    """The same random model with and without overlapped kernels, by size."""
    device = torch.device("cuda:0")
    if torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("kernels overlap from compute capability 9.0 on")
    if reason := pick_ops(device, torch.bfloat16).fallbacks.get(NO_OVERLAP):
        pytest.skip(f"launches do not overlap: {reason}")  # such as Triton 3.4, of torch 2.8
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count

    @cache
    def of(is_large: bool) -> list[Target]:
        model: Any = random_llama(**(LARGE if is_large else SMALL)).to(device, torch.bfloat16)
        both = (TritonOps(num_processors, is_early=early) for early in (False, True))
        return [Target(deepcopy(model), Graphs(CudaRecorder(device), ops)) for ops in both]

    return of


@pytest.mark.parametrize(("num_committed", "is_large"), [(40, False), (700, True)])
@pytest.mark.parametrize("num_nodes", TREES)
@torch.inference_mode()
def test_replays_with_and_without_overlap_are_equal_bit_for_bit(
    num_nodes: int, num_committed: int, is_large: bool, targets: Callable[[bool], list[Target]]
) -> None:
    layout = TreeLayout.from_parents([max(i - 3, 0) for i in range(num_nodes)], "cuda:0")
    tokens = torch.arange(5, 5 + num_nodes, device="cuda:0")
    tree = DraftTree(tokens, layout, num_nodes)
    needs = Needs(hidden=True, layer_inputs=(1,))
    results: list[Tensor] = []
    num_wrong = torch.zeros((), dtype=torch.long, device="cuda:0")
    for target in targets(is_large):
        with target.capture(needs):
            target.prefill(range(3, 3 + num_committed))
            for _ in range(NUM_REPLAYS):  # each follows the launches of torch that fill its inputs
                forward = target.forward(tree)
                assert forward.hidden is not None
                outputs = forward.logits, forward.hidden, *forward.layer_inputs.values()
                if not results:
                    results = [part.clone() for part in outputs]
                num_wrong += sum((a != b).any() for a, b in zip(outputs, results, strict=True))
        assert fallbacks(target) == []
    assert all(bool(part.isfinite().all()) for part in results)
    assert int(num_wrong) == 0
