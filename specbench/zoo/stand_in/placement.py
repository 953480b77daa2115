"""Place a small model in a big shape: its channels, norms and rotary pairs.

The package's docstring explains the construction and why it is exact.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.types import CONFIG_NAMES, Shape
from specbench.zoo.stand_in.blueprint import (
    Block,
    Channels,
    Piece,
    concat,
    leading,
    matrix,
    placed,
    vector,
)

ADDED_TOKEN_WEIGHT = -(2.0**15)
"""The weight of the constant channel in the rows of the added vocabulary."""


@dataclass(frozen=True, slots=True)
class LayerChannels:
    """The activations inside a decoder layer, after the projections that make them."""

    queries: Channels
    keys: Channels
    values: Channels
    attended: Channels  # the input of o_proj
    gates: Channels
    neurons: Channels  # the input of down_proj


@dataclass(frozen=True, slots=True)
class Placement:
    """A small model, whose norms have `eps`, in a big shape. Both have rotary Llama layers."""

    small: Shape
    big: Shape
    eps: float
    rope_theta: float

    @property
    def constant(self) -> float:
        """Return the constant: the largest power of two whose square is below d * eps."""
        square = self.small.hidden_size * self.eps
        return float(2.0 ** (math.ceil(math.log2(square) / 2) - 1))

    @property
    def big_eps(self) -> float:
        """Return the number that the big norms add to the mean square."""
        square = self.small.hidden_size * self.eps
        return (square - self.constant**2) / self.big.hidden_size

    @property
    def query_scale(self) -> float:
        """Return the factor that undoes the big shape's 1 / sqrt(head_dim) in attention."""
        return math.sqrt(self.big.head_dim / self.small.head_dim)

    @property
    def stream(self) -> Channels:
        """Return the residual stream with the constant, which is also the last norm's output."""
        return leading(self.small.hidden_size, self.big.hidden_size, has_constant=True)

    @property
    def update(self) -> Channels:
        """Return an update of the stream, which is also the output of norms inside layers."""
        return leading(self.small.hidden_size, self.big.hidden_size)

    @property
    def vocabulary(self) -> Channels:
        return leading(self.small.vocab_size, self.big.vocab_size)

    def norm(self, source: str | None, gain: float = 0.0) -> Piece:
        """Return a norm's weight, which is `gain` * sqrt(d / D) in the constant's channel."""
        stream = self.stream
        scale = math.sqrt(self.small.hidden_size / self.big.hidden_size)
        all_live = Channels(stream.used, torch.ones_like(stream.live), stream.constant)
        return vector(all_live, source, scale=scale, constant=gain * scale)

    def embedding(self, source: str) -> Piece:
        """Return rows with the small channels and the constant. All other channels are silent."""
        stream = self.stream
        tokens = self.vocabulary
        block = Block(torch.tensor([stream.constant]), tokens.used, self.constant)
        return matrix(stream, tokens, source, block=block, is_embedding=True)

    def head(self, source: str, tokens: Channels | None = None) -> Piece:
        """Return a projection to a vocabulary that gives every added token a very low logit."""
        tokens = tokens or self.vocabulary
        stream = self.stream
        block = Block(tokens.silent, torch.tensor([stream.constant]), ADDED_TOKEN_WEIGHT)
        return matrix(tokens, stream, source, block=block)

    def to_stream(self, source: str, *inputs: Channels) -> Piece:
        """Return a projection of several inputs to a stream with the first input's constant."""
        into = concat(inputs)
        stream = self.stream
        block = Block(torch.tensor([stream.constant]), torch.tensor([into.constant]), 1.0)
        return matrix(stream, into, source, block=block)

    def layer(self, *, is_added: bool = False) -> LayerChannels:
        """Return the channels of a layer. An added one has no head or neuron of the small model."""
        big = self.big
        small = self.small
        big_dim = big.head_dim
        group_size = big.num_heads // big.num_kv_heads
        num_queries = big.num_heads * big_dim
        num_keys = big.num_kv_heads * big_dim
        num_heads = 0 if is_added else small.num_heads
        num_neurons = 0 if is_added else small.intermediate_size

        # Small head h is the first query head of group h: [heads, 1] each.
        first_key = torch.arange(num_heads)[:, None] * big_dim
        first_query = first_key * group_size
        # Rotary pair i of a head is at i and i + half: [small head_dim].
        half = small.head_dim // 2
        big_half = big_dim // 2
        spread = torch.arange(half) * (big_half // half)
        pairs = torch.cat([spread, spread + big_half])
        queries = placed((first_query + pairs).flatten(), num_queries, is_rest_live=True)
        # The other channels of used heads are silent.
        queries.live[(first_query + torch.arange(big_dim)).flatten()] = False
        queries.live[queries.used] = True

        width = torch.arange(small.head_dim)
        attended = placed((first_query + width).flatten(), num_queries, is_rest_live=False)
        # All query heads of a used group read its values.
        first_of_reader = torch.arange(num_heads * group_size)[:, None] * big_dim
        attended.live[(first_of_reader + width).flatten()] = True
        return LayerChannels(
            queries=queries,
            keys=placed((first_key + pairs).flatten(), num_keys, is_rest_live=True),
            values=placed((first_key + width).flatten(), num_keys, is_rest_live=False),
            attended=attended,
            gates=placed(torch.arange(num_neurons), big.intermediate_size, is_rest_live=True),
            neurons=leading(num_neurons, big.intermediate_size),
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of an embedded model or head."""
    return json.loads((folder / "config.json").read_text("utf-8"))


def place(folder: Path, big: Shape) -> Placement:
    """Place a folder's model or decoder layer in a shape."""
    config = read_config(folder)
    sizes: dict[str, Any] = {field: config.get(name) for field, name in CONFIG_NAMES.items()}
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    return Placement(Shape(**sizes), big, config["rms_norm_eps"], theta)
