"""How a small model sits in a big shape: its spaces, norms and rotary pairs.

The construction and why it is exact are in the package's docstring.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.types import Shape
from specbench.zoo.stand_in.blueprint import Entry, Matrix, Vector
from specbench.zoo.stand_in.space import Space, joined, leading, placed

REFUSAL = -(2.0**15)
"""What the rows of the added vocabulary read the constant channel with."""


@dataclass(frozen=True, slots=True)
class LayerSpaces:
    """The activations inside a decoder layer, behind the projections that make them."""

    queries: Space
    keys: Space
    values: Space
    attended: Space  # what o_proj reads
    gates: Space
    neurons: Space  # what down_proj reads


@dataclass(frozen=True, slots=True)
class Fit:
    """A small model in a big shape. Both have rotary Llama layers; `eps` is the small norms'."""

    small: Shape
    big: Shape
    eps: float
    rope_theta: float

    @property
    def constant(self) -> float:
        """The constant channel: the largest power of two whose square is below d * eps."""
        square = self.small.hidden_size * self.eps
        return float(2.0 ** (math.ceil(math.log2(square) / 2) - 1))

    @property
    def big_eps(self) -> float:
        """What the big norms add to the mean square."""
        square = self.small.hidden_size * self.eps
        return (square - self.constant**2) / self.big.hidden_size

    @property
    def norm_scale(self) -> float:
        return math.sqrt(self.small.hidden_size / self.big.hidden_size)

    @property
    def stream(self) -> Space:
        """The residual stream, with the constant channel; also what is behind the last norm."""
        return leading(self.small.hidden_size, self.big.hidden_size, has_constant=True)

    @property
    def update(self) -> Space:
        """What is added to the stream; also what is behind the norms in the layers."""
        return leading(self.small.hidden_size, self.big.hidden_size)

    @property
    def vocabulary(self) -> Space:
        return leading(self.small.vocab_size, self.big.vocab_size)

    def norm(self, small: str | None, gain: float = 0.0) -> Vector:
        """A norm's weight; the constant behind it is `gain` times its share of the small norm."""
        weights = torch.ones(self.big.hidden_size, dtype=torch.bool)
        space = Space(self.stream.used, weights, self.stream.constant)
        return Vector(space, small, self.norm_scale, constant=gain * self.norm_scale)

    def embedding(self, small: str) -> Matrix:
        """Rows of the small channels, the constant, and silence."""
        stream, words = self.stream, self.vocabulary
        assert stream.constant is not None
        entry = Entry(torch.tensor([stream.constant]), words.used, self.constant)
        return Matrix(stream, words, small, entry=entry, is_embedding=True)

    def head(self, small: str, words: Space | None = None) -> Matrix:
        """A projection to a vocabulary, which refuses every added word."""
        words, stream = words or self.vocabulary, self.stream
        entry = Entry(words.silent, torch.tensor([stream.constant]), REFUSAL)
        return Matrix(words, stream, small, entry=entry)

    def carrying(self, small: str, *parts: Space) -> Matrix:
        """A projection of several inputs to a stream: the first one's constant is the result's."""
        into, stream = joined(parts), self.stream
        entry = Entry(torch.tensor([stream.constant]), torch.tensor([into.constant]), 1.0)
        return Matrix(stream, into, small, entry=entry)

    def inside(self, *, is_added: bool = False) -> LayerSpaces:
        """The spaces of a layer; an added one computes nothing of the small model's."""
        big, small = self.big, self.small
        dim, group = big.head_dim, big.num_heads // big.num_kv_heads
        num_queries, num_keys = big.num_heads * dim, big.num_kv_heads * dim
        nothing = torch.arange(0)
        if is_added:
            free_queries = placed(nothing, num_queries, is_rest_live=True)
            free_keys = placed(nothing, num_keys, is_rest_live=True)
            gates = placed(nothing, big.intermediate_size, is_rest_live=True)
            return LayerSpaces(
                free_queries, free_keys, leading(0, num_keys), leading(0, num_queries),
                gates, leading(0, big.intermediate_size),
            )  # fmt: skip
        heads, width = torch.arange(small.num_heads), torch.arange(small.head_dim)
        pairs = self._rotary_places()
        query_heads = (heads * group * dim)[:, None]
        queries = placed((query_heads + pairs).flatten(), num_queries, is_rest_live=True)
        own = (query_heads + torch.arange(dim)).flatten()  # unused places of used heads are silent
        queries.live[own] = False
        queries.live[queries.used] = True
        key_heads = (heads * dim)[:, None]
        keys = placed((key_heads + pairs).flatten(), num_keys, is_rest_live=True)
        values = placed((key_heads + width).flatten(), num_keys, is_rest_live=False)
        attended = placed((query_heads + width).flatten(), num_queries, is_rest_live=False)
        readers = torch.arange(small.num_heads * group) * dim  # all heads of the used groups
        attended.live[(readers[:, None] + width).flatten()] = True
        inner = (small.intermediate_size, big.intermediate_size)
        gates = placed(torch.arange(inner[0]), inner[1], is_rest_live=True)
        return LayerSpaces(queries, keys, values, attended, gates, leading(*inner))

    def _rotary_places(self) -> Tensor:
        """Where the places of a small head are in a big one: pair i is at i and i + half."""
        half, big_half = self.small.head_dim // 2, self.big.head_dim // 2
        first = torch.arange(half) * (big_half // half)
        return torch.cat([first, first + big_half])

    @property
    def query_scale(self) -> float:
        """Against attention's 1 / sqrt(head_dim)."""
        return math.sqrt(self.big.head_dim / self.small.head_dim)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of an embedded model or head."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return config


def fit_in(folder: Path, big: Shape) -> Fit:
    """How the model or decoder layer of a folder sits in a shape."""
    config = read_config(folder)
    rope = config.get("rope_parameters") or {}
    small = Shape(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        vocab_size=config["vocab_size"],
        context=config["max_position_embeddings"],
    )
    theta = config.get("rope_theta") or rope["rope_theta"]
    return Fit(small, big, config["rms_norm_eps"], theta)
