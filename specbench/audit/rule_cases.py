"""Outcomes of acceptance rules on small trees with known p (the target's) and q (the drafter's).

Answers cannot show that a rule is a little too lenient. On these trees every probability is known.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from specbench.audit.numbers import Array
from specbench.engine.accept import Rule, Verdict
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Sampling

VOCAB = 4
"""Number of tokens that may have a probability above 0: ids 0 to 3."""
WIDE = 128
"""Vocabulary size for rules that need more than 4 tokens. Ids from 4 on have probability 0."""
_ROOT = np.array([0.42, 0.28, 0.2, 0.1])
"""p after the root: [4]."""
_NEXT = np.array(
    [
        [0.1, 0.5, 0.15, 0.25],
        [0.3, 0.1, 0.35, 0.25],
        [0.27, 0.23, 0.4, 0.1],
        [0.6, 0.2, 0.12, 0.08],
    ]
)
"""p after each token that may follow the root: [4, 4]."""
_Q_ROOT = np.array([0.15, 0.35, 0.1, 0.4])
"""q after the root: [4]. Some cases use one of the next three instead."""
_Q_CLOSE = np.array([0.48, 0.33, 0.15, 0.04])
"""Likely tokens have a little more mass than in p, to expose a rule that rejects too rarely."""
_Q_FAR = np.array([0.02, 0.02, 0.02, 0.94])
"""The first sibling is almost always rejected, and then the second in one case in seven."""
_Q_REJECTED = np.array([0.02, 0.21, 0.08, 0.69])
"""With top-p, q's likeliest token is rejected, and applying top-p again would cut the residual."""
_Q_NEXT = _NEXT[[2, 3, 1, 0]]
"""q after each token that may follow the root: [4, 4]."""


@dataclass(frozen=True, slots=True, eq=False)
class RuleCase:
    """A tree whose tokens are drawn anew for each outcome, under some sampling settings."""

    name: str
    parents: tuple[int, ...]
    """The parent of each node. The root's is itself."""
    num_scratch: int = 0
    """Number of nodes, at the end of the tree, that may not be accepted."""
    is_drawn: bool = True
    """True if siblings are drawn from q without replacement; False if the tokens are fixed."""
    sampling: Sampling = field(default_factory=lambda: Sampling(1.0))
    support: int = VOCAB
    """Number of tokens, from id 0 on, that q after the root is limited to."""
    q_root: Array = field(default_factory=lambda: _Q_ROOT)
    """q after the root: [4]."""


