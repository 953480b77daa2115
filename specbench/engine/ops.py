"""The operations of decoder layers and of drafts, on rows of tokens and of a cache.

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
    turn: Tensor  # [n or 1, 2, 1, 2, head_dim / 2] cosines, then sines, negative in the first half


@dataclass(frozen=True, slots=True, eq=False)
class CacheRows:
    """What a layer caches: a row for each token, and its parts by head."""

    all: Tensor  # [capacity, width], keys then values
    keys: Tensor  # [num_kv, capacity, head_dim]
    values: Tensor

    @classmethod
    def of(cls, rows: Tensor, key: tuple[int, int], value: tuple[int, int]) -> CacheRows:
        """These rows [capacity, width], given (heads, head_dim) of the keys and of the values."""
        split = key[0] * key[1]
        keys, values = rows[:, :split].unflatten(1, key), rows[:, split:].unflatten(1, value)
        return cls(rows, keys.transpose(0, 1), values.transpose(0, 1))


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
        onto: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """A linear layer over x [n, input], which is normed before.

        The result is added to `onto` [n, output] in place, where that is given.
        """
        if norm is not None:
            x = self.norm(x, norm)
        num_parts = _num_parts(x, weight)
        if onto is not None and bias is None and num_parts == 1:
            return onto.addmm_(x, weight.t())
        out = linear(x, weight, bias) if num_parts == 1 else _in_parts(x, weight, bias, num_parts)
        return out if onto is None else onto.add_(out)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        """Every row of x [n, input] through a linear layer of its own, of [n, output, input]."""
        out = torch.bmm(x[:, None], weights.mT)[:, 0]
        return out if biases is None else out.add_(biases)

    def gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:  # fmt: skip
        """act(gate) * up [n, inner] of x [n, hidden]; `weight` [2 inner, hidden] holds both."""
        gate, up = self.project(x, weight, bias, norm=norm).chunk(2, -1)
        return act(gate).mul_(up)

    def likeliest(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, k] and ids of the k likeliest of each row of [n, vocab].

        The likeliest is first; the log-probabilities are float32 at least.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        best = torch.log_softmax(logits, -1, dtype=dtype).topk(k)
        return best.values, best.indices

    def likeliest_ids(self, logits: Tensor, k: int) -> Tensor:
        """Their ids alone."""
        return logits.topk(k).indices

    def greatest(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k greatest [k] of values [m], the greatest first, and where they are."""
        best = values.topk(k)
        return best.values, best.indices

    def keep(self, qkv: Tensor, cached: CacheRows, place: Place, heads: Heads) -> None:
        """Turn the queries of qkv [n, width] in place, and cache keys, turned, and values."""
        n, dim = qkv.shape[0], heads.dim
        turned = qkv.view(n, -1, 2, dim // 2).narrow(1, 0, heads.num_kv * (heads.group + 1))
        cos, sin = place.turn.unbind(1)
        swapped = turned.flip(2) if n == 1 else turned.roll(1, 2)  # whichever is faster
        turned.mul_(cos).addcmul_(swapped, sin)
        cached.all.index_copy_(0, place.rows, qkv[:, heads.query_width :])

    def attend(self, queries: Tensor, cached: CacheRows, view: View | None, heads: Heads) -> Tensor:
        """Attention's output [n, heads.query_width] for queries of that shape.

        Without a view the queries are those of the cache's first rows, which see causally.
        """
        n, num_kv, group, dim = queries.shape[0], heads.num_kv, heads.group, heads.dim
        span = n if view is None else view.span
        keys, values = cached.keys.narrow(1, 0, span), cached.values.narrow(1, 0, span)
        split = queries.unflatten(1, (num_kv, group, dim))
        if view is None:
            out = _causal(split.flatten(1, 2).transpose(0, 1), keys, values, group)
            return out.transpose(0, 1).reshape(n, -1)
        # Query heads that share keys are rows of one head.
        stacked = split.permute(1, 2, 0, 3).reshape(num_kv, group * n, dim)
        is_few = n > 1 and view.reach.is_exact and queries.itemsize >= 4
        if is_few and queries.device.type == "cpu":
            out = _few(stacked, keys, values, view.bias)
        else:
            mask = view.mask
            if mask is not None and group > 1:
                mask = mask.repeat(group, 1)
            out = scaled_dot_product_attention(stacked[None], keys[None], values[None], mask)[0]
        return out.unflatten(1, (group, n)).permute(2, 0, 1, 3).reshape(n, -1)


def _num_parts(x: Tensor, weight: Tensor) -> int:
    """In how many parts a product is fastest: on a CPU one a thread, if rows are few.

    There BLAS reads a matrix on one core for a single row, and shares few rows out badly. A part
    is worth a thread from some ten thousand numbers on.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.shape[0] > 64:
        return 1
    num_parts = min(torch.get_num_threads(), weight.numel() >> 15)
    while num_parts > 1 and weight.shape[0] % num_parts:
        num_parts -= 1
    return max(num_parts, 1)


def _in_parts(x: Tensor, weight: Tensor, bias: Tensor | None, num_parts: int) -> Tensor:
    """A linear layer over x [n, input], the weight's rows in that many products at once."""
    parts = weight.unflatten(0, (num_parts, -1)).mT
    out = torch.bmm(x.expand(num_parts, *x.shape), parts)
    out = out.transpose(0, 1).reshape(x.shape[0], -1)
    return out if bias is None else out.add_(bias)


def _few(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention for few queries [num_kv, group * n, head_dim], for which the rest is overhead.

    `bias` [n, m] is for the last m keys; everything is seen before them.
    """
    scale = queries.shape[2] ** -0.5
    scores = torch.baddbmm(queries.new_empty(1), queries, keys.mT, beta=0, alpha=scale)
    own = scores.narrow(2, scores.shape[2] - bias.shape[1], bias.shape[1])
    own.unflatten(1, (-1, bias.shape[0])).add_(bias)
    return torch.bmm(scores.softmax(-1), values)


def _causal(queries: Tensor, keys: Tensor, values: Tensor, group: int) -> Tensor:
    """Attention of rows among themselves [heads, n, head_dim]."""
    if group > 1:
        keys, values = (part.repeat_interleave(group, 0) for part in (keys, values))
    return scaled_dot_product_attention(queries[None], keys[None], values[None], is_causal=True)[0]


TORCH = Ops()
