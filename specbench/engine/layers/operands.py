"""The operands of the operations: cache rows of a layer, masks, sizes of heads, and norms."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm


@dataclass(frozen=True, slots=True, eq=False)
class CacheSlots:
    """Cache rows that a forward writes, and their rotary embeddings."""

    rows: Tensor  # [n] int64, indices of cache rows
    cos_sin: Tensor
    """[n or 1, 2, 1, 2, head_dim / 2] cosines, then sines. Sines of the first half are negated."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheRows:
    """The cache of a layer, with one row per token, and its keys and values by head."""

    all: Tensor  # [capacity, width], keys then values
    keys: Tensor  # [num_kv, capacity, head_dim]
    values: Tensor

    @classmethod
    def of(
        cls, rows: Tensor, key_shape: tuple[int, int], value_shape: tuple[int, int]
    ) -> CacheRows:
        """Wrap rows [capacity, width]. The shapes are (heads, head_dim) of keys and of values."""
        num_heads, head_dim = key_shape
        key_width = num_heads * head_dim
        keys = rows[:, :key_width].unflatten(1, key_shape)
        values = rows[:, key_width:].unflatten(1, value_shape)
        return cls(rows, keys.transpose(0, 1), values.transpose(0, 1))


@dataclass(frozen=True, slots=True)
class CacheSpan:
    """The number of cache rows that attention reads, as known on the host.

    If it is exact, these rows are all filled. Otherwise the number is fixed, so that shapes stay
    the same from step to step, and rows that are not filled are masked.
    """

    num_rows: int
    is_exact: bool = True

    def rows_with(self, num_more: int) -> int:
        """Number of rows that are read if `num_more` rows follow the committed rows."""
        return self.num_rows + num_more if self.is_exact else self.num_rows


@dataclass(frozen=True, eq=False)
class TreeMask:
    """Says which cache rows each of the n rows of a forward sees.

    All n rows see the first `start` cache rows. The additive `bias` [n, m] masks the m cache rows
    after these. Rows beyond `cache_span` are not read. With `begins`, row i sees no cache row
    before `begins[i]`.
    """

    start: Tensor  # []
    bias: Tensor
    cache_span: CacheSpan
    positions: Tensor | None = None  # [n], needed for windows, which require m = n
    begins: Tensor | None = None  # [n] int64
    _windows: dict[int, TreeMask] = field(default_factory=dict, init=False)

    def within(self, window: int | None) -> TreeMask:
        """The mask in which a row sees its last `window` positions. Siblings share a position."""
        if window is None or self.num_rows <= window:
            return self
        if window not in self._windows:
            assert self.positions is not None
            begins = self.positions - window + 1
            is_outside = self.positions < begins[:, None]  # [n, n]
            bias = self.bias.masked_fill(is_outside, torch.finfo(self.bias.dtype).min)
            self._windows[window] = TreeMask(
                self.start, bias, self.cache_span, self.positions, begins.clamp_(min=0)
            )
        return self._windows[window]

    @cached_property
    def num_rows(self) -> int:
        """Number of cache rows that attention reads."""
        return self.cache_span.rows_with(self.bias.shape[1])

    @cached_property
    def mask(self) -> Tensor | None:
        """The additive mask [n, span], or None if nothing is masked."""
        if not self.cache_span.is_exact:
            mask = dense_mask(self.start, self.bias, self.num_rows)
        elif self.bias.numel() <= 1 and self.begins is None:
            return None  # a single row after the filled rows sees everything
        else:
            mask = pad(self.bias, (self.cache_span.num_rows, 0))
        if self.begins is None:
            return mask
        columns = torch.arange(self.num_rows, device=mask.device)
        is_before = columns < self.begins[:, None]  # [n, span]
        return mask.masked_fill(is_before, torch.finfo(mask.dtype).min)


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a layer: `num_kv` key heads, with `group` query heads each."""

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
    """A root mean square norm, computed in the dtype of its weight."""

    weight: Tensor  # [hidden]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.weight
        normed = rms_norm(x.to(weight.dtype), weight.shape, weight, self.eps)
        return normed.to(x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm:
    """The root mean square norm of each query and key head, before rotary embeddings (Qwen3)."""

    weight: Tensor  # [query heads + key heads, head_dim]
    eps: float

    @classmethod
    def of(cls, heads: Heads, queries: Norm, keys: Norm) -> HeadNorm:
        """Join the norms [head_dim] of all query heads and of all key heads."""
        query_weights = queries.weight.expand(heads.num_kv * heads.group, -1)
        key_weights = keys.weight.expand(heads.num_kv, -1)
        return cls(torch.cat([query_weights, key_weights]), queries.eps)

    def apply(self, heads: Tensor) -> None:
        """Normalise heads [n, query heads + key heads, head_dim] in place."""
        head_dim = heads.shape[-1:]
        normed = rms_norm(heads.to(self.weight.dtype), head_dim, eps=self.eps)
        torch.mul(normed, self.weight, out=heads)


class PairNorms(NamedTuple):
    """The norms of a draft model's inputs: of a token's embedding, and of the output before it."""

    token: Norm
    hidden: Norm
    is_residual_normed: bool
    """True if the residual is the normed output."""


class Beam(NamedTuple):
    """The nodes of a draft tree's last level that are expanded next, the best first."""

    nodes: Tensor  # [top_k] places among the candidates of the level
    above: Tensor  # [top_k, 1] float64 scores of the nodes, with the penalty
    rows: Tensor  # [top_k] parent of each node, as a row of the previous beam
    tokens: Tensor  # [top_k]
    mask: Tensor  # [top_k, expanded nodes so far] additive: a node sees itself and its ancestors


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean mask into an additive mask: 0 where True, the lowest number elsewhere."""
    mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
    return mask.masked_fill_(~sees, torch.finfo(dtype).min)


def dense_mask(start: Tensor, bias: Tensor, span: int) -> Tensor:
    """Additive mask [n, span] of rows that see the first `start` [] columns.

    The additive `bias` [n, m] masks the m columns after these. All other columns are hidden.
    """
    n, m = bias.shape
    columns = torch.arange(span, device=bias.device)
    mask = bias.new_full((n, span), torch.finfo(bias.dtype).min)
    mask.masked_fill_(columns < start, 0)
    return mask.index_copy_(1, start + columns[:m], bias)
