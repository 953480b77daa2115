"""How many parameters a drafter adds to its target, without downloading it.

Counts what the papers count: the trained part that runs while drafting. EAGLE's copy of the
target's embedding and the heads that a method shares with the target are left out.
"""

from __future__ import annotations

import math
from pathlib import Path

from specbench.bench.checkpoints import safetensors_header, weight_files
from specbench.bench.models import Drafter, ModelCard, Shape, draft_parameters
from specbench.zoo.stand_in.published import EAGLE3_DRAFT_VOCAB, NUM_MEDUSA_HEADS


def num_parameters(card: ModelCard, drafter: Drafter) -> int | None:
    """The drafter's parameters: counted if it lies on this disk, else from the target's shape.

    None where neither tells, as for Hydra, whose published heads differ in depth.
    """
    if Path(drafter.repo).is_dir():
        return _count(Path(drafter.repo))
    if drafter.method == "sps":
        return draft_parameters().get(drafter.repo)
    return None if card.shape is None else _from_shape(card.shape, drafter.method)


def _from_shape(shape: Shape, method: str) -> int | None:
    hidden, inner, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    mlp = 3 * hidden * inner
    if method in ("eagle", "eagle2"):
        return 2 * hidden**2 + 2 * hidden * (queries + keys) + mlp
    if method == "eagle3":
        attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
        return 3 * hidden**2 + attention + mlp + EAGLE3_DRAFT_VOCAB * hidden
    if method == "medusa":
        return NUM_MEDUSA_HEADS * hidden * (hidden + vocab)
    return None


def _count(folder: Path) -> int:
    """Numbers in the folder's weight files; pickled heads are float16, two bytes each."""
    total = 0
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            header = safetensors_header(file, str(folder))
            shapes = [about["shape"] for name, about in header.items() if name != "__metadata__"]
            total += sum(math.prod(shape) for shape in shapes)
        else:
            total += file.stat().st_size // 2
    return total
