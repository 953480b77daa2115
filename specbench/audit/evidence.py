"""Numbers that show if tokens were drawn from the target's distribution, and logits were right.

The reference is one plain forward of the model over prompt and answer, without the engine's
cache, masks or kernels. A watched drafter keeps each step's tree and the target's logits along
the accepted path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specbench.audit.drafters import ProposedTree, WatchedDrafter
from specbench.audit.numbers import UNKNOWN, Array, DraftNumbers, LogitNumbers, TokenNumbers
from specbench.audit.reference import NUM_BEST, plain_logits, plain_steps
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.types import Request, Sampling

_CHUNK = 32
"""Tokens whose distributions are in memory at once."""
_SLACK = 1e-3
"""Share of top-p by which rounding may move the border of the kept tokens."""
_HALF_SLACK = 0.05
"""The same in half precision."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Numbers about one answer."""

    token_ids: tuple[int, ...]
    tokens: TokenNumbers
    logits: LogitNumbers
    drafts: DraftNumbers


@torch.inference_mode()
@without_cudnn_attention()
def watched_evidence(target: Target, drafter: Drafter, request: Request) -> Evidence:
    """Complete a request with a watched drafter, and compare it with a plain forward."""
    watched = WatchedDrafter(drafter, request.seed)
    completion = decode(target, watched, request)
    token_ids = completion.token_ids
    reference = plain_logits(target, request.prompt_ids, token_ids)
    in_steps = numbers_in_steps(completion.accept_lengths, token_ids, watched.trees)
    tokens = replace(
        token_numbers(reference, token_ids, request.sampling),
        depth=in_steps.depth,
        has_draft=in_steps.has_draft,
    )
    # The prefill's row, then a row for each token of each step: the token that follows the node.
    rows = torch.cat([*watched.logits, reference[:0]])
    logits = logit_numbers(rows, reference[: len(rows)])
    if max(completion.num_nodes, default=0) <= target.max_exact_rows:
        plain = plain_steps(target, request.prompt_ids, token_ids[: len(rows)])
        logits = replace(logits, is_exact=(rows == plain).all(-1).long().cpu().numpy())
    return Evidence(token_ids, tokens, logits, DraftNumbers.join(watched.drafts))


def token_numbers(logits: Tensor, token_ids: Sequence[int], sampling: Sampling) -> TokenNumbers:
    """Numbers about tokens drawn after these logits [tokens, vocab], whose steps are unknown."""
    loose = _loosened(sampling, is_half=logits.dtype.itemsize < 4)
    if sampling.is_greedy:
        sampling = loose = Sampling(1.0)
    samplers = _Samplers(Sampler(sampling, logits.device), Sampler(loose, logits.device))
    tokens = torch.tensor(token_ids, device=logits.device)[:, None]
    uniform = np.random.default_rng(token_ids).random(len(token_ids))
    within = torch.from_numpy(uniform).to(logits.device)
    parts = []
    for start in range(0, len(token_ids), _CHUNK):
        rows = slice(start, start + _CHUNK)
        parts.append(_chunk(logits[rows], tokens[rows], within[rows], samplers))
    numbers = TokenNumbers.join(parts)
    numbers.depth[0] = 0
    return numbers


def _loosened(sampling: Sampling, *, is_half: bool) -> Sampling:
    """The sampling settings with borders as far out as rounding may move them."""
    slack = _HALF_SLACK if is_half else _SLACK
    top_k = sampling.top_k
    if top_k:
        top_k += max(1, round(10 * slack * top_k))
    return replace(sampling, top_p=min(1.0, sampling.top_p + slack), top_k=top_k)


class _Samplers(NamedTuple):
    """The sampler that tokens should be drawn by, and one with loosened borders."""

    sampler: Sampler
    loose: Sampler


