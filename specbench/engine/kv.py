"""The key/value cache that all methods share: preallocated, written at the committed length.

Knows rows of keys and values, and transformers' cache interface. Knows nothing of trees, tokens or
drafters: rows behind the committed length are scratch until `commit` keeps some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specbench.engine.ops import CacheRows

GRANULE = 256
"""Capacities are multiples of this many tokens, so that growing is rare."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for each token."""

    key: tuple[int, int]  # heads, head_dim
    value: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    @property
    def width(self) -> int:
        """Numbers a token takes: its keys, then its values."""
        return self.key[0] * self.key[1] + self.value[0] * self.value[1]


class _Layer(CacheLayerMixin):
    """One layer's rows [capacity, width], also in the form that attention modules call."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: KVCache, shape: LayerShape) -> None:
        super().__init__()
        self._cache = cache
        self._shape = shape
        self.rows: CacheRows
        self.is_initialized = True

    def place(self, rows: Tensor) -> None:
        """Live in these rows from now on."""
        self.rows = CacheRows.of(rows, self._shape.key, self._shape.value)
        self.keys, self.values = self.rows.keys[None], self.rows.values[None]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the rows exist from the start."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        start = self._cache.length
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length + query_length, 0

    def get_max_length(self) -> int:
        return self._cache.capacity

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` in earlier transformers releases."""
        return self._cache.capacity


class KVCache(Cache):
    """Keys and values of every layer for one sequence, a row for each token.

    Layers that agree in width, dtype and device share one slab [layers, capacity, width], so that
    keeping a path costs two kernels, not four for each layer.
    """

    def __init__(self, shapes: Sequence[LayerShape], capacity: int = GRANULE) -> None:
        super().__init__(layers=[_Layer(self, shape) for shape in shapes])
        self.length = 0
        self.capacity = 0
        self._shapes = tuple(shapes)
        self._slabs: list[Tensor] = []
        self.reserve(capacity)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one committed token takes over all layers."""
        return sum(shape.dtype.itemsize * shape.width for shape in self._shapes)

    def rows(self, layer: int) -> CacheRows:
        """The rows of a layer."""
        return self.layers[layer].rows

    def reserve(self, capacity: int) -> bool:
        """Make room for `capacity` tokens; the committed ones are kept. Tells if rows moved."""
        if capacity <= self.capacity:
            return False
        self.capacity = -(-capacity // GRANULE) * GRANULE
        groups: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
        for index, shape in enumerate(self._shapes):
            groups.setdefault((shape.width, shape.dtype, shape.device), []).append(index)
        slabs = []
        for (width, dtype, device), members in groups.items():
            slab = torch.zeros(len(members), self.capacity, width, dtype=dtype, device=device)
            for rows, index in zip(slab, members, strict=True):
                if self.length:
                    rows[: self.length] = self.rows(index).all[: self.length]
                self.layers[index].place(rows)
            slabs.append(slab)
        self._slabs = slabs
        return True

    def commit(self, path: Sequence[int]) -> None:
        """Keep the scratch rows at `path` (increasing, counted from the committed length)."""
        kept = len(path)
        if path[-1] != kept - 1:  # a path that is not the first rows as they lie
            rows = torch.tensor(path, device=self._slabs[0].device).add_(self.length)
            self.bring(self.copies(rows))
        self.length += kept

    def copies(self, rows: Tensor) -> list[Tensor]:
        """Copies of rows [n], a tensor [layers, n, width] for each slab."""
        return [slab.index_select(1, rows.to(slab.device)) for slab in self._slabs]

    def bring(self, copies: Sequence[Tensor]) -> None:
        """Put copied rows right behind the committed ones, which is all that the host knows."""
        for slab, part in zip(self._slabs, copies, strict=True):
            slab.narrow(1, self.length, part.shape[1]).copy_(part)

    def crop(self, length: int) -> None:
        """Forget every committed token behind the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a cache of {self.length} tokens to {length}")
        self.length = length

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        self.length = 0
