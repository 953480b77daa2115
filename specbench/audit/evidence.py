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
from specbench.audit.reference import NUM_BEST, has_exact_steps, plain_logits, plain_steps
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.types import Request, Sampling

_CHUNK = 32
"""Tokens whose distributions are in memory at once."""
_SLACK = 1e-3
"""Rounding may move the border of the kept tokens by this share of top-p."""
_HALF_SLACK = 0.05
"""The share of top-p by which rounding may move this border in half precision."""


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
    """Complete a request with a watched drafter, and compare it with a plain forward.

    The numbers are about the answer's tokens, the logits of the steps, and the draft tokens. A
    plain forward is one pass of the model over prompt and answer, without the engine's cache.
    """
    watched = WatchedDrafter(drafter, request.seed)  # keeps trees, logits and draft tokens of steps
    completion = decode(target, watched, request)  # has, per step, tokens emitted and nodes
    token_ids = completion.token_ids
    # Logits [tokens, vocab] before each token of the answer.
    plain_rows = plain_logits(target, request.prompt_ids, token_ids)
    # Per token: its number in its step (`depth`), and if the step tried a draft there.
    in_steps = numbers_in_steps(completion.accept_lengths, token_ids, watched.trees)
    tokens = replace(
        token_numbers(plain_rows, token_ids, request.sampling),
        depth=in_steps.depth,
        has_draft=in_steps.has_draft,
    )
    # [rows, vocab]: the logits before the prefill's token, then before each token of each step but
    # the last, which are not seen. The last slice has no rows: it gives the type if all are absent.
    step_rows = torch.cat([*watched.logits, plain_rows[:0]])
    logits = logit_numbers(step_rows, plain_rows[: len(step_rows)])
    if max(completion.num_nodes, default=0) <= target.max_exact_rows:  # nodes
        # Small steps mostly give the same bits for a tree as for a chain of the answer's tokens.
        chain_rows = plain_steps(target, request.prompt_ids, token_ids[: len(step_rows)])
        is_exact = (step_rows == chain_rows).all(-1).long().cpu().numpy()
        # Nodes of each row's step; 0 for the prefill's row.
        sizes = np.repeat((0, *completion.num_nodes), (1, *completion.accept_lengths))
        sizes = sizes[: len(is_exact)]
        for size in {*sizes[(is_exact == 0) & (sizes > 0)].tolist()}:
            if not has_exact_steps(target, request.prompt_ids, token_ids, size):
                is_exact[sizes == size] = UNKNOWN  # plain steps of this shape have other bits, too
        logits = replace(logits, is_exact=is_exact)
    return Evidence(token_ids, tokens, logits, DraftNumbers.join(watched.drafts))


def token_numbers(logits: Tensor, token_ids: Sequence[int], sampling: Sampling) -> TokenNumbers:
    """Numbers about tokens drawn after these logits [tokens, vocab], whose steps are unknown.

    Greedy tokens get the numbers of draws at temperature 1. A token's depth is its number in its
    step; the first token is the prefill's, so its depth is 0. Loose sampling keeps the tokens
    beyond top-p and top-k that rounding might.
    """
    loose_sampling = _loosened(sampling, is_half=logits.dtype.itemsize < 4)
    if sampling.is_greedy:
        sampling = loose_sampling = Sampling(1.0)
    samplers = _Samplers(Sampler(sampling, logits.device), Sampler(loose_sampling, logits.device))
    token_column = torch.tensor(token_ids, device=logits.device)[:, None]  # [tokens, 1]
    # A uniform number per token, which places it within its own share of the distribution. The
    # tokens themselves are the seed, so that an audit repeats its numbers.
    uniform = np.random.default_rng(token_ids).random(len(token_ids))
    within_share = torch.from_numpy(uniform).to(logits.device)
    chunks = []
    # In chunks of tokens, since each has several rows [vocab] in memory.
    for start in range(0, len(token_ids), _CHUNK):
        rows = slice(start, start + _CHUNK)  # of tokens
        chunks.append(_chunk(logits[rows], token_column[rows], within_share[rows], samplers))
    numbers = TokenNumbers.join(chunks)
    numbers.depth[0] = 0
    return numbers


def _loosened(sampling: Sampling, *, is_half: bool) -> Sampling:
    """The sampling settings with their borders moved out as far as rounding may move them."""
    slack = _HALF_SLACK if is_half else _SLACK
    top_k = sampling.top_k
    if top_k:
        top_k += max(1, round(10 * slack * top_k))
    return replace(sampling, top_p=min(1.0, sampling.top_p + slack), top_k=top_k)


class _Samplers(NamedTuple):
    """The sampler that should draw the tokens, and one with loosened borders."""

    sampler: Sampler
    loose: Sampler