_TOP_P = Sampling(1.0, top_p=0.85)
CASES = (
    RuleCase(
        "fixed draft tokens",
        parents=(0, 0, 0, 1, 1, 0),
        num_scratch=1,
        is_drawn=False,
        sampling=Sampling(0.7),
    ),
    RuleCase("drawn chain", parents=(0, 0, 1), sampling=Sampling(1.5), q_root=_Q_CLOSE),
    RuleCase("drawn siblings", parents=(0, 0, 0, 0, 1, 1, 2)),
    RuleCase("drawn siblings, top-p", parents=(0, 0, 0, 0, 1, 1, 2), sampling=_TOP_P),
    RuleCase("more siblings than q has tokens", parents=(0, 0, 0, 0, 1), support=2),
    RuleCase("drawn siblings, far from p", parents=(0, 0, 0, 0), q_root=_Q_FAR),
    RuleCase("rejected draft token, top-p", parents=(0, 0, 1), sampling=_TOP_P, q_root=_Q_REJECTED),
    RuleCase("drawn siblings, top-k", parents=(0, 0, 0, 1), sampling=Sampling(1.0, top_k=2)),
    RuleCase("drawn siblings, T=0.3", parents=(0, 0, 0, 1), sampling=Sampling(0.3)),
    RuleCase(
        "five levels, twelve nodes",
        parents=(0, 0, 0, 0, 1, 1, 4, 4, 6, 6, 8, 8),
        q_root=_Q_CLOSE,
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The number of times that a rule emitted each token on a tree, and the tokens' probabilities.

    Row 0 is about the first token of each draw, and row 1 + t about the tokens after an accepted
    token t. Column t is about token t, and the last column about all tokens from 4 on, which are
    impossible.
    """

    name: str
    counts: Array
    """Number of times that each token was emitted: [1 + 4, 4 + 1]."""
    probs: Array
    """The probabilities of the tokens in p: [1 + 4, 4 + 1]."""


@torch.inference_mode()
def rule_outcomes(rule: Rule, num_draws: int) -> list[Outcomes]:
    """The outcomes of a rule in each case, from `num_draws` draws in total.

    The list is empty if the rule raises an exception both with the small vocabulary and with the
    wide one, in which most tokens are impossible.
    """
    num_per_case = -(-num_draws // len(CASES))  # rounded up
    for vocab in (VOCAB, WIDE):
        with suppress(Exception):  # a plug-in's rule may raise anything
            return [_outcomes(rule, case, num_per_case, vocab=vocab) for case in CASES]
    return []


def _outcomes(rule: Rule, case: RuleCase, num_draws: int, *, vocab: int) -> Outcomes:
    """Draw the tokens of a case's tree many times, and count the tokens that a rule emits.

    Args:
        rule: the rule, which decides from a tree with its tokens, the target's logits
            [nodes, vocab] and a sampler which draft tokens are accepted.
        case: a small tree with sampling settings.
        num_draws: the number of times that the tree's tokens are drawn.
        vocab: the size of the vocabulary. Tokens from VOCAB (4) on have probability 0.
    """
    generator = np.random.default_rng([0, CASES.index(case)])  # a different seed for each case
    sampler = Sampler(case.sampling, torch.device("cpu"), seed=0)
    layout = TreeLayout.from_parents(case.parents, "cpu")  # the tree without tokens
    num_verify = len(case.parents) - case.num_scratch
    # Row 0 of the next arrays is for the token after the root, row 1 + t for the token after t.
    p = np.stack([_ROOT, *_NEXT])  # [1 + 4, 4]
    kept_p = np.stack([_kept(row_p, case.sampling) for row_p in p])  # within top-p and top-k
    probs = np.pad(kept_p, ((0, 0), (0, 1)))  # [1 + 4, 4 + 1]; 0 for tokens from 4 on
    counts = np.zeros_like(probs)
    # The sampler computes softmax(logits / temperature), which has to be p.
    logits = torch.full((1 + VOCAB, vocab), -1e4, dtype=torch.float64)  # -1e4: probability 0
    logits[:, :VOCAB] = torch.from_numpy(np.log(p) * case.sampling.temperature)
    for _ in range(num_draws):
        drafts = _draw_tree(case, generator)
        q = drafts.q
        if q is not None:
            q = pad(q, (0, vocab - VOCAB))  # [nodes, vocab]; 0 for tokens from 4 on
        tree = DraftTree(torch.tensor(drafts.tokens), layout, num_verify, q)
        rows_after_drafts = [1 + token for token in drafts.tokens[1:]]
        row_of_node = torch.tensor([0, *rows_after_drafts])  # a row of `logits`: [nodes]
        verdict = Verdict.read(rule(tree, logits[row_of_node], sampler))
        row = 0  # index in `counts`
        for token_id in verdict.token_ids:  # accepted draft tokens, then the target's own token
            counts[row, min(token_id, VOCAB)] += 1
            if token_id >= VOCAB:  # `counts` has no row for tokens after this one
                break
            row = 1 + token_id
    return Outcomes(case.name, counts, probs)


class _Drafts(NamedTuple):
    """The tokens of a tree's nodes."""

    tokens: list[int]
    q: torch.Tensor | None
    """The distribution that each token was drawn from [nodes, 4]; None if tokens are fixed."""


def _draw_tree(case: RuleCase, generator: np.random.Generator) -> _Drafts:
    """Draw the tokens of a case's tree, or choose fixed tokens if the case has those.

    A token is drawn from the q that follows its parent's token, without the tokens of earlier
    siblings. If nothing is left of q, it is the first token that no earlier sibling has.
    """
    num_nodes = len(case.parents)
    tokens = [0] * num_nodes  # token id of each node; the root (node 0) keeps 0
    q = np.zeros((num_nodes, VOCAB))
    for node in range(1, num_nodes):
        parent = case.parents[node]
        elder_siblings = [elder for elder in range(1, node) if case.parents[elder] == parent]
        taken_tokens = [tokens[elder] for elder in elder_siblings]
        free_tokens = [token for token in range(VOCAB) if token not in taken_tokens]
        if not case.is_drawn:
            index = (node + parent) % len(free_tokens)  # varies with the node
            tokens[node] = free_tokens[index]
            continue
        left_q = _q_after(case, parent, tokens[parent])  # [4], not normalized
        left_q[taken_tokens] = 0
        if left_q.sum():
            q[node] = left_q / left_q.sum()
            tokens[node] = _draw(q[node], generator)
        else:
            tokens[node] = free_tokens[0]
            q[node, free_tokens[0]] = 1.0
    return _Drafts(tokens, torch.from_numpy(q) if case.is_drawn else None)


def _draw(q: Array, generator: np.random.Generator) -> int:
    """Draw a token from q [4] as `generator.choice(VOCAB, p=q)` does, in a fifth of the time."""
    cumulated_q = q.cumsum()
    uniform = generator.random()  # in [0, 1)
    return int((cumulated_q / cumulated_q[-1]).searchsorted(uniform, side="right"))


def _q_after(case: RuleCase, parent: int, token: int) -> Array:
    """A copy of q [4] for the children of a node with this token.

    After the root (node 0), the case may limit q to a few tokens. Then q is not normalized.
    """
    if parent:
        return _Q_NEXT[token].copy()
    root_q = case.q_root.copy()
    root_q[case.support :] = 0
    return root_q


def _kept(p: Array, sampling: Sampling) -> Array:
    """The distribution `p` [tokens], cut to the tokens that top-k and top-p keep and normalized."""
    sorted_ids = np.argsort(-p)  # the likeliest token first
    # As in `Sampler`, top-k comes first. Top-p counts shares of the probability that top-k keeps.
    top_ids = sorted_ids[: sampling.top_k or None]  # 0: all tokens
    shares = p[top_ids] / p[top_ids].sum()
    # Top-p keeps a token if the likelier tokens together have less probability than top-p. The
    # likeliest token is always kept. The next two arrays are in the order of `top_ids`.
    likelier_mass = np.concatenate([[0.0], shares.cumsum()[:-1]])
    is_kept = likelier_mass < sampling.top_p
    is_kept[0] = True
    kept_ids = top_ids[is_kept]
    kept_p = np.zeros_like(p)
    kept_p[kept_ids] = p[kept_ids]
    return kept_p / kept_p.sum()
