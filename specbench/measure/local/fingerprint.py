"""A fingerprint of the target's weights, computed where they are, as loaded and at the end.

Sums of integers that depend on each number's place, so that they are exact on every device. It
finds weights that stay changed.
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
LEAST_BYTES, LEAST_S, SHARE = 2**25, 0.1, 0.01
"""A fingerprint reads at least these bytes. Beyond them it takes at most these seconds, or this
share of the time of the loading or of the run.
"""
_FACTOR = 0x9E3779B97F4A7C15 - 2**64


class Fingerprint:
    """The fingerprint of a model as loaded: of all weights, or of a sample if time is short."""

    def __init__(self, model: nn.Module, *, load_s: float = 0.0, seed: int = 0) -> None:
        self._model, self._seconds = model, 0.0
        self._sizes = [part.nbytes for part in _parts(model)]
        self._order = [*range(len(self._sizes))]
        random.Random(seed).shuffle(self._order)
        self._at_load = self._sums(LEAST_S + SHARE * load_s, len(self._order))

    def compared(self, run_s: float) -> WeightsPrint:
        """The fingerprint then and now, after a run of `run_s` seconds."""
        limit_s = max(LEAST_S, SHARE * run_s - self._seconds)
        now = self._sums(limit_s, len(self._at_load))
        share = sum(self._sizes[i] for i in self._order[: len(now)]) / sum(self._sizes)
        at_load, at_end = (
            sha256(repr(sums).encode()).hexdigest()[:16]
            for sums in (self._at_load[: len(now)], now)
        )
        skipped = tuple(name for name, one in self._model.named_parameters() if one.is_meta)
        return WeightsPrint(at_load, at_end, round(share, 4), round(self._seconds, 4), skipped)

    def _sums(self, limit_s: float, most: int) -> list[int]:
        """Sums of the parts in their order, until the time is over."""
        import torch

        began, sums, num_bytes = outer_clock(), list[int](), 0
        parts = _parts(self._model)
        factors: dict[torch.device, Tensor] = {}
        for i in self._order[:most]:
            if num_bytes >= LEAST_BYTES and outer_clock() - began > limit_s:
                break
            num_bytes += self._sizes[i]
            numbers = parts[i] if i < len(parts) else torch.tensor([-1])
            if numbers.device not in factors:
                places = torch.arange(1, CHUNK + 1, device=numbers.device)
                factors[numbers.device] = places * _FACTOR | 1
            wide = numbers.long() * factors[numbers.device][: len(numbers)]
            sums.append(int(wide.sum()))
        self._seconds += outer_clock() - began
        return sums


def _parts(model: nn.Module) -> list[Tensor]:
    """The memory of the weights as integers, at most `CHUNK` of them in a part.

    Each is there once: fused layers are views of one tensor.
    """
    import torch

    from specbench.engine.layers.weights import stored_tensors

    found: dict[int, Tensor] = {}
    for tensor in stored_tensors(model):
        if not tensor.is_meta and tensor.nbytes:
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            raw.set_(tensor.untyped_storage())
            is_whole = len(raw) % 4 == 0 and raw.data_ptr() % 4 == 0
            found.setdefault(raw.data_ptr(), raw.view(torch.int32) if is_whole else raw)
    return [part for numbers in found.values() for part in numbers.split(CHUNK)]
