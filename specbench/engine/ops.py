"""The operations of a decoder layer, on rows of tokens and of a cache.

Knows tensors, positions and what a row may look at. Knows nothing of layers, trees or methods.
Every shape is fixed by the inputs' and no value reaches the host, so that a call can be replayed as
a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention

from specbench.engine.tree import mask_behind


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where the rows of a forward are kept, and their rotary embeddings."""

    rows: Tensor  # [n] int64, the cache rows they are written to
    cos: Tensor  # [n, 1, 2, head_dim / 2]
    sin: Tensor  # the same, negative in the first half


@dataclass(frozen=True, slots=True)
class Reach:
    """How many rows of a cache its readers look at, known on the host.

    Exactly those that are filled, or a fixed number with a mask over the rest, so that the shapes
    stay the same from step to step.
    """

    num_rows: int
    is_exact: bool = True

    def span(self, num_more: int) -> int:
        """How many when `num_more` follow the committed ones."""
        return self.num_rows + num_more if self.is_exact else self.num_rows


@dataclass(frozen=True, eq=False)
class View:
    """What the n rows of a forward see: all of the cache's first `start` rows, as far as `reach`.

    Of the m rows behind these they see what the additive `bias` [n, m] lets them.
    """

    start: Tensor  # []
    bias: Tensor
    reach: Reach

    @cached_property
    def span(self) -> int:
        """How many rows of the cache are looked at."""
        return self.reach.span(self.bias.shape[1])

    @cached_property
    def mask(self) -> Tensor | None:
        """The additive mask [n, span]; None where everything is seen."""
        if not self.reach.is_exact:
            return mask_behind(self.start, self.bias, self.span)
        # A row that is alone behind the first ones sees everything.
        return None if self.bias.numel() <= 1 else pad(self.bias, (self.reach.num_rows, 0))


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a layer: `group` query heads to each of `num_kv` key heads."""

    num_kv: int
    group: int
    dim: int

    @property
    def query_width(self) -> int:
        return self.num_kv * self.group * self.dim

    @property
    def kv_width(self) -> int:
        return self.num_kv * self.dim


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A root mean square norm."""

    weight: Tensor  # [hidden]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


class Ops:
    """Torch's own operations, and why they are used where kernels were wanted."""

    name = "torch"

    def __init__(self, why_no_kernels: str | None = None) -> None:
        self.why_no_kernels = why_no_kernels

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """`x` [n, hidden], normed."""
        return norm(x)

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """A linear layer over x [n, input], which is normed before; a residual [n, output] more."""
        if norm is not None:
            x = self.norm(x, norm)
        if residual is None:
            return linear(x, weight, bias)
        if bias is None:
            return torch.addmm(residual, x, weight.t())
        return residual + linear(x, weight, bias)

    def gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:  # fmt: skip
        """act(gate) * up [n, inner] of x [n, hidden]; `weight` [2 inner, hidden] holds both."""
        gate, up = self.project(x, weight, bias, norm=norm).chunk(2, -1)
        return act(gate) * up

    def keep(self, qkv: Tensor, rows: Tensor, place: Place, heads: Heads) -> None:
        """Turn the queries of qkv [n, width] in place, and write keys, turned, and values to rows.

        `rows` is [capacity, 2 * heads.kv_width].
        """
        n, dim = qkv.shape[0], heads.dim
        turned = qkv.view(n, -1, 2, dim // 2)[:, : heads.num_kv * (heads.group + 1)]
        swapped = turned.flip(2)
        turned.mul_(place.cos).addcmul_(swapped, place.sin)
        rows.index_copy_(0, place.rows, qkv[:, heads.query_width :])

    def attend(self, queries: Tensor, rows: Tensor, view: View | None, heads: Heads) -> Tensor:
        """Attention's output [n, heads.query_width] for queries of that shape.

        Without a view the queries are those of the cache's first rows, which see causally.
        """
        n, num_kv, group, dim = queries.shape[0], heads.num_kv, heads.group, heads.dim
        span = n if view is None else view.span
        keys, values = (
            part.unflatten(1, (num_kv, dim)).transpose(0, 1)
            for part in rows[:span].split(heads.kv_width, 1)
        )
        split = queries.unflatten(1, (num_kv, group, dim))
        if view is None:
            out = _causal(split.flatten(1, 2).transpose(0, 1), keys, values, group)
            return out.transpose(0, 1).reshape(n, -1)
        # Query heads that share keys are rows of one head.
        stacked = split.permute(1, 2, 0, 3).reshape(num_kv, group * n, dim)
        mask = view.mask
        if mask is not None and group > 1:
            mask = mask.repeat(group, 1)
        out = scaled_dot_product_attention(stacked[None], keys[None], values[None], mask)[0]
        return out.unflatten(1, (group, n)).permute(2, 0, 1, 3).reshape(n, -1)


def _causal(queries: Tensor, keys: Tensor, values: Tensor, group: int) -> Tensor:
    """Attention of rows among themselves [heads, n, head_dim]."""
    if group > 1:
        keys, values = (part.repeat_interleave(group, 0) for part in (keys, values))
    return scaled_dot_product_attention(queries[None], keys[None], values[None], is_causal=True)[0]


TORCH = Ops()
