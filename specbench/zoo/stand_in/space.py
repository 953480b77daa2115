"""A vector of the big model: where the small model's numbers sit in it, and what is always zero.

Knows indices. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The channels of an activation.

    `used` [small] are the places of the small model's channels, in its order. `live` [size] says
    which channels may be other than zero: the others are silent, always exactly zero. `constant`
    is the place of the channel that no input changes, if there is one.
    """

    used: Tensor
    live: Tensor
    constant: int | None = None

    @property
    def size(self) -> int:
        return self.live.shape[0]

    @property
    def silent(self) -> Tensor:
        """The places that are always zero."""
        return (~self.live).nonzero()[:, 0]

    @property
    def bound(self) -> Tensor:
        """The places whose value is prescribed; what the others hold does not matter."""
        is_bound = ~self.live
        is_bound[self.used] = True
        if self.constant is not None:
            is_bound[self.constant] = True
        return is_bound.nonzero()[:, 0]


def leading(small: int, big: int, *, has_constant: bool = False) -> Space:
    """The small channels first, then the constant if there is one; the rest is silent."""
    live = torch.arange(big) < small + has_constant
    return Space(torch.arange(small), live, small if has_constant else None)


def placed(used: Tensor, size: int, *, is_rest_live: bool) -> Space:
    """The small channels at `used`; the rest may hold anything, or is silent."""
    live = torch.full((size,), is_rest_live)
    live[used] = True
    return Space(used, live)


def joined(spaces: Sequence[Space]) -> Space:
    """One behind the other; the constant is the first one's."""
    starts = [sum(space.size for space in spaces[:i]) for i in range(len(spaces))]
    used = torch.cat([start + space.used for start, space in zip(starts, spaces, strict=True)])
    return Space(used, torch.cat([space.live for space in spaces]), spaces[0].constant)
