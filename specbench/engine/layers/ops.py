"""The operations of decoder layers and of drafts, on rows of tokens and of a cache.

The inputs' shapes determine every shape, and no value reaches the host. So a call can be replayed
as a CUDA graph. On a CPU, a linear layer over few rows is one product per thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu

from specbench.engine.layers.emulated import is_emulated, product
from specbench.engine.layers.experts import Act, Experts, gated, mix
from specbench.engine.layers.operands import (
    Beam,
    CacheRows,
    CacheSlots,
    HeadNorm,
    Heads,
    Norm,
    PairNorms,
    TreeMask,
)
from specbench.engine.layers.torch_attention import PLAIN, Scoring, causal, masked

MOST_SPLIT_ROWS = 64
"""Largest number of rows for which a product on a CPU is split among threads."""
LEAST_PART = 2**15
"""Smallest number of weights for which a part of a product is worth a thread."""


def num_parts_of(x: Tensor, weight: Tensor) -> int:
    """The number of parts of a product. With few rows on a CPU: at most one per thread.

    BLAS on a CPU uses one core for a single row, and distributes few rows badly.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return 1
    if x.shape[0] > MOST_SPLIT_ROWS:
        return 1
    num_columns = weight.shape[0]
    most = max(min(torch.get_num_threads(), weight.numel() // LEAST_PART), 1)
    return next(num_parts for num_parts in range(most, 0, -1) if num_columns % num_parts == 0)


def in_parts(x: Tensor, weight: Tensor, bias: Tensor | None, num_parts: int) -> Tensor:
    """A linear layer over x [n, input], with the weight's rows split into parallel products."""
    weights = weight.unflatten(0, (num_parts, -1)).mT  # [parts, input, output / parts]
    out = torch.bmm(x.expand(num_parts, *x.shape), weights)
    out = out.transpose(0, 1).reshape(x.shape[0], -1)
    return out if bias is None else out.add_(bias)


JoinedLayers: TypeAlias = Callable[..., None]
"""Runs decoder layers and the norms before them in one call, for up to `max_exact_rows` rows.

Given x [n, hidden], the index of the first layer, caches, slots and a `TreeMask`, it runs one
layer per cache over x in place. If `attended` [n, input] is given too, the attention of the first
layer reads `attended` instead of norm(x).
"""
JoinedHead: TypeAlias = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""Drafts several levels in one call, after the filled rows of the caches.

It takes `hidden` [1, hidden] (the root's output), the number of filled rows, the caches, the rotary
embeddings of all positions as in `CacheSlots`, the number of levels, and scores and tokens [top_k]
of the root's children. It returns scores and tokens, extended by all further candidates, and the
place of each node [levels * top_k] among the candidates of the previous level.
"""


@dataclass(frozen=True, slots=True, eq=False)
class DraftHead:
    """A draft model over pairs of a token and its parent's output.

    The first layer reads [token_norm(embedding) ; feature_norm(output)], and adds its result to
    the output. With `fc`, it reads fc(this pair) instead, and adds its result to fc(this pair).
    """

    layers: JoinedLayers | None
    embedding: Tensor
    head: nn.Linear
    token_ids: Tensor | None = None  # [draft vocabulary], the target's ids
    fc: nn.Linear | None = None
    token_norm: Norm | None = None
    output_norm: Norm | None = None  # applied to the output before anything reads it
    feature_norm: Norm | None = None
    norm: Norm | None = None  # before the head
    is_residual_normed: bool = False


class Ops:
    """Torch's own operations, and the reason if they replace requested kernels."""

    name = "torch"
    max_exact_rows = 0
    """Up to this many rows, a row's result has the same bits regardless of the rows beside it."""

    def __init__(self, kernels_unsupported_reason: str | None = None) -> None:
        self.kernels_unsupported_reason = kernels_unsupported_reason
        self.fallbacks: dict[str, str] = {}
        """Operation that does not run as requested -> the reason for it."""

    @property
    def reason(self) -> str | None:
        """The reasons that operations do not run as requested, or None if all of them do."""
        reasons = [f"{operation}: {reason}" for operation, reason in self.fallbacks.items()]
        if self.kernels_unsupported_reason:
            reasons.insert(0, self.kernels_unsupported_reason)
        return "; ".join(reasons) or None

    def describe(self) -> dict[str, Any]:
        """Name and reason, for the header of a run."""
        return {"name": self.name, "reason": self.reason}

    def place(self, model: nn.Module) -> None:
        """Move the model's weights to where they are read fastest."""

    def join(self, layers: Sequence[tuple[Norm | None, Any]]) -> JoinedLayers | None:
        """A call that runs fused layers and the norms before them, or None if it is impossible.

        The layers have no windows. Only the first layer may lack a norm. If it does, the
        call needs `attended` (see `JoinedLayers`).
        """
        return None

    def join_head(self, head: DraftHead, top_k: int) -> JoinedHead | None:
        """A call that drafts levels of `top_k` nodes with `top_k` children each, or None."""
        return None

    def norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None) -> Tensor:
        """Apply `norm` to `x` [n, hidden], and add the result to `residual` in place if given."""
        out = norm(x)
        return out if residual is None else residual.add_(out)

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """A linear layer over x [n, input], after `norm` if given.

        If `residual` [n, output] is given, the result is added to it in place.
        """
        if norm is not None:
            x = self.norm(x, norm)
        num_parts = num_parts_of(x, weight)
        if residual is not None and bias is None and num_parts == 1 and not is_emulated(x):
            return residual.addmm_(x, weight.t())
        out = product(x, weight, bias) if num_parts == 1 else in_parts(x, weight, bias, num_parts)
        return out if residual is None else residual.add_(out)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        """Run another linear layer over each row of x [n, input]. `weights` [n, output, input]."""
        out = torch.bmm(x[:, None], weights.mT)[:, 0]
        return out if biases is None else out.add_(biases)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act) -> Tensor:
        """act(gate(x)) * up(x) [n, inner], x normed. `weight` [2 * inner, hidden] holds both."""
        return gated(self.project(x, weight, bias, norm=norm), act)

    def experts(self, x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
        """The sum [n, hidden] of the experts `ids` [n, k] over x, weighted by `shares` [n, k]."""
        return mix(x, experts, ids, shares, act)

    def topk_logprobs(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, k] and ids [n, k] of the k most likely tokens, best first.

        `logits` are [n, vocab]. The log-probabilities are at least float32.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        best = torch.log_softmax(logits, -1, dtype=dtype).topk(k)
        return best.values, best.indices

    def best_ids(self, logits: Tensor) -> Tensor:
        """The most likely token [n] of logits [n, vocab]; the first of equal logits."""
        return logits.max(-1).indices  # argmax takes four times as long for bfloat16 on a CPU

    def topk_ids(self, logits: Tensor, k: int) -> Tensor:
        """Ids [n, k] of the k most likely tokens, best first."""
        return logits.topk(k).indices

    def topk(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of values [m], largest first, and their indices [k]."""
        best = values.topk(k)
        return best.values, best.indices

    def topk_scores(
        self, logits: Tensor, k: int, above: Tensor, token_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `topk_logprobs`, but add the score `above` [n, 1] of each row, in float64.

        If `token_ids` is given, it maps each id to the target's id, which is returned.
        """
        log_probs, ids = self.topk_logprobs(logits, k)
        return log_probs + above, ids if token_ids is None else token_ids[ids]

    def beam(
        self, scores: Tensor, tokens: Tensor, mask: Tensor, sees_itself: Tensor, penalty: Tensor
    ) -> Beam:
        """The k best candidates of a level, which has k candidates per node of the last beam.

        `scores` and `tokens` belong to these candidates. `mask` [nodes of the last beam, expanded]
        is the last beam's. `sees_itself` [k, k] is the mask among k nodes. `penalty` [1, 1] is
        added to scores.
        """
        k = len(sees_itself)
        best, nodes = self.topk(scores, k)
        rows = nodes // k
        beam_mask = torch.cat([mask.index_select(0, rows), sees_itself], 1)
        above = best[:, None] + penalty
        return Beam(nodes, above, rows, tokens.index_select(0, nodes), beam_mask)

    def pairs(
        self,
        table: Tensor,
        tokens: Tensor,
        hidden: Tensor,
        rows: Tensor | None = None,
        norms: PairNorms | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Pairs [n, 2 * hidden] of a token's embedding in `table` and the output before it.

        The outputs are `rows` [n] of `hidden`, or all rows by default. If `norms` are given, both
        parts are normed. Also returns the residual [n, hidden]: the outputs, which are normed if
        `norms.is_residual_normed`.
        """
        residual = hidden if rows is None else hidden.index_select(0, rows)
        embedded = embedding(tokens, table)
        if norms is None:
            return torch.cat([embedded, residual], -1), residual
        normed = self.norm(residual, norms.hidden)
        pairs = torch.cat([self.norm(embedded, norms.token), normed], -1)
        return pairs, normed if norms.is_residual_normed else residual

    def write_kv(
        self, qkv: Tensor, cached: CacheRows, slots: CacheSlots, heads: Heads,
        norm: HeadNorm | None = None,
    ) -> None:  # fmt: skip
        """Rotate the queries of qkv [n, width] in place. Cache the rotated keys and the values.

        If `norm` is given, queries and keys are normalised first.
        """
        n, dim = qkv.shape[0], heads.dim
        num_rotated = heads.num_kv * (heads.group + 1)  # heads of queries and keys
        if norm is not None:
            by_head = qkv.view(n, -1, dim)
            norm.apply(by_head.narrow(1, 0, num_rotated))
        by_half = qkv.view(n, -1, 2, dim // 2)
        rotated = by_half.narrow(1, 0, num_rotated)
        cos, sin = slots.cos_sin.unbind(1)
        swapped = rotated.flip(2) if n == 1 else rotated.roll(1, 2)  # the faster of the two
        rotated.mul_(cos).addcmul_(swapped, sin)
        cached.all.index_copy_(0, slots.rows, qkv[:, heads.query_width :])

    def attend(
        self, queries: Tensor, cached: CacheRows, tree_mask: TreeMask | None, heads: Heads,
        scoring: Scoring = PLAIN, window: int | None = None,
    ) -> Tensor:  # fmt: skip
        """The output of attention [n, heads.query_width] for `queries` of the same shape.

        Without `tree_mask`, the queries belong to the cache's first rows and attention is
        causal. With `window`, a row sees that many positions, its own included.
        """
        n = queries.shape[0]
        by_head = queries.unflatten(1, (heads.num_kv, heads.group, heads.dim))
        if tree_mask is None:
            keys = cached.keys.narrow(1, 0, n)
            values = cached.values.narrow(1, 0, n)
            return causal(by_head, keys, values, scoring, window)
        tree_mask = tree_mask.within(window)
        span = tree_mask.num_rows
        keys = cached.keys.narrow(1, 0, span)
        values = cached.values.narrow(1, 0, span)
        return masked(by_head, keys, values, tree_mask.mask, scoring)


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of gelu (Gemma)."""
    return gelu(x, approximate="tanh")


TORCH = Ops()
