"""Kinds of heads: the sizes of the published ones, by the target's shape."""

from specbench.types import Shape

NUM_MEDUSA_HEADS = 5
EAGLE3_DRAFT_VOCAB = 32_000
"""Common to the published heads of every target."""
CONFIG_KEY = "eagle_aux_hidden_state_layer_ids"
"""Name in a head's config.json of the target layers whose inputs are EAGLE-3's features."""


def feature_layers(num_layers: int) -> tuple[int, ...]:
    """The target layers of EAGLE-3's features: the official three, else three others, or all."""
    official = sorted({2, num_layers // 2, num_layers - 3})
    if len(official) == 3 and official[0] >= 0 and official[-1] < num_layers:
        return tuple(official)
    if num_layers < 3:
        return tuple(range(num_layers))
    return tuple(sorted({num_layers // 4, num_layers // 2, num_layers - 1}))


def num_head_parameters(kind: str, shape: Shape) -> int | None:
    """Parameters of a published head for a target of this shape.

    None if unknown, as for Hydra, whose published heads differ in depth.
    """
    hidden, inner, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    mlp = 3 * hidden * inner
    if kind == "eagle":
        return 2 * hidden**2 + 2 * hidden * (queries + keys) + mlp
    if kind == "eagle3" and shape.num_experts == 1:  # else its MLP has a size of its own
        attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
        return 3 * hidden**2 + attention + mlp + EAGLE3_DRAFT_VOCAB * hidden
    if kind == "medusa":
        return NUM_MEDUSA_HEADS * hidden * (hidden + vocab)
    return None
