"""Kinds of attention of a model's layers: over all earlier tokens, a window of them, or a chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
RECURRENT = frozenset({"linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding"})


def attention_kinds(text_config: Any) -> dict[str, int | None]:
    """Kinds of attention in the layers, each with its window or chunk, in tokens.

    The size is None if it is not limited, or if no sequence is longer.
    """
    window = getattr(text_config, "sliding_window", None)
    chunk = getattr(text_config, "attention_chunk_size", None)
    kinds = getattr(text_config, "layer_types", None)
    if not kinds:
        is_windowed = window and getattr(text_config, "use_sliding_window", True)
        kinds = (SLIDING if is_windowed else CHUNKED if chunk else FULL,)
    sizes = {SLIDING: window, CHUNKED: chunk}
    context = getattr(text_config, "max_position_embeddings", None) or float("inf")
    return {kind: _below(sizes.get(kind), context) for kind in dict.fromkeys(kinds)}


def windowed(
    mask: Tensor, positions: Tensor, start: Tensor, kinds: Mapping[str, int | None]
) -> Tensor | dict[str, Tensor]:
    """Masks by kind of attention, or one if all are equal, each [1, 1, n, columns].

    `mask` [n, columns] is additive. From column `start` [] on, its columns are the rows
    themselves, at `positions` [n]; the ones before are at 0, 1, 2 and so on. Siblings share a
    position, so a window counts from it, not from the row.
    """
    columns, rows = torch.arange(mask.shape[1], device=mask.device), positions[:, None]
    columns = columns.index_copy(0, start + columns[: len(positions)], positions)
    masks = {}
    for kind, size in kinds.items():
        masks[kind] = mask[None, None]
        if size is not None:
            if kind == SLIDING:
                is_outside = columns <= rows - size
            else:
                is_outside = columns // size != rows // size
            hidden = torch.finfo(mask.dtype).min
            masks[kind] = mask.masked_fill(is_outside, hidden)[None, None]
    is_single = len(masks) == 1 or not any(kinds.values())
    return masks.popitem()[1] if is_single else masks


def _below(size: int | None, context: float) -> int | None:
    return size if size is not None and size < context else None