def _chunk(
    logits: Tensor, tokens: Tensor, within_share: Tensor, samplers: _Samplers
) -> TokenNumbers:
    """Numbers for logits [tokens, vocab] and token ids [tokens, 1]. Depths are unknown.

    `within_share` [tokens], uniform in [0, 1), places a token within its own share of the
    distribution. `samplers` are the tokens' own and one with looser top-p and top-k. A name
    without a shape holds [tokens]; a mass is a sum of probabilities, "third" a central moment.
    """
    p = samplers.sampler.probs(logits.double())  # [tokens, vocab]
    token_p = p.gather(1, tokens)  # [tokens, 1]
    own_p = token_p[:, 0]  # [tokens]
    # Surprise of each token of the vocabulary: -log p [tokens, vocab]. Its mean is the entropy.
    surprises = -p.clamp_min(torch.finfo(p.dtype).tiny).log()
    entropy = (p * surprises).sum(-1)
    centred = surprises - entropy[:, None]  # [tokens, vocab]
    surprise = surprises.gather(1, tokens)[:, 0]
    likelier_mass = p.masked_fill(p <= token_p, 0.0).sum(-1)
    equal_mass = p.masked_fill(p != token_p, 0.0).sum(-1)
    rank = likelier_mass + equal_mass / 2
    # Tokens lie end to end on [0, 1) by falling probability. The stretch of a token has a length w,
    # which is its probability, and a middle m. The rank is the m of the drawn token. A uniform
    # point u of [0, 1) has variance 1/12 and third central moment 0. Given its stretch, u has mean
    # m, variance w**2/12 and third central moment 0. So, solved for the moments of the rank:
    #     variance(m) = 1/12 - E[w**2/12],  third(m) = -3 E[(m - 1/2) w**2/12]
    falling_p = p.sort(-1, descending=True).values  # w: [tokens, vocab]
    # m - 1/2: [tokens, vocab]
    middle_from_half = falling_p.cumsum(-1) - falling_p / 2 - 0.5
    rank_variance = (1 - (falling_p**3).sum(-1)) / 12
    rank_third = -(falling_p**3 * middle_from_half).sum(-1) / 4
    # The mass of tokens that are at most as likely.
    tail_mass = p.masked_fill(p > token_p, 0.0).sum(-1)
    # The token's stretch of [0, 1) with tokens by id, and its own position in that stretch.
    stretch_end = p.cumsum(-1).gather(1, tokens)[:, 0]
    position = stretch_end - own_p * (1 - within_share)
    stretch_middle = stretch_end - own_p / 2
    best_p = falling_p[:, 0]
    # A token at the border of the kept ones (p rules it out, looser settings do not) says nothing:
    # it gets the expected numbers, which are 1/2 for a rank or middle and 1 for a tail.
    is_ruled_out = own_p <= 0
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
        "is_best": (own_p >= best_p).double(),
        "best": best_p,
        "position": position,
        "middle": torch.where(is_ruled_out, 0.5, stretch_middle),
        "tail": torch.where(is_ruled_out & is_possible, 1.0, tail_mass),
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
    best_logits = reference.gather(1, best_ids)  # [rows, NUM_BEST]
    deviation = (logits.gather(1, best_ids) - best_logits).abs().amax(-1)
    is_flipped = logits.argmax(-1) != best_ids[:, 0]
    return LogitNumbers(
        deviation=deviation.cpu().numpy(),
        scale=best_logits.abs().amax(-1).cpu().numpy(),
        is_flipped=is_flipped.cpu().numpy(),
        is_exact=np.full(len(logits), float(UNKNOWN)),
    )


class InSteps(NamedTuple):
    """Positions of an answer's tokens in their steps: two columns [tokens] of `TokenNumbers`."""

    depth: Array
    has_draft: Array


def numbers_in_steps(
    accept_lengths: Sequence[int], token_ids: Sequence[int], trees: Sequence[ProposedTree]
) -> InSteps:
    """Find an answer's tokens in its steps. Without trees, it is unknown (-1) which steps had
    drafts.

    `accept_lengths` holds the tokens that each step emitted, `token_ids` the answer, which begins
    with the prefill's token; `trees` one draft tree per step, with the token and the parent of each
    node, or no tree at all.
    """
    depths = [0]  # of each token: its number in its step from 1, or 0 for the prefill's
    has_drafts = [0]  # of each token: 1 if the step tried a draft token there, 0 if not
    for step, length in enumerate(accept_lengths):
        depths += range(1, length + 1)
        if not trees:
            has_drafts += [UNKNOWN] * length  # -1
            continue
        tree = trees[step]
        # Walk down from the root to the child that carries each emitted token.
        node = 0
        first_index = len(has_drafts)  # the step's first token in the answer
        for token in token_ids[first_index : first_index + length]:
            # Node 0 is the root, its own parent and nobody's child.
            children = [
                child for child, parent in enumerate(tree.parents) if parent == node and child
            ]
            has_drafts.append(int(bool(children)))
            # The bonus token, the step's last, has no node: 0 then, not used again.
            node = next((child for child in children if tree.tokens[child] == token), 0)
    return InSteps(np.array(depths), np.array(has_drafts))
