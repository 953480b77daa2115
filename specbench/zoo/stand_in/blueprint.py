"""What a stand-in's tensors are: noise of their shape, with the small model's written into it.

Knows tensors and spaces. Knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor

from specbench.zoo.stand_in.space import Space

NOISE = 0.02
"""Standard deviation of the noise: that of a transformer's first weights."""

Small = Mapping[str, Tensor]
"""The tensors of the small model, by name."""

Draw = Callable[[tuple[int, ...]], Tensor]
"""Makes a tensor of noise of a shape."""


class Piece(Protocol):
    """One tensor of a stand-in."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def make(self, draw: Draw, small: Small) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A value at all of `rows` by all of `columns`."""

    rows: Tensor
    columns: Tensor
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A linear map [out, into] that does to the small channels what the small matrix does.

    Rows whose result is prescribed are zero in the live columns; then come the small matrix times
    `scale`, and `entry`. The rest is noise. An embedding is stored the other way round.
    """

    out: Space
    into: Space
    small: str | None = None
    scale: float = 1.0
    entry: Entry | None = None
    is_embedding: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        shape = (self.out.size, self.into.size)
        return shape[::-1] if self.is_embedding else shape

    def make(self, draw: Draw, small: Small) -> Tensor:
        tensor = draw(self.shape)
        rows = tensor.T if self.is_embedding else tensor
        _put(rows, self.out.bound, self.into.live.nonzero()[:, 0], 0.0)
        if self.small is not None:
            block = small[self.small].float() * self.scale
            _put(rows, self.out.used, self.into.used, block.T if self.is_embedding else block)
        if self.entry is not None:
            _put(rows, self.entry.rows, self.entry.columns, self.entry.value)
        return tensor


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """A bias or a norm's weight: the small one's numbers times `scale`, else zero or noise."""

    space: Space
    small: str | None = None
    scale: float = 1.0
    constant: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.space.size,)

    def make(self, draw: Draw, small: Small) -> Tensor:
        tensor = draw(self.shape)
        space, device = self.space, tensor.device
        tensor[space.bound.to(device)] = 0.0
        if self.small is not None:
            numbers = small[self.small].float() * self.scale
            tensor[space.used.to(device)] = numbers.to(device, tensor.dtype)
        if space.constant is not None:
            tensor[space.constant] = self.constant
        return tensor


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A tensor of whole numbers or truth values, worked out from the small model's."""

    shape: tuple[int, ...]
    read: Callable[[Small], Tensor]

    def make(self, draw: Draw, small: Small) -> Tensor:
        return self.read(small)


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """The weights of one model or head, to be made on a device: a `WeightSource` of the engine.

    `folder` holds the small model. The noise is drawn from a generator of its own, so that the
    same device gives the same weights each time.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    pieces: Mapping[str, Piece]
    seed: int

    @property
    def num_numbers(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(piece.shape) for piece in self.pieces.values())

    def describe(self) -> dict[str, Any]:
        """What a log keeps of them."""
        return {"is_stand_in": True, "num_numbers": self.num_numbers, "seed": self.seed}

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by its name in the official format, one after the other."""
        generator = torch.Generator(device).manual_seed(self.seed)

        def draw(shape: tuple[int, ...]) -> Tensor:
            empty = torch.empty(shape, device=device, dtype=dtype)
            return empty.normal_(0, NOISE, generator=generator)

        small = read_small(self.folder)
        for name, piece in self.pieces.items():
            yield name, piece.make(draw, small)


def read_small(folder: Path) -> Small:
    """The tensors in a folder of the embedded models."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".bin", ".pt"):
            tensors: Small = torch.load(path, map_location="cpu", weights_only=True)
            return tensors
    raise FileNotFoundError(f"{folder} holds no weights")


def _put(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor | float) -> None:
    """Write `values` [rows, columns], or one for all, at those rows and columns."""
    device = matrix.device
    if isinstance(values, Tensor):
        values = values.to(device, matrix.dtype)
    matrix[rows.to(device)[:, None], columns.to(device)] = values
