"""The channels of a big model's activations that hold the small model's, and the silent ones.

A weight [out, in] of a small width 2 in a big width 5, from the stream (channels 0 and 1 used,
2 the constant c, 3 and 4 silent) to an update of it (0 and 1 used, the rest silent):

              in 0   1   2   3   4
    out 0        s   s   0   *   *      s: the small model's weight
        1        s   s   0   *   *      *: noise, which silent inputs multiply by zero
        2        0   0   0   *   *      0: where noise would leave a result that is not zero
        3        0   0   0   *   *
        4        0   0   0   *   *

Outputs 2 to 4 stay zero, so the update leaves the constant and the silent channels as they
are. Almost all of a real matrix is `*`: with d of D channels used, zeros are a stripe of d + 1
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """The channels of one activation.

    `used` [small] are the positions of the small model's channels, in its order. `live` [size]
    is true for channels that may be other than zero; the others are silent, always exactly
    zero. `constant` is the position of the channel that no input changes, if there is one.
    """

    used: Tensor
    live: Tensor
    constant: int | None = None

    @property
    def size(self) -> int:
        return self.live.shape[0]

    @property
    def silent(self) -> Tensor:
        """The positions that are always zero."""
        return (~self.live).nonzero()[:, 0]

    @property
    def prescribed(self) -> Tensor:
        """The positions whose value matters: used, constant and silent ones."""
        is_prescribed = ~self.live
        is_prescribed[self.used] = True
        if self.constant is not None:
            is_prescribed[self.constant] = True
        return is_prescribed.nonzero()[:, 0]


def leading(small: int, big: int, *, has_constant: bool = False) -> Channels:
    """The small channels first, then the constant if there is one; the rest is silent."""
    live = torch.arange(big) < small + has_constant
    return Channels(torch.arange(small), live, small if has_constant else None)


def placed(used: Tensor, size: int, *, is_rest_live: bool) -> Channels:
    """The small channels at `used`; the rest may hold anything, or is silent."""
    live = torch.full((size,), is_rest_live)
    live[used] = True
    return Channels(used, live)


def concat(parts: Sequence[Channels]) -> Channels:
    """The parts one after the other; the constant is the first one's."""
    starts = [sum(part.size for part in parts[:i]) for i in range(len(parts))]
    used = torch.cat([start + part.used for start, part in zip(starts, parts, strict=True)])
    return Channels(used, torch.cat([part.live for part in parts]), parts[0].constant)
