"""The key/value cache of all methods. It is allocated in advance.

A forward writes rows after the committed length. They are scratch until `commit` keeps some rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from specbench.engine import huge_pages
from specbench.engine.layers.operands import CacheRows

GRANULE = 256
"""Capacities are multiples of this many tokens, so growth is rare."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shapes that a layer stores per token."""

    key: tuple[int, int]  # heads, head_dim
    value: tuple[int, int]  # heads, head_dim
    dtype: torch.dtype
    device: torch.device

    @property
    def width(self) -> int:
        """Number of elements per token: its keys, then its values."""
        return math.prod(self.key) + math.prod(self.value)


class _Layer(CacheLayerMixin):
    """The rows [capacity, width] of a layer, with the interface that attention modules call.

    Its keys and values [1, heads, capacity, head_dim] exist from the start.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: KVCache, shape: LayerShape) -> None:
        super().__init__()
        self._cache = cache
        self._shape = shape
        self.rows: CacheRows
        self.is_initialized = True

    def use_rows(self, rows: Tensor) -> None:
        """Store keys and values in these rows from now on."""
        self.rows = CacheRows.of(rows, self._shape.key, self._shape.value)
        self.keys = self.rows.keys[None]
        self.values = self.rows.values[None]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...
    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    def get_max_cache_shape(self) -> int:
        """The maximum length, under the name that earlier releases of transformers call."""
        return self.get_max_length()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if self._cache.fixed_step:
            rows, span = self._cache.fixed_step
            self.keys.index_copy_(2, rows, key_states)
            self.values.index_copy_(2, rows, value_states)
            return self.keys[:, :, :span], self.values[:, :, :span]
        start = self._cache.length
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length + query_length, 0


class _SlabKind(NamedTuple):
    """Properties that all layers of a slab share."""

    width: int
    dtype: torch.dtype
    device: torch.device


class KVCache(Cache):
    """The keys and values of every layer for one sequence, with one row per token.

    Layers of equal width, dtype and device share a slab [layers, capacity, width]. So it takes only
    two kernels to commit a path, instead of four kernels per layer.
    """

    def __init__(self, shapes: Sequence[LayerShape]) -> None:
        super().__init__(layers=[_Layer(self, shape) for shape in shapes])
        self.length = 0
        self.capacity = 0
        self.fixed_step: tuple[Tensor, int] | None = None
        self._shapes = tuple(shapes)
        self._slabs: list[Tensor] = []
        self.reserve(GRANULE)

    def shape(self, layer: int) -> LayerShape:
        """Shapes that a layer stores per token."""
        return self._shapes[layer]

    @property
    def bytes_per_token(self) -> int:
        """Bytes per committed token over all layers."""
        return sum(shape.dtype.itemsize * shape.width for shape in self._shapes)

    def rows(self, layer: int) -> CacheRows:
        """Rows of a layer."""
        return self.layers[layer].rows

    def reserve(self, capacity: int) -> bool:
        """Make room for `capacity` tokens. Keep the committed tokens. True if the rows moved."""
        if capacity <= self.capacity:
            return False
        self.capacity = -(-capacity // GRANULE) * GRANULE
        groups: dict[_SlabKind, list[int]] = {}  # layers that share a slab
        for index, shape in enumerate(self._shapes):
            kind = _SlabKind(shape.width, shape.dtype, shape.device)
            groups.setdefault(kind, []).append(index)
        slabs = []
        for kind, layers in groups.items():
            size = (len(layers), self.capacity, kind.width)
            slab = huge_pages.zeros(size, kind.dtype, kind.device)
            for rows, index in zip(slab, layers, strict=True):
                if self.length:
                    rows[: self.length] = self.rows(index).all[: self.length]
                self.layers[index].use_rows(rows)
            slabs.append(slab)
        self._slabs = slabs
        return True

    @contextmanager
    def fixed(self, rows: Tensor, span: int) -> Iterator[None]:
        """Within the block, attention modules write to `rows` [n] and read the first `span` rows.

        So shapes do not depend on the committed length. A mask must hide the rows after `rows`.
        """
        self.fixed_step = rows, span
        try:
            yield
        finally:
            self.fixed_step = None

    def commit(self, path: Sequence[int]) -> None:
        """Keep the scratch rows at `path` (increasing, counted from the committed length)."""
        num_kept = len(path)
        if path[-1] != num_kept - 1:  # else the rows are in place already
            offsets = torch.tensor(path, device=self._slabs[0].device)
            copies = self.gather_rows(offsets.add_(self.length))
            self.append_rows(copies)
        self.length += num_kept

    def gather_rows(self, rows: Tensor) -> list[Tensor]:
        """Copies of rows [n], one tensor [layers, n, width] per slab."""
        return [slab.index_select(1, rows.to(slab.device)) for slab in self._slabs]

    def append_rows(self, copies: Sequence[Tensor]) -> None:
        """Write copied rows right after the committed rows."""
        for slab, rows in zip(self._slabs, copies, strict=True):
            slab.narrow(1, self.length, rows.shape[1]).copy_(rows)

    def write_rows(self, rows: Tensor, copies: Sequence[Tensor]) -> None:
        """Write copied rows to `rows` [n]."""
        for slab, copied in zip(self._slabs, copies, strict=True):
            slab.index_copy_(1, rows.to(slab.device), copied)

    def crop(self, length: int) -> None:
        """Forget all committed tokens after the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a cache of {self.length} tokens to {length}")
        self.length = length

    def reset(self) -> None:
        """Forget all tokens; keep the memory."""
        self.length = 0


@torch.inference_mode()
def layer_shapes(model: PreTrainedModel, device: torch.device) -> list[LayerShape]:
    """The shapes that each layer caches.

    They come from a forward over one token, because config fields may be wrong.
    """
    cache = DynamicCache()
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    model(input_ids=token, past_key_values=cache)
    shapes = []
    for layer in cache.layers:
        _, num_keys, _, key_dim = layer.keys.shape
        _, num_values, _, value_dim = layer.values.shape
        shapes.append(
            LayerShape(
                key=(num_keys, key_dim),
                value=(num_values, value_dim),
                dtype=layer.keys.dtype,
                device=layer.keys.device,
            )
        )
    return shapes
