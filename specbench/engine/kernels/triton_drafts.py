"""Launch the Triton kernels of drafts, for `kernels.triton_ops`.

In each function, `options` are the launch options of every kernel.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from specbench.engine.kernels.triton_growth import choose_beam, pair_rows
from specbench.engine.kernels.triton_topk import topk_of_chunk, topk_of_row
from specbench.engine.layers.operands import Beam, Norm, PairNorms


def launch_topk(
    logits: Tensor,
    k: int,
    above: Tensor | None,
    token_ids: Tensor | None,
    chunk: int,
    options: Mapping[str, Any],
) -> tuple[Tensor, Tensor]:
    """The kernels of `Ops.topk_scores` or, without `above`, of `Ops.topk_logprobs`.

    A program reads `chunk` logits.
    """
    n, vocab_size = logits.shape
    num_chunks = triton.cdiv(vocab_size, chunk)
    best = logits.new_empty(n, num_chunks, k, dtype=torch.float32)  # largest logits of each chunk
    best_ids = torch.empty_like(best, dtype=torch.int32)
    tops = best.new_empty(n, num_chunks)  # the largest logit of each chunk
    totals = best.new_empty(n, num_chunks)  # sums of exponentials, relative to `tops`
    topk_of_chunk[(n, num_chunks)](
        logits, best, best_ids, tops, totals, vocab_size, logits.stride(0), k, chunk, **options
    )
    scores = best.new_empty(n, k, dtype=torch.float32 if above is None else torch.float64)
    ids = best_ids.new_empty(n, k, dtype=torch.long)
    topk_of_row[(n,)](
        best, best_ids, tops, totals, best if above is None else above,
        best_ids if token_ids is None else token_ids, scores, ids, num_chunks, above is not None,
        token_ids is not None, k, triton.next_power_of_2(num_chunks),
        triton.next_power_of_2(num_chunks * k), **options,
    )  # fmt: skip
    return scores, ids


def launch_beam(
    scores: Tensor,
    tokens: Tensor,
    mask: Tensor,
    sees_itself: Tensor,
    penalty: Tensor,
    options: Mapping[str, Any],
) -> Beam:
    """The kernel of `Ops.beam`."""
    k, width = len(sees_itself), mask.shape[1]
    nodes, rows, kept = tokens.new_empty(3, k)
    above = scores.new_empty(k, 1)
    beam_mask = mask.new_empty(k, width + k)
    choose_beam[(1,)](
        scores,
        tokens,
        mask.contiguous(),
        sees_itself,
        penalty,
        nodes,
        above,
        rows,
        kept,
        beam_mask,
        len(scores),
        width,
        k,
        triton.next_power_of_2(k),
        triton.next_power_of_2(len(scores)),
        triton.next_power_of_2(width + k),
        **options,
    )
    return Beam(nodes, above, rows, kept, beam_mask)


def launch_pairs(
    table: Tensor,
    tokens: Tensor,
    hidden: Tensor,
    rows: Tensor | None,
    norms: PairNorms | None,
    options: Mapping[str, Any],
) -> tuple[Tensor, Tensor]:
    """The kernel of `Ops.pairs`."""
    n, size = len(tokens), hidden.shape[1]
    pairs, residual = hidden.new_empty(n, 2 * size), hidden.new_empty(n, size)
    unread = Norm(table, 0.0)
    token_norm, hidden_norm, is_normed = norms or PairNorms(unread, unread, False)
    block = triton.next_power_of_2(size)
    pair_rows[(n, 2)](
        table,
        tokens,
        hidden,
        tokens if rows is None else rows,
        token_norm.weight,
        hidden_norm.weight,
        pairs,
        residual,
        size,
        hidden.stride(0),
        token_norm.eps,
        hidden_norm.eps,
        rows is not None,
        norms is not None,
        is_normed,
        block,
        num_warps=min(max(block // 512, 1), 16),
        **options,
    )
    return pairs, residual
