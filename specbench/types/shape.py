"""The sizes of a model."""

from dataclasses import dataclass
from typing import Any

CONFIG_NAMES = {
    "num_layers": "num_hidden_layers", "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size", "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads", "own_head_dim": "head_dim",
    "vocab_size": "vocab_size", "context": "max_position_embeddings",
}  # fmt: skip
"""Field of a shape -> its name in config.json."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama-like model, as in its config.json."""

    num_layers: int
    """Decoder layers."""
    hidden_size: int
    """Width of the hidden states."""
    intermediate_size: int
    """Width of the MLP."""
    num_heads: int
    """Attention heads."""
    num_kv_heads: int
    """Key and value heads."""
    vocab_size: int
    """Rows of the embedding matrix."""
    context: int
    """Positions that the model supports."""
    num_experts: int = 1
    """Experts per layer; 1 for a dense model."""
    architecture: str = "llama"
    """`model_type` of config.json."""
    own_head_dim: int | None = None
    """Size of an attention head. Null if it is hidden_size / num_heads."""

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.hidden_size // self.num_heads

    @property
    def config(self) -> dict[str, Any]:
        """The sizes of a dense model by their names in config.json."""
        sizes = {name: getattr(self, field) for field, name in CONFIG_NAMES.items()}
        return {**sizes, "head_dim": self.head_dim}

    @property
    def num_parameters(self) -> int:
        """The number of weights in matrices, embeddings included. Norms and biases (under 0.01 %)
        are not counted.
        """
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size * self.num_experts
        return self.num_layers * (attention + mlp) + 2 * self.vocab_size * self.hidden_size
