"""The energy of a completion, from the counter of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.types import Completion

if TYPE_CHECKING:
    from specbench.machine.gpu_sampler import GpuSampler


def metered(complete: Callable[[], Completion], sampler: GpuSampler | None) -> Completion:
    """A completion with its energy, read outside of the timed region."""
    before = sampler.energy_j() if sampler else None
    completion = complete()
    after = sampler.energy_j() if sampler else None
    if before is None or after is None or after < before:  # the counter of a driver that restarted
        return completion
    return replace(completion, energy_j=after - before)
