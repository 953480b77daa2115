"""Parameters of draft weights, counted without downloading them.

Counts the trained part that runs while drafting, as papers do. EAGLE's copy of the target's
embedding and heads shared with the target are left out.
"""

from __future__ import annotations

import math
from pathlib import Path

from specbench.models.cards import DRAFT_MODELS, DraftWeights, ModelCard, Shape, draft_parameters
from specbench.models.checkpoints import safetensors_header, weight_files

NUM_MEDUSA_HEADS = 5
EAGLE3_DRAFT_VOCAB = 32_000
"""Common to the published heads of every target."""


def num_parameters(card: ModelCard, weights: DraftWeights) -> int | None:
    """The number of parameters, from local files or else from the target's shape.

    None if unknown, as for Hydra, whose published heads differ in depth, and for a layer in the
    target's own files.
    """
    if weights.repo == card.repo:
        return None
    if Path(weights.repo).is_dir():
        return _count(Path(weights.repo))
    if weights.method in DRAFT_MODELS:
        return draft_parameters().get(weights.repo)
    return None if card.shape is None else _from_shape(card.shape, weights.method)


def _from_shape(shape: Shape, method: str) -> int | None:
    hidden, inner, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    mlp = 3 * hidden * inner
    if method in ("eagle", "eagle2"):
        return 2 * hidden**2 + 2 * hidden * (queries + keys) + mlp
    if method == "eagle3" and shape.num_experts == 1:  # else its MLP has a size of its own
        attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
        return 3 * hidden**2 + attention + mlp + EAGLE3_DRAFT_VOCAB * hidden
    if method == "medusa":
        return NUM_MEDUSA_HEADS * hidden * (hidden + vocab)
    return None


def _count(folder: Path) -> int:
    """Parameters in the folder's weight files. Pickled heads are float16: two bytes each."""
    total = 0
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            header = safetensors_header(file, str(folder))
            total += sum(math.prod(entry["shape"]) for entry in header.values())
        else:
            total += file.stat().st_size // 2
    return total
