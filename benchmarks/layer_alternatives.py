"""Alternatives for a decoder layer on a tree: `torch.compile` and `flex_attention`.

`benchmarks.layer_time` measures them. They compile plain torch, not the engine's operations, whose
choices a compiler cannot trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from benchmarks.measured import Made
from specbench.engine.layers.operands import CacheSlots, Heads, Norm, TreeMask

if TYPE_CHECKING:
    from benchmarks.layer_time import Layer


@dataclass(frozen=True)
class Alternative:
    """A way to compute layers, or a part of it, and the bytes of weights that each layer reads."""

    name: str
    made: Made
    num_bytes: int
    num_layers: int


@dataclass(frozen=True)
class Rows:
    """The rows of a step, as a layer receives them."""

    x: Tensor  # [n, hidden]
    norm: Norm
    slots: CacheSlots
    tree_mask: TreeMask
    heads: Heads

    @property
    def mask(self) -> Tensor:
        """Additive mask [n, cache rows] over a fixed number of rows."""
        mask = self.tree_mask.mask
        assert mask is not None
        return mask


def alternatives(rows: Rows, layers: Sequence[Layer], num_bytes: int) -> Iterator[Alternative]:
    """All alternatives for layers of `num_bytes` weights each."""
    modes = {"torch.compile": "default"}
    if rows.x.is_cuda:
        modes["torch.compile, max-autotune"] = "max-autotune-no-cudagraphs"
    for name, mode in modes.items():
        made = partial(compiled_layers, rows, layers, mode)
        yield Alternative(name, made, num_bytes, len(layers))
    yield Alternative("flex_attention", partial(flex_layers, rows, layers), 0, len(layers))
    # One mask serves all layers of a step.
    yield Alternative("flex_attention's mask", lambda: partial(tree_mask, rows), 0, 1)


def compiled_layers(rows: Rows, layers: Sequence[Layer], mode: str) -> Callable[[], Tensor]:
    """Run all layers one after the other with one compiled function."""
    torch.compiler.reset()  # graphs of other numbers of rows would make this one dynamic
    compiled = torch.compile(plain_layer, fullgraph=True, mode=mode)
    mask = rows.mask

    def run() -> Tensor:
        x = rows.x
        for layer in layers:
            x = compiled(
                x, layer.qkv, layer.o, layer.gate_up, layer.down, rows.norm.weight,
                layer.cached.all, rows.slots.rows, rows.slots.cos_sin, mask, rows.heads,
                rows.norm.eps,
            )  # fmt: skip
        return x

    run()
    return run


def plain_layer(
    x: Tensor, qkv: Tensor, o: Tensor, gate_up: Tensor, down: Tensor, norm: Tensor, cache: Tensor,
    kept: Tensor, cos_sin: Tensor, mask: Tensor, heads: Heads, eps: float,
) -> Tensor:  # fmt: skip
    """A decoder layer over x [n, hidden], which writes keys and values to rows of its cache."""
    widths = [heads.query_width, heads.kv_width, heads.kv_width]
    queries, keys, values = linear(rms_norm(x, norm.shape, norm, eps), qkv).split(widths, 1)
    queries, keys = (_turned(part, cos_sin, heads.dim) for part in (queries, keys))
    cache.index_copy_(0, kept, torch.cat([keys, values], 1))
    span = cache[: mask.shape[1]].unflatten(1, (2, heads.num_kv, heads.dim)).permute(1, 2, 0, 3)
    out = scaled_dot_product_attention(
        _by_head(queries, heads)[None], span[:1], span[1:], mask, enable_gqa=heads.group > 1
    )
    x = x + linear(out[0].transpose(0, 1).flatten(1), o)
    gate, up = linear(rms_norm(x, norm.shape, norm, eps), gate_up).chunk(2, -1)
    return x + linear(silu(gate) * up, down)


def flex_layers(rows: Rows, layers: Sequence[Layer]) -> Callable[[], Tensor]:
    """Attention over the cache of each layer, with a prepared mask."""
    torch.compiler.reset()
    attend: Any = torch.compile(flex_attention, fullgraph=True)
    mask, heads = tree_mask(rows), rows.heads
    queries = _by_head(rows.x.new_ones(rows.x.shape[0], heads.query_width), heads)[None]
    span = rows.tree_mask.num_rows

    def run() -> Tensor:
        for layer in layers:
            keys, values = (
                part[None, :, :span] for part in (layer.cached.keys, layer.cached.values)
            )
            out = attend(queries, keys, values, block_mask=mask, enable_gqa=heads.group > 1)
        return out[0].transpose(0, 1).flatten(1)

    run()
    return run


def tree_mask(rows: Rows) -> Any:
    """The block mask of a tree. Every step needs a new one: tree and length change."""
    is_seen = rows.mask >= 0

    def sees(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return is_seen[row, column]

    n, span = is_seen.shape
    return create_block_mask(sees, None, None, n, span, device=is_seen.device)


def _by_head(queries: Tensor, heads: Heads) -> Tensor:
    return queries.unflatten(1, (heads.num_kv * heads.group, heads.dim)).transpose(0, 1)


def _turned(part: Tensor, cos_sin: Tensor, dim: int) -> Tensor:
    halves = part.unflatten(1, (-1, 2, dim // 2))
    cos, sin = cos_sin.unbind(1)
    return (halves * cos + halves.flip(2) * sin).flatten(1)
