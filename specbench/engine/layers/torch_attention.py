"""Attention by torch's own operations, including the caps and sinks that some models have.

A layer attends to all earlier tokens, to a window of them, or to a chunk.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn.functional import scaled_dot_product_attention

from specbench.engine.layers.config_fields import declared
from specbench.engine.layers.emulated import is_emulated
from specbench.engine.layers.operands import additive

# Kinds of layers, as configs of transformers name them.
FULL = "full_attention"
"""A token sees all earlier tokens."""
SLIDING = "sliding_attention"
"""A token sees a window of the latest tokens."""
CHUNKED = "chunked_attention"
"""A token sees the earlier tokens of its chunk."""
RECURRENT = frozenset({"linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding"})


def attention_kinds(
    text_config: Any, read: Callable[[Any, str, Any], Any] = declared
) -> dict[str, int | None]:
    """The kinds of attention in the layers, each with the size of its window or chunk in tokens.

    The size is None if there is no limit, or if no sequence can be longer. `read` returns a field
    of the config, or a default. With `getattr`, fields that the config's class ignores count too.
    """
    window = read(text_config, "sliding_window", None)
    chunk = read(text_config, "attention_chunk_size", None)
    kinds = read(text_config, "layer_types", None)
    if not kinds and window and read(text_config, "use_sliding_window", True):
        kinds = (SLIDING,)
    elif not kinds:
        kinds = (CHUNKED,) if chunk else (FULL,)
    context = getattr(text_config, "max_position_embeddings", None) or float("inf")
    limits = {SLIDING: window, CHUNKED: chunk}
    sizes = {kind: size for kind, size in limits.items() if size is not None and size < context}
    kinds = [FULL if kind == "attention" else kind for kind in kinds]  # its name before 5.23
    return {kind: sizes.get(kind) for kind in kinds}


def windowed(
    mask: Tensor, positions: Tensor, start: Tensor, kinds: Mapping[str, int | None]
) -> Tensor | dict[str, Tensor]:
    """The mask [1, 1, n, columns] of each kind of attention, or a single mask if all are equal.

    `mask` [n, columns] is additive. From column `start` [] on, the columns are the n rows
    themselves, at `positions` [n]. Earlier columns are at positions 0, 1, 2 and so on. Siblings
    share a position, so a window counts positions, not rows.
    """
    columns = torch.arange(mask.shape[1], device=mask.device)
    own_columns = start + columns[: len(positions)]
    seen_at = columns.index_copy(0, own_columns, positions)  # [columns] positions
    row_at = positions[:, None]
    masks = {}
    for kind, size in kinds.items():
        masks[kind] = mask[None, None]
        if size is not None:
            if kind == SLIDING:
                is_outside = seen_at <= row_at - size
            else:
                is_outside = seen_at // size != row_at // size
            lowest = torch.finfo(mask.dtype).min
            masks[kind] = mask.masked_fill(is_outside, lowest)[None, None]
    is_single = len(masks) == 1 or not any(kinds.values())
    return masks.popitem()[1] if is_single else masks


BLOCK = 512
"""Number of a prompt's rows whose scores are computed at once, if torch's attention cannot."""


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """The scale, cap and sinks of attention scores."""

    scale: float | None = None
    """Factor of the products. None stands for head_dim ** -0.5."""
    soft_cap: float | None = None
    """The largest score, which a tanh approaches (Gemma 2)."""
    sinks: Tensor | None = None
    """[query heads] score of a key that every row sees, and whose value is zero (gpt-oss)."""

    def scale_of(self, head_dim: int) -> float:
        """The factor of the products if heads have this size."""
        return head_dim**-0.5 if self.scale is None else self.scale

    @property
    def is_plain(self) -> bool:
        """True if torch's own attention can compute these scores."""
        return self.soft_cap is None and self.sinks is None


PLAIN = Scoring()


