"""The operations of decoder layers and of drafts, on rows of tokens and of a cache.

Knows tensors, positions and masks, not layers, trees or methods. The inputs' shapes determine
every shape and no value reaches the host, so a call can be replayed as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, pad, rms_norm

from specbench.engine.fused.cpu_products import in_parts, num_parts_of
from specbench.engine.fused.experts import Experts, mix
from specbench.engine.fused.torch_attention import (
    PLAIN,
    Scoring,
    causal,
    few,
    masked,
    unstacked,
)
from specbench.engine.tree import dense_mask


@dataclass(frozen=True, slots=True, eq=False)
class CacheSlots:
    """Cache rows that a forward writes, and their rotary embeddings."""

    rows: Tensor  # [n] int64, indices of cache rows
    cos_sin: (
        Tensor  # [n or 1, 2, 1, 2, head_dim / 2] cosines, then sines, negative in the first half
    )


@dataclass(frozen=True, slots=True, eq=False)
class CacheRows:
    """The cache of one layer: one row per token, and its parts by head."""

    all: Tensor  # [capacity, width], keys then values
    keys: Tensor  # [num_kv, capacity, head_dim]
    values: Tensor

    @classmethod
    def of(cls, rows: Tensor, key: tuple[int, int], value: tuple[int, int]) -> CacheRows:
        """Wrap rows [capacity, width], given (heads, head_dim) of the keys and of the values."""
        split = key[0] * key[1]
        keys, values = rows[:, :split].unflatten(1, key), rows[:, split:].unflatten(1, value)
        return cls(rows, keys.transpose(0, 1), values.transpose(0, 1))


@dataclass(frozen=True, slots=True)
class CacheSpan:
    """Number of cache rows that attention reads, known on the host.

    If exact, these are the filled rows; otherwise a fixed number, of which the rest is masked, so
    shapes stay the same from step to step.
    """

    num_rows: int
    is_exact: bool = True

    def rows_with(self, num_more: int) -> int:
        """Number of rows read if `num_more` follow the committed ones."""
        return self.num_rows + num_more if self.is_exact else self.num_rows


@dataclass(frozen=True, eq=False)
class TreeMask:
    """Visibility of cache rows to the n rows of a forward.

    All see the first `start` cached rows. The additive `bias` [n, m] masks the m rows after them.
    Rows beyond `cache_span` are not read. With `begins`, a row sees none before its own.
    """

    start: Tensor  # []
    bias: Tensor
    cache_span: CacheSpan
    positions: Tensor | None = None  # [n], needed for windows; the bias is of these rows then
    begins: Tensor | None = None  # [n] int64
    _windows: dict[int, TreeMask] = field(default_factory=dict, init=False)

    def within(self, window: int | None) -> TreeMask:
        """The mask of the last `window` positions of each row. Siblings share a position."""
        if window is None or self.num_rows <= window:
            return self
        if window not in self._windows:
            assert self.positions is not None
            first = self.positions - window + 1
            is_outside = self.positions < first[:, None]
            bias = self.bias.masked_fill(is_outside, torch.finfo(self.bias.dtype).min)
            self._windows[window] = TreeMask(
                self.start, bias, self.cache_span, self.positions, first.clamp_(min=0)
            )
        return self._windows[window]

    @cached_property
    def num_rows(self) -> int:
        """Number of cache rows that attention reads."""
        return self.cache_span.rows_with(self.bias.shape[1])

    @cached_property
    def mask(self) -> Tensor | None:
        """Additive mask [n, span]; None if nothing is masked."""
        if not self.cache_span.is_exact:
            mask = dense_mask(self.start, self.bias, self.num_rows)
        elif self.bias.numel() <= 1 and self.begins is None:
            return None  # a single row after the first ones sees everything
        else:
            mask = pad(self.bias, (self.cache_span.num_rows, 0))
        if self.begins is None:
            return mask
        columns = torch.arange(self.num_rows, device=mask.device)
        return mask.masked_fill(columns < self.begins[:, None], torch.finfo(mask.dtype).min)


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a layer: `group` query heads per key head, `num_kv` key heads."""

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
    """Root mean square norm, in the dtype of its weight."""

    weight: Tensor  # [hidden]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.to(self.weight.dtype)
        return rms_norm(wide, self.weight.shape, self.weight, self.eps).to(x.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm:
    """Root mean square norm of each query and key head, before the rotary embedding (Qwen3)."""

    weight: Tensor  # [query heads + key heads, head_dim]
    eps: float

    @classmethod
    def of(cls, heads: Heads, queries: Norm, keys: Norm) -> HeadNorm:
        """Join the norms [head_dim] of all query heads and of all key heads."""
        counts = (heads.num_kv * heads.group, heads.num_kv)
        weights = [
            norm.weight.expand(count, -1)
            for norm, count in zip((queries, keys), counts, strict=True)
        ]
        return cls(torch.cat(weights), queries.eps)

    def apply(self, heads: Tensor) -> None:
        """Normalise heads [n, query heads + key heads, head_dim] in place."""
        normed = rms_norm(heads.to(self.weight.dtype), heads.shape[-1:], eps=self.eps)
        torch.mul(normed, self.weight, out=heads)


class JoinedLayers(Protocol):
    """Decoder layers, each with the norm before it, as one call."""

    @property
    def max_rows(self) -> int:
        """Largest number of rows that it takes."""

    def __call__(
        self, x: Tensor, first: int, caches: Sequence[CacheRows], slots: CacheSlots,
        tree_mask: TreeMask,
    ) -> None:  # fmt: skip
        """Run the layers from `first` on, one for each of `caches`, over x [n, hidden] in place."""


Chain: TypeAlias = Callable[[int], Callable[[], Tensor]]
"""Some layers of a model: maps a number of rows to a call that runs over them."""


class Ops:
    """Torch's own operations, and the reason if they replace requested kernels."""

    name = "torch"
    max_exact_rows = 0
    """Up to this many rows, a row's result has the same bits whatever rows are beside it."""

    def __init__(self, kernels_unsupported_reason: str | None = None) -> None:
        self.kernels_unsupported_reason = kernels_unsupported_reason
        self.fallbacks: dict[str, str] = {}
        """Operation that does not run as requested -> the reason."""

    @property
    def reason(self) -> str | None:
        """Reasons of all that does not run as requested; None if all does."""
        told = [] if self.kernels_unsupported_reason is None else [self.kernels_unsupported_reason]
        told += [f"{what}: {why}" for what, why in self.fallbacks.items()]
        return "; ".join(told) or None

    def describe(self) -> dict[str, Any]:
        """Name and reason, for the header of a run."""
        return {"name": self.name, "reason": self.reason}

    def prepare(self, chain: Chain) -> None:
        """Choose launches for the operations of a chain, if there is a choice."""

    def join(self, layers: Sequence[tuple[Norm, Any]]) -> JoinedLayers | None:
        """One call for fused layers without windows, each with the norm before it, if any does."""
        return None

    def norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None) -> Tensor:
        """Apply `norm` to `x` [n, hidden]; add the result to `residual` in place, if given."""
        out = norm(x)
        return out if residual is None else residual.add_(out)

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """A linear layer over x [n, input], after `norm` if given.

        If `residual` [n, output] is given, the result is added to it in place.
        """
        if norm is not None:
            x = self.norm(x, norm)
        num_parts = num_parts_of(x, weight)
        if residual is not None and bias is None and num_parts == 1:
            return residual.addmm_(x, weight.t())
        out = linear(x, weight, bias) if num_parts == 1 else in_parts(x, weight, bias, num_parts)
        return out if residual is None else residual.add_(out)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        """A separate linear layer for each row of x [n, input]; weights [n, output, input]."""
        out = torch.bmm(x[:, None], weights.mT)[:, 0]
        return out if biases is None else out.add_(biases)

    def gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:  # fmt: skip
        """act(gate) * up [n, inner] of x [n, hidden]; `weight` [2 * inner, hidden] holds both."""
        gate, up = self.project(x, weight, bias, norm=norm).chunk(2, -1)
        return act(gate).mul_(up)

    def experts(
        self, x: Tensor, experts: Experts, ids: Tensor, shares: Tensor,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:  # fmt: skip
        """Sum [n, hidden] of the outputs of experts `ids` [n, k] for x, times `shares` [n, k]."""
        return mix(x, experts, ids, shares, act)

    def topk_logprobs(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, k] and ids [n, k] of the k most likely tokens, best first.

        `logits` [n, vocab]. The log-probabilities are at least float32.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        best = torch.log_softmax(logits, -1, dtype=dtype).topk(k)
        return best.values, best.indices

    def topk_ids(self, logits: Tensor, k: int) -> Tensor:
        """Ids [n, k] of the k most likely tokens, best first."""
        return logits.topk(k).indices

    def topk(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of values [m], largest first, and their indices [k]."""
        best = values.topk(k)
        return best.values, best.indices

    def write_kv(
        self, qkv: Tensor, cached: CacheRows, slots: CacheSlots, heads: Heads,
        norm: HeadNorm | None = None,
    ) -> None:  # fmt: skip
        """Rotate the queries of qkv [n, width] in place; cache its rotated keys and its values.

        Queries and keys are normalised before, if `norm` is given.
        """
        n, dim = qkv.shape[0], heads.dim
        if norm is not None:
            norm.apply(qkv.view(n, -1, dim).narrow(1, 0, heads.num_kv * (heads.group + 1)))
        turned = qkv.view(n, -1, 2, dim // 2).narrow(1, 0, heads.num_kv * (heads.group + 1))
        cos, sin = slots.cos_sin.unbind(1)
        swapped = turned.flip(2) if n == 1 else turned.roll(1, 2)  # the faster of the two
        turned.mul_(cos).addcmul_(swapped, sin)
        cached.all.index_copy_(0, slots.rows, qkv[:, heads.query_width :])

    def attend(
        self, queries: Tensor, cached: CacheRows, tree_mask: TreeMask | None, heads: Heads,
        scoring: Scoring = PLAIN, window: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Attention's output [n, heads.query_width] for queries of that shape.

        Without `tree_mask`, the queries belong to the cache's first rows and attention is causal.
        With `window`, a row sees that many positions, its own included.
        """
        n, split = queries.shape[0], queries.unflatten(1, (heads.num_kv, heads.group, heads.dim))
        if tree_mask is None:
            keys, values = cached.keys.narrow(1, 0, n), cached.values.narrow(1, 0, n)
            return causal(split, keys, values, scoring, window)
        tree_mask = tree_mask.within(window)
        span = tree_mask.num_rows
        keys, values = cached.keys.narrow(1, 0, span), cached.values.narrow(1, 0, span)
        is_few = n > 1 and tree_mask.cache_span.is_exact and queries.itemsize >= 4
        is_usual = scoring.is_plain and tree_mask.begins is None
        if is_few and is_usual and queries.device.type == "cpu":
            stacked = split.permute(1, 2, 0, 3).reshape(heads.num_kv, -1, heads.dim)
            return unstacked(few(stacked, keys, values, tree_mask.bias, scoring), heads.group)
        return masked(split, keys, values, tree_mask.mask, scoring)


def gelu_tanh(x: Tensor) -> Tensor:
    """Gelu by its tanh approximation (Gemma)."""
    return gelu(x, approximate="tanh")


TORCH = Ops()
