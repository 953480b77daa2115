"""Parameters of draft weights, counted without downloading them.

Counts the trained part that runs while drafting, as papers do. EAGLE's copy of the target's
embedding and heads shared with the target are left out.
"""

from __future__ import annotations

from pathlib import Path

from specbench.models.cards import DraftWeights, ModelCard, draft_parameters
from specbench.models.checkpoints import count_parameters
from specbench.zoo.heads import num_head_parameters


def num_parameters(card: ModelCard, weights: DraftWeights) -> int | None:
    """The number of parameters, from local files or else from the target's shape.

    None if unknown, as for Hydra, whose published heads differ in depth, and for a layer in
    the target's own files.
    """
    if weights.repo == card.repo:
        return None
    if Path(weights.repo).is_dir():
        return count_parameters(Path(weights.repo))
    if weights.is_model:
        return draft_parameters().get(weights.repo)
    return None if card.shape is None else num_head_parameters(weights.head, card.shape)