def masked(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scoring: Scoring
) -> Tensor:
    """Attention's output [n, num_kv * group * dim] for queries [n, num_kv, group, dim].

    `keys` and `values` [num_kv, m, dim]. The additive `mask` [n, m] hides some keys; None hides
    none.
    """
    n, num_kv, group, dim = queries.shape
    # Query heads that share keys are rows of one head.
    stacked = queries.permute(1, 2, 0, 3).reshape(num_kv, group * n, dim)
    if mask is not None and group > 1:
        mask = mask.repeat(group, 1)
    if scoring.is_plain:
        out = scaled_dot_product_attention(
            stacked[None], keys[None], values[None], mask, scale=scoring.scale
        )[0]
    else:
        out = _scored(stacked, keys, values, mask, scoring)
    by_row = out.unflatten(1, (group, -1)).permute(2, 0, 1, 3)  # [n, num_kv, group, dim]
    return by_row.reshape(by_row.shape[0], -1)


def causal(
    queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring, window: int | None
) -> Tensor:
    """Causal attention among rows [n, num_kv, group, dim]. A row sees the last `window` rows."""
    n, _, group, _ = queries.shape
    if scoring.is_plain and (window is None or n <= window):
        if group > 1:
            keys = keys.repeat_interleave(group, 0)
            values = values.repeat_interleave(group, 0)
        dtype = torch.float32 if is_emulated(queries) else queries.dtype
        q = queries.flatten(1, 2).transpose(0, 1)[None].to(dtype)  # [1, heads, n, dim]
        k = keys[None].to(dtype)
        v = values[None].to(dtype)
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scoring.scale)[0]
        return out.transpose(0, 1).reshape(n, -1).to(queries.dtype)
    outputs = []
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        first_seen = 0 if window is None else max(0, begin - window + 1)
        seen = slice(first_seen, end)
        rows = torch.arange(begin, end, device=queries.device)[:, None]
        columns = torch.arange(first_seen, end, device=queries.device)
        sees = columns <= rows
        if window is not None:
            sees &= columns > rows - window
        mask = additive(sees, queries.dtype)
        outputs.append(masked(queries[begin:end], keys[:, seen], values[:, seen], mask, scoring))
    return torch.cat(outputs)


def _scored(
    stacked: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scoring: Scoring
) -> Tensor:
    """Attention with capped scores or sinks, [num_kv, group * n, dim]. Softmax is in float32."""
    dtype = torch.promote_types(stacked.dtype, torch.float32)
    scale = scoring.scale_of(stacked.shape[2])
    scores = torch.bmm(stacked, keys.mT).to(dtype).mul_(scale)  # [num_kv, group * n, m]
    if scoring.soft_cap is not None:
        scores = scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    if mask is not None:
        scores += mask
    if scoring.sinks is not None:
        num_kv, num_queries, _ = stacked.shape
        sinks = scoring.sinks.to(dtype).view(num_kv, -1, 1)  # [num_kv, group, 1]
        n = num_queries // sinks.shape[1]
        sink_scores = sinks.expand(-1, -1, n).reshape(num_kv, num_queries, 1)
        with_sinks = torch.cat([scores, sink_scores], -1)
        shares = with_sinks.softmax(-1)[..., :-1]
    else:
        shares = scores.softmax(-1)
    return torch.bmm(shares.to(values.dtype), values)


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Disable cuDNN's attention in the block, then restore the caller's setting. Also a decorator.

    Torch prefers cuDNN's attention on recent GPUs in half precision. cuDNN makes a plan for every
    new length, which takes a large part of a second. This would lengthen the prefill of the first
    method that gets a prompt, and the decode time of SpS.
    """
    was_enabled = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(was_enabled)


def attention_kernels() -> list[str]:
    """The kernels that torch may choose on a GPU with the current settings."""
    is_enabled = {
        "flash": cuda.flash_sdp_enabled(),
        "memory-efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return [name for name in is_enabled if is_enabled[name]]
