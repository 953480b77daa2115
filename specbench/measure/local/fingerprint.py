"""Compute a fingerprint of the target's weights after loading, and again at the end of a run.

It shows whether weights were changed during a run and not restored. It is computed where the
weights lie, as a hash of sums of integers, which are exact on every device. The sums depend on the
place of each integer.
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
"""Number of integers summed at once: their 64-bit copies and products need 16 MB."""
MIN_BYTES = 2**25
"""A fingerprint reads at least this many bytes, however long that takes."""
MIN_S = 0.1
"""Seconds that a fingerprint may always take."""
MAX_SHARE = 0.01
"""The share of the time of loading, or of the run's time, that a fingerprint may take."""
_FACTOR = 0x9E3779B97F4A7C15 - 2**64
"""2^64 / the golden ratio, rounded to an odd number, as a signed 64-bit integer."""


class Fingerprint:
    """The fingerprint of a loaded model's weights, or of some of them if time is short.

    The time for a fingerprint is limited to a share of `load_s`, the seconds that loading took.
    `seed` shuffles the chunks of weights.
    """

    def __init__(self, model: nn.Module, *, load_s: float = 0.0, seed: int = 0) -> None:
        self._model = model
        self._seconds = 0.0  # spent on computing all sums
        self._sizes = [chunk.nbytes for chunk in _chunks(model)]  # bytes of each chunk
        self._order = [*range(len(self._sizes))]  # indices of the chunks, shuffled
        random.Random(seed).shuffle(self._order)
        # The sums of the first chunks in this order, as many as the time allowed [chunks].
        self._at_load = self._sums(MIN_S + MAX_SHARE * load_s, len(self._order))

    def compared(self, run_s: float) -> WeightsPrint:
        """The fingerprints at loading and now, after a run of `run_s` seconds.

        Both cover the same chunks: those that can be read now in the allowed time.
        """
        allowed_s = max(MIN_S, MAX_SHARE * run_s - self._seconds)
        at_end = self._sums(allowed_s, len(self._at_load))  # a sum per chunk read
        at_load = self._at_load[: len(at_end)]  # the sums of the same chunks
        compared_bytes = sum(self._sizes[chunk_index] for chunk_index in self._order[: len(at_end)])
        share = compared_bytes / sum(self._sizes)
        # Names of the weights on torch's meta device, which are not in memory.
        skipped = tuple(
            name for name, parameter in self._model.named_parameters() if parameter.is_meta
        )
        return WeightsPrint(
            _digest(at_load), _digest(at_end), round(share, 4), round(self._seconds, 4), skipped
        )

    def _sums(self, allowed_s: float, max_chunks: int) -> list[int]:
        """The sums of the first chunks of the model's weights, in the shuffled order of the chunks.

        A chunk is a tensor of integers. Its sum is integer[0] * factor[0] + integer[1] * factor[1]
        + ..., modulo 2^64, where factor[k] is the odd number (k + 1) * _FACTOR | 1.

        Args:
            allowed_s: seconds after which no further chunk is read, once MIN_BYTES are read.
            max_chunks: chunks to read at most.
        """
        import torch

        began_s = outer_clock()  # `perf_counter`, which methods could replace
        sums: list[int] = []  # signed 64-bit numbers
        num_bytes_read = 0
        chunks = _chunks(self._model)  # integers [at most CHUNK] each
        factors_by_device: dict[torch.device, Tensor] = {}  # int64 [CHUNK]
        for chunk_index in self._order[:max_chunks]:
            if num_bytes_read >= MIN_BYTES and outer_clock() - began_s > allowed_s:
                break
            num_bytes_read += self._sizes[chunk_index]  # the chunk's bytes
            # A chunk that no longer exists counts as the integer -1.
            integers = chunks[chunk_index] if chunk_index < len(chunks) else torch.tensor([-1])
            if integers.device not in factors_by_device:
                one_to_chunk = torch.arange(1, CHUNK + 1, device=integers.device)
                factors_by_device[integers.device] = one_to_chunk * _FACTOR | 1
            products = integers.long() * factors_by_device[integers.device][: len(integers)]
            sums.append(int(products.sum()))
        self._seconds += outer_clock() - began_s
        return sums


def _digest(sums: list[int]) -> str:
    """A short hash of the sums of chunks, in hexadecimal digits."""
    return sha256(repr(sums).encode()).hexdigest()[:16]


def _chunks(model: nn.Module) -> list[Tensor]:
    """The memory of the model's weights, cut into flat tensors of integers [at most CHUNK].

    An integer has 4 bytes, or 1 if the memory's address or size is not a multiple of 4. Memory that
    several tensors share, as in fused layers, is taken once. Weights on torch's meta device are
    left out.
    """
    import torch

    from specbench.engine.layers.weights import stored_tensors

    integers_by_address: dict[int, Tensor] = {}  # the key is the address of the first byte
    for tensor in stored_tensors(model):
        if not tensor.is_meta and tensor.nbytes:
            # The bytes of the tensor's whole storage, which may hold other tensors too.
            storage_bytes = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            storage_bytes.set_(tensor.untyped_storage())
            address = storage_bytes.data_ptr()
            is_aligned = len(storage_bytes) % 4 == 0 and address % 4 == 0
            integers = storage_bytes.view(torch.int32) if is_aligned else storage_bytes
            integers_by_address.setdefault(address, integers)
    return [chunk for integers in integers_by_address.values() for chunk in integers.split(CHUNK)]
