"""Attention far into a context, and many pairs of experts, which only large steps have.

Each check also finds a fault that is planted in its operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.kernels.pick_ops import ALLOWED_ERRORS, relative_error
from specbench.engine.layers import ops as torch_ops
from specbench.engine.layers.experts import Experts, mix
from specbench.engine.layers.operands import CacheRows, CacheSpan, Heads, TreeMask
from specbench.engine.layers.ops import TORCH, Ops
from specbench.engine.tree import TreeLayout
from tests.engine.test_ops import random_inputs, sums_by_hand

pytest.importorskip("triton", reason="triton is not installed")

from specbench.engine.kernels import triton_ops
from specbench.engine.kernels.triton_attention import join_splits
from specbench.engine.kernels.triton_ops import MOST_PAIRS
from tests.engine.kernels.test_kernels import IS_INTERPRETED, KERNELS, MANY_PROGRAMS
from tests.support.devices import DEVICE


class FarAttention(NamedTuple):
    """The operands of attention far into a context."""

    queries: Tensor
    cached: CacheRows
    masks: list[TreeMask]
    heads: Heads

    def by(self, ops: Ops, window: int | None) -> Tensor:
        """The outputs [masks, n, width], for each span of the cache."""
        outputs = [
            ops.attend(self.queries, self.cached, mask, self.heads, window=window)
            for mask in self.masks
        ]
        return torch.stack(outputs)


def far_attention(start: int, group: int, num_rows: int) -> FarAttention:
    """Attention whose queries each look for one key, near or far, so that a missing part shows."""
    heads = Heads(1, group, 16)
    torch.manual_seed(start + group)
    num_cached = start + 256
    rows = torch.randn(num_cached, 2 * heads.kv_width, device=DEVICE)
    layout = TreeLayout.from_parents([0, *range(num_rows - 1)], DEVICE)  # a chain
    queries = torch.randn(num_rows, heads.query_width, device=DEVICE)
    seen_rows = torch.linspace(0, start - 1, num_rows, dtype=torch.long, device=DEVICE)
    queries += 3 * rows[seen_rows, : heads.dim].repeat(1, group)  # each looks for a key
    cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
    masks = [
        TreeMask(
            torch.tensor(start, device=DEVICE), layout.bias(rows.dtype), span, layout.depths + start
        )
        for span in (CacheSpan(start), CacheSpan(num_cached, is_exact=False))
    ]
    return FarAttention(queries, cached, masks, heads)


@MANY_PROGRAMS
@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize(("group", "num_rows"), [(1, 60), (4, 26), (8, 1)])
@pytest.mark.parametrize("start", [4_000, 33_000])
def test_attention_is_right_far_into_a_long_context(
    start: int, group: int, num_rows: int, window: int | None
) -> None:
    case = far_attention(start, group, num_rows)
    torch.testing.assert_close(case.by(KERNELS, window), case.by(TORCH, window))
    assert KERNELS.fallbacks == {}


class FirstSplits:
    """A planted fault that leaves out the sums of the last part of the cache."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*operands: Any, **options: Any) -> None:
            num_splits = 6  # the argument's index
            fewer = [*operands]
            fewer[num_splits] -= 1
            join_splits[grid](*fewer, **options)

        return launch


@MANY_PROGRAMS
def test_a_missing_part_of_a_long_context_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = far_attention(33_000, 8, 1)
    monkeypatch.setattr(triton_ops, "join_splits", FirstSplits())
    output = case.by(KERNELS, None)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        torch.testing.assert_close(output, case.by(TORCH, None))


def error_of_experts(num_rows: int, dtype: torch.dtype) -> float:
    """The relative error of the sums of two chosen experts for each row."""
    inputs = random_inputs(num_rows)
    expected = sums_by_hand(inputs)
    gate_up = inputs.experts.gate_up.to(DEVICE, dtype)
    down = inputs.experts.down.to(DEVICE, dtype)
    sums = KERNELS.experts(
        inputs.x.to(DEVICE, dtype),
        experts=Experts(gate_up, down),
        ids=inputs.ids.to(DEVICE),
        shares=inputs.shares.to(DEVICE, dtype),
        act=silu,
    )
    assert KERNELS.fallbacks == {}
    return relative_error(sums.cpu(), expected)


@pytest.mark.parametrize("num_rows", [MOST_PAIRS // 2, MOST_PAIRS // 2 + 1, 60, 160])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trees_of_few_and_many_pairs_have_the_sums_of_their_experts(
    num_rows: int, dtype: torch.dtype
) -> None:
    if IS_INTERPRETED and dtype == torch.bfloat16 and 2 * num_rows <= MOST_PAIRS:
        pytest.skip("the interpreter multiplies no bfloat16")
    assert error_of_experts(num_rows, dtype) < ALLOWED_ERRORS[dtype]


def test_a_missing_expert_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_one(x: Tensor, experts: Any, ids: Tensor, shares: Tensor, act: Any) -> Tensor:
        return mix(x, experts, ids, shares.masked_fill(ids == 3, 0), act)

    monkeypatch.setattr(torch_ops, "mix", without_one)
    assert error_of_experts(60, torch.float32) > ALLOWED_ERRORS[torch.bfloat16]
