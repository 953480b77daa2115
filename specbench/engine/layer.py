"""A Llama-family decoder layer in few, large operations on the engine's own cache rows.

Knows weights, rows and positions. Knows nothing of models, trees or methods. Every shape is fixed
by the inputs' and no value reaches the host, so that a call can be replayed as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention

from specbench.engine.tree import mask_behind
from specbench.engine.weights import weight_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where the rows of a forward are kept, and their rotary embeddings."""

    rows: Tensor  # [n] int64, the cache rows they are written to
    cos: Tensor  # [n, 1, 2, head_dim / 2]
    sin: Tensor  # the same, negative in the first half


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What the rows of a forward see: the first `span` rows of the cache, as `mask` lets them.

    Without a mask a single row sees all of them, and several rows, which are then the cache's
    first, see causally.
    """

    span: int
    mask: Tensor | None = None  # [n, span] additive


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


def view_behind(start: Tensor, bias: Tensor, reach: Reach) -> View:
    """The view of rows that see the first `start` [] rows, which `reach` knows the number of.

    Of the m rows behind these they see what the additive `bias` [n, m] lets them.
    """
    span = reach.span(bias.shape[1])
    if not reach.is_exact:
        return View(span, mask_behind(start, bias, span))
    # A row that is alone behind them sees everything.
    return View(span, None if bias.numel() <= 1 else pad(bias, (reach.num_rows, 0)))


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A root mean square norm."""

    weight: Tensor  # [hidden]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rotary:
    """Rotary position embeddings as a table, made by a model's own module as far as needed."""

    def __init__(self, module: nn.Module, like: Tensor) -> None:
        self._module = module
        self._like = like.new_zeros(())
        self._cos = self._sin = like.new_zeros(0)

    def reserve(self, num_positions: int) -> None:
        """Make the table at least so long."""
        if num_positions <= self._cos.shape[0]:
            return
        positions = torch.arange(num_positions, device=self._like.device)[None]
        cos, sin = (part[0, :, None].unflatten(-1, (2, -1)) for part in self._module(
            self._like, positions
        ))  # fmt: skip
        self._cos, self._sin = cos.contiguous(), torch.cat([-sin[:, :, :1], sin[:, :, 1:]], 2)

    def place(self, rows: Tensor, positions: Tensor) -> Place:
        """The place of rows [n] at these positions [n]."""
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        return Place(rows, cos, sin)


@dataclass(frozen=True, slots=True, eq=False)
class Projections:
    """The linear layers of a decoder layer, as a model or a checkpoint holds them."""

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


class FusedLayer:
    """Attention and MLP of a decoder layer. The norm before the attention is the caller's.

    The queries', keys' and values' weights become one matrix, and the gate's and the up
    projection's another; the given layers go on as views of these, and nothing is held twice.
    """

    def __init__(
        self, parts: Projections, norm: Norm, head_dim: int, act: Callable[[Tensor], Tensor]
    ) -> None:
        self._head_dim = head_dim
        self._num_kv = parts.k.out_features // head_dim
        self._group = parts.q.out_features // parts.k.out_features  # query heads to a key head
        self._qkv, self._qkv_bias = _join([parts.q, parts.k, parts.v])
        self._gate_up, self._gate_up_bias = _join([parts.gate, parts.up])
        self._o, self._down = parts.o, parts.down
        self._norm, self._act = norm, act

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        biases = [bias for bias in (self._qkv_bias, self._gate_up_bias) if bias is not None]
        return weight_bytes(
            self._qkv, self._gate_up, *biases, self._o, self._down, self._norm.weight
        )

    def keep(self, x: Tensor, rows: Tensor, place: Place) -> Tensor:
        """Write keys and values of x [n, input] into `rows` [capacity, 2 * num_kv * head_dim].

        Returns the queries [n, num_heads * head_dim].
        """
        n, dim, num_kv = x.shape[0], self._head_dim, self._num_kv
        num_heads = self._group * num_kv
        qkv = linear(x, self._qkv, self._qkv_bias)
        turned = qkv.view(n, -1, 2, dim // 2)[:, : num_heads + num_kv]
        swapped = turned.flip(2)
        turned.mul_(place.cos).addcmul_(swapped, place.sin)
        rows.index_copy_(0, place.rows, qkv[:, num_heads * dim :])
        return qkv[:, : num_heads * dim]

    def attend(self, residual: Tensor, queries: Tensor, rows: Tensor, view: View) -> Tensor:
        """`residual` [n, hidden] plus the attention's output for queries [n, heads * head_dim]."""
        n, dim, num_kv, group = queries.shape[0], self._head_dim, self._num_kv, self._group
        keys = rows[: view.span, : num_kv * dim].unflatten(1, (num_kv, dim)).transpose(0, 1)
        values = rows[: view.span, num_kv * dim :].unflatten(1, (num_kv, dim)).transpose(0, 1)
        heads = queries.unflatten(1, (num_kv, group, dim))
        if view.mask is None and n > 1:
            out = self._causal(heads, keys, values)
        else:  # query heads that share keys are rows of one head
            heads = heads.permute(1, 2, 0, 3).reshape(num_kv, group * n, dim)
            mask = view.mask
            if mask is not None and group > 1:
                mask = mask.repeat(group, 1)
            out = scaled_dot_product_attention(heads[None], keys[None], values[None], mask)[0]
            out = out.unflatten(1, (group, n)).permute(2, 0, 1, 3)
        return _add(residual, out.reshape(n, -1), self._o)

    def mlp(self, hidden: Tensor) -> Tensor:
        """`hidden` [n, hidden] plus the MLP's output for it."""
        both = linear(self._norm(hidden), self._gate_up, self._gate_up_bias)
        gate, up = both.chunk(2, -1)
        return _add(hidden, self._act(gate) * up, self._down)

    def _causal(self, heads: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of the cache's first rows [n, num_kv, group, head_dim] among themselves."""
        heads = heads.flatten(1, 2).transpose(0, 1)
        if self._group > 1:
            keys, values = (part.repeat_interleave(self._group, 0) for part in (keys, values))
        out = scaled_dot_product_attention(heads[None], keys[None], values[None], is_causal=True)
        return out[0].transpose(0, 1)


def _join(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for several linear layers, which become views of them."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    start = 0
    for layer in layers:
        own = slice(start, start + layer.out_features)
        start = own.stop
        layer.weight = nn.Parameter(weight[own], requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias[own], requires_grad=False)
    return weight, bias


def _add(residual: Tensor, x: Tensor, layer: nn.Linear) -> Tensor:
    """`residual` + layer(x), in one operation where there is no bias."""
    if layer.bias is not None:
        return residual + layer(x)
    return torch.addmm(residual, x, layer.weight.t())
