"""Which operations compute a decoder layer on a device: kernels, if there are some that are right.

Knows the operations' results. Knows nothing of how they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.ops import TORCH, CacheRows, Heads, Norm, Ops, Place, Reach, View
from specbench.errors import reason_of

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""How far a kernel's result may be from torch's operations', relative to it, by dtype."""


def pick_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    """Triton's kernels if they can be had on a GPU and compute what torch's operations do."""
    try:
        from specbench.engine.triton_ops import TritonOps
    except ImportError as error:
        return Ops(f"triton cannot be imported ({error})")
    ops = TritonOps(torch.cuda.get_device_properties(device).multi_processor_count)
    reason = why_not(ops, device, dtype)
    return Ops(reason) if reason else ops


@torch.inference_mode()
def why_not(ops: Ops, device: torch.device, dtype: torch.dtype) -> str | None:
    """What is wrong with operations on a device; None if they compute what torch's do."""
    limit = LIMITS.get(dtype)
    if limit is None:
        return f"there are none for {str(dtype).removeprefix('torch.')}"
    for num_rows in (1, 5, 16, 40):  # each is computed by another kernel, or another size of it
        try:
            found, expected = (dict(_results(one, num_rows, device, dtype)) for one in (ops, TORCH))
        except Exception as error:  # a compiler, a driver or a device that is too old
            return f"{ops.name} fails: {reason_of(error)}"
        for what, right in expected.items():
            off = float((found[what] - right).norm() / right.norm())
            if not off <= limit:
                return f"{what} of {ops.name} is off by {off:.1e}"
    return None


def _results(
    ops: Ops, n: int, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """What each operation makes of n seeded random rows, in float64."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    hidden, inner, capacity, start = 1200, 1100, 512, 300
    heads = Heads(num_kv=2, group=2, dim=128)
    x, residual, norm = drawn(n, hidden), drawn(n, inner), Norm(drawn(hidden), 1e-5)
    weight, bias = drawn(inner, hidden), drawn(inner)
    yield "the norm", ops.norm(x, norm).double()
    yield "a product", ops.project(x, weight, bias).double()
    yield "a normed product", ops.project(x, weight, norm=norm, residual=residual).double()
    gate_up = drawn(2 * inner, hidden)
    yield "the gate", ops.gated(x, gate_up, None, norm, silu).double()
    rows, width = drawn(capacity, 2 * heads.kv_width), heads.query_width + 2 * heads.kv_width
    angles = torch.rand(n, 1, 1, heads.dim // 2, generator=generator).to(device)
    cos, sin = angles.cos().expand(-1, -1, 2, -1), angles.sin()
    turn = torch.stack([cos, torch.cat([-sin, sin], 2)], 1).to(dtype)
    place = Place(torch.arange(start, start + n, device=device), turn)
    cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
    qkv = drawn(n, width)
    ops.keep(qkv, cached, place, heads)
    yield "the rotary embedding", qkv[:, : heads.query_width].double()
    yield "the cache", rows.double()
    sees = torch.ones(n, n).tril().to(device, dtype)
    tree = View(
        torch.tensor(start, device=device), (sees - 1) * torch.finfo(dtype).max,
        Reach(capacity, is_exact=False),
    )  # fmt: skip
    queries = qkv[:, : heads.query_width]
    nothing = View(torch.tensor([start], device=device), rows.new_zeros(1, 0), tree.reach)
    yield "attention of a row", ops.attend(queries[:1], cached, nothing, heads).double()
    yield "attention", ops.attend(queries, cached, tree, heads).double()
