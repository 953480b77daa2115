"""The tensors of a stand-in: noise in their shape, with the small model's weights in it.

Some channels of the big model's activations hold the small model's activations. The others are
silent. The example is a weight [out, in] of a small width 2 in a big width 5. It leads from the
stream (channels 0 and 1 are used, 2 is the constant c, 3 and 4 are silent) to an update of the
stream (0 and 1 are used, the rest is silent):

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

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

NOISE = 0.02
"""Standard deviation of the noise, as in a transformer's initial weights."""
Small = Mapping[str, Tensor]
"""The tensors of the small model by name."""
Draw = Callable[[tuple[int, ...]], Tensor]
"""A function that makes a tensor of noise in a shape."""


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """The channels of one activation."""

    used: Tensor
    """The positions of the small model's channels, in its order [small]."""

    live: Tensor
    """True for channels that may differ from zero [size]. The others are silent: always zero."""

    constant: int | None = None
    """The position of the channel that no input changes, if there is such a channel."""

    @property
    def size(self) -> int:
        return self.live.shape[0]

    @property
    def silent(self) -> Tensor:
        """Return the positions that are always zero."""
        return (~self.live).nonzero()[:, 0]

    @property
    def prescribed(self) -> Tensor:
        """Return the positions of used, constant and silent channels, whose values matter."""
        is_prescribed = ~self.live
        is_prescribed[self.used] = True
        if self.constant is not None:
            is_prescribed[self.constant] = True
        return is_prescribed.nonzero()[:, 0]


def leading(small: int, big: int, *, has_constant: bool = False) -> Channels:
    """Put the small channels first, then the constant if there is one. The rest is silent."""
    live = torch.arange(big) < small + has_constant
    return Channels(torch.arange(small), live, small if has_constant else None)


def placed(used: Tensor, size: int, *, is_rest_live: bool) -> Channels:
    """Put the small channels at `used`. The rest may hold anything, or is silent."""
    live = torch.full((size,), is_rest_live)
    live[used] = True
    return Channels(used, live)


def concat(activations: Sequence[Channels]) -> Channels:
    """Put the channels of activations side by side, with the constant of the first one."""
    starts = accumulate((channels.size for channels in activations), initial=0)
    used = [start + channels.used for start, channels in zip(starts, activations, strict=False)]
    live = torch.cat([channels.live for channels in activations])
    return Channels(torch.cat(used), live, activations[0].constant)


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of a stand-in, with the function that makes it."""

    shape: tuple[int, ...]
    make: Callable[[Draw, Small], Tensor]


Pieces = dict[str, Piece]
"""Pieces by their names in the official format."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One number for all elements in `rows` x `columns`."""

    rows: Tensor
    columns: Tensor
    number: float


def matrix(
    out: Channels,
    into: Channels,
    source: str | None = None,
    *,
    scale: float = 1.0,
    block: Block | None = None,
    is_embedding: bool = False,
) -> Piece:
    """Return a linear map [out, into] that acts on the small channels like the small matrix.

    Rows whose result is prescribed are zero in the live columns, except for the small matrix
    `source` times `scale`, and `block`. The rest is noise. An embedding is stored transposed.
    """
    shape = (into.size, out.size) if is_embedding else (out.size, into.size)

    def make(draw: Draw, small: Small) -> Tensor:
        tensor = draw(shape)
        rows = tensor.T if is_embedding else tensor
        _put(rows, out.prescribed, into.live.nonzero()[:, 0], 0.0)
        if source is not None:
            weights = small[source].float() * scale
            _put(rows, out.used, into.used, weights.T if is_embedding else weights)
        if block is not None:
            _put(rows, block.rows, block.columns, block.number)
        return tensor

    return Piece(shape, make)


def vector(
    channels: Channels, source: str | None = None, *, scale: float = 1.0, constant: float = 0.0
) -> Piece:
    """Return a bias or a norm's weight: the small vector times `scale`, else zero or noise."""
    shape = (channels.size,)

    def make(draw: Draw, small: Small) -> Tensor:
        tensor = draw(shape)
        device = tensor.device
        tensor[channels.prescribed.to(device)] = 0.0
        if source is not None:
            numbers = small[source].float() * scale
            tensor[channels.used.to(device)] = numbers.to(device, tensor.dtype)
        if channels.constant is not None:
            tensor[channels.constant] = constant
        return tensor

    return Piece(shape, make)


def noise(*shape: int) -> Piece:
    """Return a tensor that is all noise."""
    return Piece(shape, lambda draw, small: draw(shape))


def of_experts(num_experts: int, *matrices: Piece) -> Piece:
    """Stack the matrices vertically for each expert: [experts, out, in]."""
    num_rows = sum(piece.shape[0] for piece in matrices)

    def make(draw: Draw, small: Small) -> Tensor:
        experts = [
            torch.cat([piece.make(draw, small) for piece in matrices]) for _ in range(num_experts)
        ]
        return torch.stack(experts)

    return Piece((num_experts, num_rows, matrices[0].shape[1]), make)


def linear(name: str, out: Channels, into: Channels, source: str | None = None) -> Pieces:
    """Return the weight and bias of a linear layer. `source` is its name in the small model."""
    source = source or name
    return {
        f"{name}.weight": matrix(out, into, f"{source}.weight"),
        f"{name}.bias": vector(out, f"{source}.bias"),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """The weights of one model or head, to be made on a device: a `WeightSource` of the engine.

    `folder` holds the small model. The noise comes from a random generator of its own, so that a
    device gives the same weights each time.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    pieces: Mapping[str, Piece]
    seed: int

    @property
    def num_numbers(self) -> int:
        """Return how many numbers all tensors have together."""
        return sum(math.prod(piece.shape) for piece in self.pieces.values())

    def describe(self) -> dict[str, Any]:
        """Return the fields that a log has about this model."""
        return {"is_stand_in": True, "num_numbers": self.num_numbers, "seed": self.seed}

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor with its name in the official format."""
        generator = torch.Generator(device).manual_seed(self.seed)

        def draw(shape: tuple[int, ...]) -> Tensor:
            empty = torch.empty(shape, device=device, dtype=dtype)
            return empty.normal_(0, NOISE, generator=generator)

        small = _read_weights(self.folder)
        for name, piece in self.pieces.items():
            yield name, piece.make(draw, small)


_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")


def _read_weights(folder: Path) -> Small:
    """Load the tensors in a folder of the embedded models."""
    (path,) = (path for path in folder.iterdir() if path.suffix in _WEIGHT_SUFFIXES)
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _put(tensor: Tensor, rows: Tensor, columns: Tensor, numbers: Tensor | float) -> None:
    """Write `numbers` [rows, columns], or one number for all, at these rows and columns."""
    device = tensor.device
    if isinstance(numbers, Tensor):
        numbers = numbers.to(device, tensor.dtype)
    tensor[rows.to(device)[:, None], columns.to(device)] = numbers
