"""The key/value cache that all methods share: preallocated, written at the committed length.

Knows transformers' cache interface. Knows nothing of trees, tokens or drafters: rows behind the
committed length are scratch until `commit` keeps some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GRANULE = 256
"""Capacities are multiples of this many tokens, so that growing is rare."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for each token."""

    key: tuple[int, int]  # heads, head_dim
    value: tuple[int, int]
    dtype: torch.dtype
    device: torch.device


class _Layer(CacheLayerMixin):
    """One layer's window onto the cache's slabs, in the form that attention modules call."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self._cache = cache
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the slabs exist from the start."""

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
    """Keys and values of every layer for one sequence.

    Layers that agree in shape, dtype and device share one slab [layers, heads, capacity,
    head_dim], so that keeping a path costs two kernels, not four for each layer.
    """

    def __init__(self, shapes: Sequence[LayerShape], capacity: int = GRANULE) -> None:
        super().__init__(layers=[_Layer(self) for _ in shapes])
        self.length = 0
        self.capacity = 0
        self._shapes = tuple(shapes)
        self._slabs: list[Tensor] = []
        self.reserve(capacity)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one committed token takes over all layers."""
        return sum(
            s.dtype.itemsize * (s.key[0] * s.key[1] + s.value[0] * s.value[1]) for s in self._shapes
        )

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens; the committed ones are kept."""
        if capacity <= self.capacity:
            return
        self.capacity = -(-capacity // GRANULE) * GRANULE
        groups: dict[tuple[tuple[int, int], torch.dtype, torch.device], list[tuple[int, str]]] = {}
        for index, shape in enumerate(self._shapes):
            for part, heads_dim in (("keys", shape.key), ("values", shape.value)):
                key = (heads_dim, shape.dtype, shape.device)
                groups.setdefault(key, []).append((index, part))
        slabs = []
        for ((heads, dim), dtype, device), members in groups.items():
            slab = torch.zeros(len(members), heads, self.capacity, dim, dtype=dtype, device=device)
            for row, (index, part) in zip(slab, members, strict=True):
                layer = self.layers[index]
                if self.length:
                    old = getattr(layer, part)[0, :, : self.length]
                    row[:, : self.length] = old
                setattr(layer, part, row[None])
            slabs.append(slab)
        self._slabs = slabs

    def commit(self, path: Sequence[int]) -> None:
        """Keep the scratch rows at `path` (increasing, counted from the committed length)."""
        kept = len(path)
        if path[-1] != kept - 1:  # a path that is not the first rows as they lie
            for slab in self._slabs:
                rows = torch.tensor(path, device=slab.device).add_(self.length)
                slab[:, :, self.length : self.length + kept] = slab.index_select(2, rows)
        self.length += kept

    def crop(self, length: int) -> None:
        """Forget every committed token behind the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a cache of {self.length} tokens to {length}")
        self.length = length

    def reset(self) -> None:
        """Forget everything; the memory is kept."""
        self.length = 0
