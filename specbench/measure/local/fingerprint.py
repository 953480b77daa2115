"""A fingerprint of the target's weights, computed where they are, as loaded and at the end.

It finds weights that stay changed. It consists of sums of integers that depend on each
number's place, so that they are exact on every device.
"""

from __future__ import annotations

import random
from hashlib import sha256
from typing import TYPE_CHECKING

from specbench.log.backend import WeightsPrint
from specbench.measure.base import outer_clock

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

CHUNK = 2**20
"""Integers summed at once: their wide copies need 16 MB."""
MIN_BYTES = 2**25
"""Bytes that a fingerprint reads however long that takes."""
MIN_S = 0.1
"""Seconds that it may take in any case."""
MAX_SHARE = 0.01
"""The share of the time of the loading, or of the run, that it may take."""
_FACTOR = 0x9E3779B97F4A7C15 - 2**64
"""An odd 64-bit number without a pattern, 2^64 by the golden ratio, as a signed one."""


class Fingerprint:
    """The fingerprint of a model as loaded: of all weights, or of a sample if time is short."""

    def __init__(self, model: nn.Module, *, load_s: float = 0.0, seed: int = 0) -> None:
        self._model = model
        self._seconds = 0.0  # that all sums took
        self._sizes = [chunk.nbytes for chunk in _chunks(model)]
        self._order = [*range(len(self._sizes))]
        random.Random(seed).shuffle(self._order)
        self._at_load = self._sums(MIN_S + MAX_SHARE * load_s, len(self._order))

    def compared(self, run_s: float) -> WeightsPrint:
        """The fingerprint then and now, after a run of `run_s` seconds."""
        allowed_s = max(MIN_S, MAX_SHARE * run_s - self._seconds)
        at_end = self._sums(allowed_s, len(self._at_load))
        at_load = self._at_load[: len(at_end)]
        compared_bytes = sum(self._sizes[i] for i in self._order[: len(at_end)])
        share = compared_bytes / sum(self._sizes)
        skipped = tuple(
            name for name, parameter in self._model.named_parameters() if parameter.is_meta
        )
        return WeightsPrint(
            _digest(at_load), _digest(at_end), round(share, 4), round(self._seconds, 4), skipped
        )

    def _sums(self, allowed_s: float, max_chunks: int) -> list[int]:
        """Sums of chunks in their order, until the time is over.

        A sum is that of integer i times factor i, for i = 0, 1, 2, ..., modulo 2^64.
        """
        import torch

        began = outer_clock()
        sums: list[int] = []
        num_bytes = 0
        chunks = _chunks(self._model)
        factors: dict[torch.device, Tensor] = {}
        for i in self._order[:max_chunks]:
            if num_bytes >= MIN_BYTES and outer_clock() - began > allowed_s:
                break
            num_bytes += self._sizes[i]
            numbers = chunks[i] if i < len(chunks) else torch.tensor([-1])
            if numbers.device not in factors:
                counted = torch.arange(1, CHUNK + 1, device=numbers.device)
                factors[numbers.device] = counted * _FACTOR | 1
            products = numbers.long() * factors[numbers.device][: len(numbers)]
            sums.append(int(products.sum()))
        self._seconds += outer_clock() - began
        return sums


def _digest(sums: list[int]) -> str:
    return sha256(repr(sums).encode()).hexdigest()[:16]


def _chunks(model: nn.Module) -> list[Tensor]:
    """The memory of the weights as integers, in chunks of at most `CHUNK` of them.

    Each weight is there once: fused layers are views of one tensor.
    """
    import torch

    from specbench.engine.layers.weights import stored_tensors

    by_address: dict[int, Tensor] = {}
    for tensor in stored_tensors(model):
        if not tensor.is_meta and tensor.nbytes:
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            raw.set_(tensor.untyped_storage())
            is_aligned = len(raw) % 4 == 0 and raw.data_ptr() % 4 == 0
            integers = raw.view(torch.int32) if is_aligned else raw
            by_address.setdefault(raw.data_ptr(), integers)
    return [chunk for integers in by_address.values() for chunk in integers.split(CHUNK)]
