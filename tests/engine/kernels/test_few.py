"""The kernel for products of few rows, in Triton's interpreter if there is no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specbench.engine.kernels.pick_ops import LIMITS, off_by
from specbench.engine.kernels.products import FEW, LinearCall, Product
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import TORCH

pytest.importorskip("triton", reason="triton is not installed")

from specbench.engine.kernels.triton_ops import TritonOps
from specbench.engine.kernels.triton_products import FEW_BLOCK, Products

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float16, torch.bfloat16 if torch.cuda.is_available() else torch.float32)
HOW = {"EARLY": False}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def call_of(
    num_rows: int, num_out: int, size: int, dtype: torch.dtype, *, is_gated: bool = False,
    is_gelu: bool = False, has_norm: bool = False, has_bias: bool = False,
    has_residual: bool = False,
) -> LinearCall:  # fmt: skip
    width = num_out * (1 + is_gated)
    x = drawn(num_rows, size + 16, dtype=dtype)[:, :size]  # a row is not followed by the next one
    norm = Norm(drawn(size, dtype=dtype).abs() + 0.5, 1e-5)
    return LinearCall(
        x,
        drawn(width, size, dtype=dtype) * size**-0.5,
        drawn(width, dtype=dtype) if has_bias else None,
        norm if has_norm else None,
        drawn(num_rows, num_out, dtype=dtype) if has_residual else None,
        is_gated,
        is_gelu,
    )


def by_kernel(ops: TritonOps, call: LinearCall) -> Tensor:
    residual = call.residual
    if residual is not None:
        call = replace(call, residual=residual.clone())
    found = ops.launched(call, FEW)
    assert residual is None or found is call.residual
    assert ops.fallbacks == {}
    return found


def by_torch(call: LinearCall) -> Tensor:
    if call.residual is not None:
        call = replace(call, residual=call.residual.clone())
    return call.by(TORCH)


FLAVOURS = (
    {"has_norm": True, "has_bias": True},
    {"has_residual": True},
    {"has_norm": True, "is_gated": True},
    {"has_norm": True, "is_gated": True, "has_bias": True},
    {"has_norm": True, "is_gated": True, "is_gelu": True},
    {"has_norm": True, "has_bias": True, "has_residual": True},
)
SIZES = ((130, 336), (67, 80))
"""Outputs and inputs that fill no tile: 11008 is 172 blocks, 4864 is 38 tiles, a head is odd."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [2, 3, 16, 17, 32, 33, 60, 63, 64])
def test_products_of_few_rows_equal_torchs(num_rows: int, dtype: torch.dtype) -> None:
    ops = TritonOps(num_processors=8)
    num_out, size = SIZES[num_rows % 2]
    for flavour in FLAVOURS[num_rows % 2 :: 2]:  # each at every size of a tile
        call = call_of(num_rows, num_out, size, dtype, **flavour)
        assert off_by(by_kernel(ops, call), by_torch(call)) < LIMITS[dtype]


@pytest.mark.parametrize("is_gated", [False, True])
def test_split_products_equal_torchs(is_gated: bool) -> None:
    ops = TritonOps(num_processors=16)
    call = call_of(5, 70, 400, torch.float16, has_norm=True, is_gated=is_gated)
    plan = Products(16, HOW).plan(Product(16, 70, 400, is_gated), FEW)
    assert plan.num_splits > 1
    assert off_by(by_kernel(ops, call), by_torch(call)) < LIMITS[torch.float16]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the order is that of the interpreter")
def test_no_bit_depends_on_which_split_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import interpreter_builder as builder

    call, before = call_of(7, 64, 1088, torch.float32), drawn(7, 64)
    products = Products(16, HOW)
    num_splits = products.plan(Product(16, 64, 1088), FEW).num_splits
    assert num_splits > 3
    slots = builder.set_grid_idx
    results = []
    for orders in (range(num_splits), reversed(range(num_splits)), (1, 0, *range(2, num_splits))):
        order = list(orders)
        monkeypatch.setattr(
            builder, "set_grid_idx", lambda x, y, z, order=order: slots(x, order[y], z)
        )
        for _ in range(2):  # the second launch counts from zero again
            results.append(products.few(replace(call, residual=before.clone()), FEW))
    assert all(torch.equal(found, results[0]) for found in results)
    assert off_by(results[0], by_torch(call) + before) < 1e-5


def test_splits_cover_the_input_once_in_whole_blocks() -> None:
    for processors in (40, 72, 108, 132, 148):
        products = Products(processors, HOW)
        for num_out, size in ((15360, 5120), (5120, 13824), (32000, 4096), (896, 4864), (64, 64)):
            plan = products.plan(Product(64, num_out, size), FEW)
            covered = plan.num_steps * FEW_BLOCK
            assert (plan.num_splits - 1) * covered < size <= plan.num_splits * covered
