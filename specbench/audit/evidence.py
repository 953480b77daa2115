"""Numbers that show whether tokens are draws from the target's distribution, and logits right.

The reference is one plain forward of the model over prompt and answer, without the engine's
cache, masks or kernels. A watched drafter keeps the tree of each step and the target's logits along
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
from specbench.audit.reference import NUM_BEST, has_exact_steps, plain_logits, plain_steps
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.types import Request, Sampling

_CHUNK = 32
"""Number of tokens whose distributions are in memory at once."""
_SLACK = 1e-3
"""Probability that is added to top-p, since rounding may change which tokens are kept."""
_HALF_SLACK = 0.05
"""Probability that is added to top-p if logits are in half precision."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Numbers about one answer."""

    token_ids: tuple[int, ...]
    """The answer."""
    tokens: TokenNumbers
    """The answer's tokens, compared with the distributions that they should be drawn from."""
    logits: LogitNumbers
    """The logits of prefill and steps, compared with those of a plain forward."""
    drafts: DraftNumbers
    """The drawn draft tokens, compared with the distributions that they claim."""


@torch.inference_mode()
@without_cudnn_attention()
def watched_evidence(target: Target, drafter: Drafter, request: Request) -> Evidence:
    """Complete a request with a watched drafter, and compare the answer with a plain forward.

    A plain forward is one pass of the model over prompt and answer, without the engine's cache.
    """
    watched = WatchedDrafter(drafter, request.seed)  # keeps trees, logits and draft tokens
    completion = decode(target, watched, request)
    token_ids = completion.token_ids
    # logits before each token of the answer [tokens, vocab]
    plain_rows = plain_logits(target, request.prompt_ids, token_ids)
    in_steps = numbers_in_steps(completion.accept_lengths, token_ids, watched.trees)
    tokens = replace(
        token_numbers(plain_rows, token_ids, request.sampling),
        depth=in_steps.depth,
        has_draft=in_steps.has_draft,
    )
    # The engine's logits before the prefill's token and before the tokens of all steps but the last
    # [rows, vocab]: a drafter sees the logits of a step only before the next step. An answer of one
    # token has no logits here, so the empty `plain_rows[:0]` gives the shape.
    step_rows = torch.cat([*watched.logits, plain_rows[:0]])
    contexts = [hash((*request.prompt_ids, *token_ids[:i])) for i in range(len(step_rows))]
    logits = replace(
        logit_numbers(step_rows, plain_rows[: len(step_rows)]), context=np.array(contexts)
    )
    # `is_exact` is UNKNOWN so far, and stays so if a step has more nodes than `max_exact_rows`.
    if 0 < target.max_exact_rows >= max(completion.num_nodes, default=0):
        # Steps of up to `max_exact_rows` nodes should give the same bits in any tree. They are
        # compared with the engine's steps over chains of that many tokens [rows, vocab].
        chain_rows = plain_steps(target, request.prompt_ids, token_ids[: len(step_rows)])
        is_exact = (step_rows == chain_rows).all(-1).long().cpu().numpy()  # 1 or 0 [rows]
        # the number of nodes of each row's step; 0 for the prefill's row
        num_nodes = np.repeat((0, *completion.num_nodes), (1, *completion.accept_lengths))
        num_nodes = num_nodes[: len(is_exact)]
        for size in {*num_nodes[(is_exact == 0) & (num_nodes > 0)].tolist()}:
            # A difference in steps of this size says nothing about the method if chains of `size`
            # tokens also differ from the longer chains, or do not fit into the context.
            if not has_exact_steps(target, request.prompt_ids, token_ids, size):
                is_exact[num_nodes == size] = UNKNOWN
        logits = replace(logits, is_exact=is_exact)
    return Evidence(token_ids, tokens, logits, DraftNumbers.join(watched.drafts))


