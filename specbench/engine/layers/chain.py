"""A few layers of a model on random rows, one after the other as in a step.

For measurements that need the neighbouring kernels: one may begin while the previous one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from specbench.engine.layers.layer import FusedLayer
from specbench.engine.layers.operands import CacheRows, CacheSlots, CacheSpan, Norm, TreeMask
from specbench.engine.layers.ops import Ops

LEAST_BYTES = 2**28
"""Minimum weights of a chain: more than any hardware cache holds."""
COMMITTED, CAPACITY = 300, 512
"""Rows of the cache that all tokens see, and all its rows."""


class LayerChain:
    """Decoder layers with their input norms, the final norm, and the output embedding."""

    def __init__(
        self, layers: Sequence[tuple[Norm, FusedLayer]], norm: Norm, head: Tensor, ops: Ops
    ) -> None:
        sizes = accumulate(layer.num_bytes for _, layer in layers)
        enough = next((i for i, size in enumerate(sizes, 1) if size >= LEAST_BYTES), len(layers))
        self._layers = layers[: max(enough, 2)]
        self._norm, self._head, self._ops = norm, head, ops

    def __call__(self, num_rows: int) -> Callable[[], Tensor]:
        """A call that runs the chain on `num_rows` fixed rows and returns its logits."""
        like, heads = self._head, self._layers[0][1].heads
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(like.device, like.dtype)

        start = drawn(num_rows, like.shape[1])
        caches = [
            CacheRows.of(drawn(CAPACITY, 2 * heads.kv_width), *[(heads.num_kv, heads.dim)] * 2)
            for _ in self._layers
        ]
        rows = torch.arange(COMMITTED, COMMITTED + num_rows, device=like.device)
        slots = CacheSlots(rows, drawn(num_rows, 2, 1, 2, heads.dim // 2))
        bias = torch.full((num_rows, num_rows), torch.finfo(like.dtype).min).triu_(1)
        tree_mask = TreeMask(
            torch.tensor(COMMITTED, device=like.device), bias.to(like.device, like.dtype),
            CacheSpan(CAPACITY, is_exact=False),
        )  # fmt: skip

        def run() -> Tensor:
            x = start.clone()  # the layers work in place
            for (norm, layer), cached in zip(self._layers, caches, strict=True):
                queries = layer.write_kv(x, cached, slots, norm)
                x = layer.mlp(layer.attend(x, queries, cached, tree_mask))
            return self._ops.project(self._ops.norm(x, self._norm), self._head)

        return run