def _chunk(logits: Tensor, tokens: Tensor, within: Tensor, samplers: _Samplers) -> TokenNumbers:
    """Numbers for logits [tokens, vocab] and tokens [tokens, 1].

    `within` [tokens] places a token within its own share of the distribution.
    """
    p = samplers.sampler.probs(logits.double())  # [tokens, vocab]
    token_p = p.gather(1, tokens)  # [tokens, 1]
    own_p = token_p[:, 0]  # [tokens]
    # Surprise of each token of the vocabulary: -log p. Its mean is the entropy.
    surprises = -p.clamp_min(torch.finfo(p.dtype).tiny).log()
    entropy = (p * surprises).sum(-1)
    around = surprises - entropy[:, None]
    surprise = surprises.gather(1, tokens)[:, 0]
    likelier = p.masked_fill(p <= token_p, 0.0).sum(-1)
    equally_likely = p.masked_fill(p != token_p, 0.0).sum(-1)
    rank = likelier + equally_likely / 2
    # The rank is the middle of the drawn token's own stretch of [0, 1), on which tokens lie end to
    # end by falling probability. A uniform point of [0, 1) has variance 1/12 and no third moment.
    # Given its stretch of length w and middle m it has mean m, variance w**2/12 and no third
    # moment; so its moments are those of m plus E[w**2/12] and 3 E[(m - 1/2) w**2/12], where the
    # stretch has probability w. What is left are the moments of m, which is the rank.
    ordered = p.sort(-1, descending=True).values
    around_half = ordered.cumsum(-1) - ordered / 2 - 0.5
    rank_variance = (1 - (ordered**3).sum(-1)) / 12
    rank_third = -(ordered**3 * around_half).sum(-1) / 4
    tail = p.masked_fill(p > token_p, 0.0).sum(-1)
    end = p.cumsum(-1).gather(1, tokens)[:, 0]
    position = end - own_p * (1 - within)
    middle = end - own_p / 2
    best = ordered[:, 0]
    # A token at the border of the kept ones says nothing: it gets the expected numbers.
    is_ruled_out = own_p <= 0
    loose_p = samplers.loose.probs(logits.double()).gather(1, tokens)[:, 0]
    is_possible = ~is_ruled_out | (loose_p > 0)
    columns = {
        "surprise": torch.where(is_ruled_out, entropy, surprise),
        "entropy": entropy,
        "surprise_variance": (p * around**2).sum(-1),
        "surprise_third": (p * around**3).sum(-1),
        "rank": torch.where(is_ruled_out, 0.5, rank),
        "rank_variance": rank_variance,
        "rank_third": rank_third,
        "is_best": (own_p >= best).double(),
        "best": best,
        "position": position,
        "middle": torch.where(is_ruled_out, 0.5, middle),
        "tail": torch.where(is_ruled_out & is_possible, 1.0, tail),
        "is_possible": is_possible,
    }
    unknown = np.full(len(tokens), UNKNOWN)
    arrays = {name: column.cpu().numpy() for name, column in columns.items()}
    return TokenNumbers(**arrays, depth=unknown, has_draft=unknown)


def logit_numbers(logits: Tensor, reference: Tensor) -> LogitNumbers:
    """Numbers about logits [rows, vocab] and their reference."""
    logits = logits.double()
    reference = reference.double()
    best_ids = reference.topk(min(NUM_BEST, reference.shape[1])).indices
    best = reference.gather(1, best_ids)  # [rows, NUM_BEST]
    deviation = (logits.gather(1, best_ids) - best).abs().amax(-1)
    is_flipped = logits.argmax(-1) != best_ids[:, 0]
    return LogitNumbers(
        deviation=deviation.cpu().numpy(),
        scale=best.abs().amax(-1).cpu().numpy(),
        is_flipped=is_flipped.cpu().numpy(),
        is_exact=np.full(len(logits), float(UNKNOWN)),
    )


class InSteps(NamedTuple):
    """Where an answer's tokens are in their steps: two columns [tokens] of `TokenNumbers`."""

    depth: Array
    has_draft: Array


def numbers_in_steps(
    accept_lengths: Sequence[int], token_ids: Sequence[int], trees: Sequence[ProposedTree]
) -> InSteps:
    """Find an answer's tokens in its steps. Without trees, nobody knows where it had drafts."""
    depth = [0]
    has_draft = [0]
    for step, length in enumerate(accept_lengths):
        depth += range(1, length + 1)
        if not trees:
            has_draft += [UNKNOWN] * length
            continue
        tree = trees[step]
        node = 0
        start = len(has_draft)
        for token in token_ids[start : start + length]:
            children = [i for i, parent in enumerate(tree.parents) if parent == node and i]
            has_draft.append(int(bool(children)))
            node = next((i for i in children if tree.tokens[i] == token), 0)
    return InSteps(np.array(depth), np.array(has_draft))