def token_numbers(logits: Tensor, token_ids: Sequence[int], sampling: Sampling) -> TokenNumbers:
    """Numbers that show if the tokens of an answer were drawn from the target's distributions.

    Greedy tokens get the numbers that they would have as draws at temperature 1. The answer's steps
    are not known here, so `depth` and `has_draft` are UNKNOWN, except the depth of the first token.

    Args:
        logits: the target's logits before each token [tokens, vocab].
        token_ids: all tokens of the answer.
        sampling: the settings with which the tokens should be drawn.
    """
    # `loose_sampling` also keeps tokens just beyond top-p and top-k, which rounding may bring in.
    loose_sampling = _loosened(sampling, is_half=logits.dtype.itemsize < 4)  # bytes per number
    if sampling.is_greedy:
        sampling = loose_sampling = Sampling(1.0)
    samplers = _Samplers(Sampler(sampling, logits.device), Sampler(loose_sampling, logits.device))
    token_column = torch.tensor(token_ids, device=logits.device)[:, None]  # [tokens, 1]
    # a few tokens at a time, to save memory
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(token_ids), _CHUNK)]
    numbers = TokenNumbers.join(
        [_numbers_of_chunk(logits[rows], token_column[rows], samplers) for rows in chunks]
    )
    numbers.depth[0] = 0  # the prefill's token
    return numbers


def _loosened(sampling: Sampling, *, is_half: bool) -> Sampling:
    """The sampling settings with top-p and top-k raised as far as rounding may move them."""
    slack = _HALF_SLACK if is_half else _SLACK
    top_k = sampling.top_k
    if top_k:  # 0: all tokens are kept
        # Add a share of top-k that is ten times the slack, but at least one token.
        top_k += max(1, round(10 * slack * top_k))
    return replace(sampling, top_p=min(1.0, sampling.top_p + slack), top_k=top_k)


class _Samplers(NamedTuple):
    """Samplers with the requested settings, and with loosened top-p and top-k."""

    sampler: Sampler
    loose: Sampler


def _numbers_of_chunk(logits: Tensor, tokens: Tensor, samplers: _Samplers) -> TokenNumbers:
    """Numbers about drawn tokens [tokens, 1] and the distributions p that they should come from.

    `logits` [tokens, vocab] are the target's before each token. In the order of their ids, all
    tokens of the vocabulary are laid end to end on [0, 1), each on a stretch as long as its
    probability. A mass is a sum of probabilities, and "third" means a third central moment.
    """
    p = samplers.sampler.probs(logits.double())  # [tokens, vocab]
    p_column = p.gather(1, tokens)  # p of the drawn token [tokens, 1]
    token_p = p_column[:, 0]
    # -log p of each token of the vocabulary [tokens, vocab]; the entropy is its mean under p
    surprises = -p.clamp_min(torch.finfo(p.dtype).tiny).log()
    entropy = (p * surprises).sum(-1)
    centred = surprises - entropy[:, None]  # [tokens, vocab]
    surprise = surprises.gather(1, tokens)[:, 0]
    likelier_mass = p.masked_fill(p <= p_column, 0.0).sum(-1)
    equal_mass = p.masked_fill(p != p_column, 0.0).sum(-1)
    rank = likelier_mass + equal_mass / 2
    # The moments of the rank. If the likeliest tokens come first, a stretch has length w and middle
    # m, and the rank is the drawn token's m. A uniform point of [0, 1) has variance 1/12 and third
    # moment 0. Within a stretch it has mean m, variance w**2/12 and third moment 0. So, by the laws
    # of total variance and third moment,
    #     variance(m) = 1/12 - E[w**2/12],  third(m) = -3 E[(m - 1/2) w**2/12]
    falling_p = p.sort(-1, descending=True).values  # w [tokens, vocab]
    middle_from_half = falling_p.cumsum(-1) - falling_p / 2 - 0.5  # m - 1/2 [tokens, vocab]
    rank_variance = (1 - (falling_p**3).sum(-1)) / 12
    rank_third = -(falling_p**3 * middle_from_half).sum(-1) / 4
    # mass of the tokens that are at most as likely as the drawn token
    tail_mass = p.masked_fill(p > p_column, 0.0).sum(-1)
    # the end and the middle of the drawn token's stretch of [0, 1) in the order of ids
    stretch_end = p.cumsum(-1).gather(1, tokens)[:, 0]
    stretch_middle = stretch_end - token_p / 2
    best_p = falling_p[:, 0]
    # A token that p rules out gets the expected surprise (the entropy), rank and middle (1/2). Its
    # tail is 1 if looser settings allow it, because then rounding may explain it, and 0 otherwise.
    is_ruled_out = token_p <= 0
    loose_p = samplers.loose.probs(logits.double()).gather(1, tokens)[:, 0]
    is_possible = ~is_ruled_out | (loose_p > 0)
    columns = {
        "surprise": torch.where(is_ruled_out, entropy, surprise),
        "entropy": entropy,
        "surprise_variance": (p * centred**2).sum(-1),
        "surprise_third": (p * centred**3).sum(-1),
        "rank": torch.where(is_ruled_out, 0.5, rank),
        "rank_variance": rank_variance,
        "rank_third": rank_third,
        # Of several equally likely tokens, only the first counts, since `best` is the p of one.
        "is_best": (tokens[:, 0] == p.argmax(-1)).double(),
        "best": best_p,
        "middle": torch.where(is_ruled_out, 0.5, stretch_middle),
        "tail": torch.where(is_ruled_out & is_possible, 1.0, tail_mass),
        "is_possible": is_possible,
    }
    unknown = np.full(len(tokens), UNKNOWN)  # no steps are known here
    arrays = {name: column.cpu().numpy() for name, column in columns.items()}
    return TokenNumbers(**arrays, depth=unknown, has_draft=unknown)


