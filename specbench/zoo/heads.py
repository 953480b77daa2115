"""Sizes of the published heads of each kind, by the target's shape."""

from specbench.types import Shape

NUM_MEDUSA_HEADS = 5
"""Number of heads in Medusa's published checkpoints. It is the same for every target."""
EAGLE3_DRAFT_VOCAB = 32_000
"""Draft vocabulary of EAGLE-3's published heads. It is the same for every target."""
CONFIG_KEY = "eagle_aux_hidden_state_layer_ids"
"""The field of a head's config.json that names the target layers of EAGLE-3's features."""


def feature_layers(num_layers: int) -> tuple[int, ...]:
    """Return EAGLE-3's target layers: the official three, or others if a target is small."""
    official = sorted({2, num_layers // 2, num_layers - 3})
    if len(official) == 3 and official[0] >= 0 and official[-1] < num_layers:
        return tuple(official)
    if num_layers < 3:
        return tuple(range(num_layers))
    return tuple(sorted({num_layers // 4, num_layers // 2, num_layers - 1}))


def num_head_parameters(kind: str, shape: Shape) -> int | None:
    """Count the parameters of a published head for a target of this shape.

    Return None if the number is unknown: published Hydra heads, for example, differ in depth.
    """
    hidden = shape.hidden_size
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    mlp = 3 * hidden * shape.intermediate_size
    if kind == "eagle":
        fc = 2 * hidden**2
        attention = 2 * hidden * (queries + keys)
        return fc + attention + mlp
    if kind == "eagle3" and shape.num_experts == 1:  # a mixture's head has a different MLP
        fc = 3 * hidden**2
        attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
        return fc + attention + mlp + EAGLE3_DRAFT_VOCAB * hidden
    if kind == "medusa":
        return NUM_MEDUSA_HEADS * hidden * (hidden + shape.vocab_size)
    return None