def logit_numbers(logits: Tensor, reference: Tensor) -> LogitNumbers:
    """Numbers about the differences of logits [rows, vocab] from a reference of the same shape."""
    logits = logits.double()
    reference = reference.double()
    best_ids = reference.topk(min(NUM_BEST, reference.shape[1])).indices
    best_logits = reference.gather(1, best_ids)  # [rows, NUM_BEST]
    deviation = (logits.gather(1, best_ids) - best_logits).abs().amax(-1)  # the largest [rows]
    is_flipped = logits.argmax(-1) != best_ids[:, 0]  # True if another token is best [rows]
    return LogitNumbers(
        deviation=deviation.cpu().numpy(),
        scale=best_logits.abs().amax(-1).cpu().numpy(),
        is_flipped=is_flipped.cpu().numpy(),
        is_exact=np.full(len(logits), float(UNKNOWN)),  # bits are not compared here
        context=np.full(len(logits), UNKNOWN),
    )


class InSteps(NamedTuple):
    """The place of each token in its step: two columns [tokens] of `TokenNumbers`."""

    depth: Array
    """The token's number in its step, from 1; 0 for the prefill's token."""
    has_draft: Array
    """1 if the step's tree had draft tokens for the token's place, else 0; UNKNOWN if the trees are
    unknown.
    """


def numbers_in_steps(
    accept_lengths: Sequence[int], token_ids: Sequence[int], trees: Sequence[ProposedTree]
) -> InSteps:
    """The place of each token in its step, and whether the step drafted tokens for this place.

    Args:
        accept_lengths: number of tokens that each step emitted.
        token_ids: the answer. Its first token is the prefill's, which no step emitted.
        trees: the draft tree of each step; empty if unknown, as for a recorded answer.
    """
    # Both lists have a number per token, the prefill's first (see `InSteps`).
    depths = [0]
    has_drafts = [0]
    for step, num_emitted in enumerate(accept_lengths):
        depths += range(1, num_emitted + 1)
        if not trees:
            has_drafts += [UNKNOWN] * num_emitted
            continue
        tree = trees[step]
        # Walk from the root (0) along the nodes that carry the emitted tokens.
        node = 0
        first_index = len(has_drafts)  # of the step's first token in the answer
        for token_id in token_ids[first_index : first_index + num_emitted]:
            # The root is its own parent, but not its own child.
            children = [
                child for child, parent in enumerate(tree.parents) if parent == node and child != 0
            ]
            has_drafts.append(int(bool(children)))
            # The step's last token may be on no node, since it is the target's own. Its node (0) is
            # not used, since the walk ends there.
            node = next((child for child in children if tree.tokens[child] == token_id), 0)
    return InSteps(np.array(depths), np.array(has_drafts))
