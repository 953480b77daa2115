"""Outcomes of acceptance rules on small trees with known p (the target's) and q (the drafter's).

Answers cannot show that a rule is a little too lenient; here every probability is known.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
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
"""Vocabulary size for rules that need more than 4 tokens; ids from 4 on have probability 0."""
_ROOT = np.array([0.42, 0.28, 0.2, 0.1])
"""p after the root: [4]."""
_NEXT = np.array(
    [[0.1, 0.5, 0.15, 0.25], [0.3, 0.1, 0.35, 0.25], [0.27, 0.23, 0.4, 0.1], [0.6, 0.2, 0.12, 0.08]]
)  # fmt: skip
"""p after each token that may follow the root: [4, 4]."""
_Q_ROOT = np.array([0.15, 0.35, 0.1, 0.4])
"""q after the root: [4]. The next three are other choices, for some cases."""
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
    num_verify: int
    """Number of nodes, from the first on, that may be accepted."""
    is_drawn: bool
    """Siblings are drawn from q without replacement; else the tokens are fixed."""
    sampling: Sampling = field(default_factory=lambda: Sampling(1.0))
    support: int = VOCAB
    """Number of tokens, from id 0 on, to which q after the root is limited."""
    q_root: Array = field(default_factory=lambda: _Q_ROOT)
    """q after the root: [4]."""


CASES = (
    RuleCase("fixed draft tokens", (0, 0, 0, 1, 1, 0), 5, is_drawn=False, sampling=Sampling(0.7)),
    RuleCase("drawn chain", (0, 0, 1), 3, is_drawn=True, sampling=Sampling(1.5), q_root=_Q_CLOSE),
    RuleCase("drawn siblings", (0, 0, 0, 0, 1, 1, 2), 7, is_drawn=True),
    RuleCase("drawn siblings, top-p", (0, 0, 0, 0, 1, 1, 2), 7, is_drawn=True,
             sampling=Sampling(1.0, top_p=0.85)),
    RuleCase("more siblings than q has tokens", (0, 0, 0, 0, 1), 5, is_drawn=True, support=2),
    RuleCase("drawn siblings, far from p", (0, 0, 0, 0), 4, is_drawn=True, q_root=_Q_FAR),
    RuleCase("rejected draft token, top-p", (0, 0, 1), 3, is_drawn=True, q_root=_Q_REJECTED,
             sampling=Sampling(1.0, top_p=0.85)),
    RuleCase("drawn siblings, top-k", (0, 0, 0, 1), 4, is_drawn=True,
             sampling=Sampling(1.0, top_k=2)),
    RuleCase("drawn siblings, T=0.3", (0, 0, 0, 1), 4, is_drawn=True, sampling=Sampling(0.3)),
    RuleCase("five levels, twelve nodes", (0, 0, 0, 0, 1, 1, 4, 4, 6, 6, 8, 8), 12, is_drawn=True,
             q_root=_Q_CLOSE),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Counts of emitted tokens and their probabilities by p: [1 + 4, 4 + 1] each.

    Row 0 is for the first token of each draw, row 1 + t for the tokens after an accepted token t.
    Column t is for token t, the last column for impossible tokens, with ids from 4 on.
    """

    name: str
    counts: Array
    probs: Array


@torch.inference_mode()
def rule_outcomes(rule: Rule, num_draws: int) -> list[Outcomes]:
    """The outcomes of a rule per case, from `num_draws` draws in total.

    The list is empty if the rule raises an exception with both sizes of the vocabulary: the small
    one, and the wide one, in which most tokens are impossible.
    """
    num_per_case = -(-num_draws // len(CASES))  # rounded up
    for vocab in (VOCAB, WIDE):
        with suppress(Exception):  # a plug-in's rule may raise anything
            return [_outcomes(rule, case, num_per_case, vocab=vocab) for case in CASES]
    return []


def _outcomes(rule: Rule, case: RuleCase, num_draws: int, *, vocab: int) -> Outcomes:
    """Draw the tokens of a case's tree many times, and count the tokens that a rule emits.

    Returns the counts with the probabilities that they should follow.

    Args:
        rule: takes a tree with its tokens, the target's logits [nodes, vocab] and a sampler, and
            returns what it accepts, which `Verdict.read` turns into the emitted tokens.
        case: a small tree with sampling settings.
        num_draws: how often the tree's tokens are drawn.
        vocab: size of the vocabulary; tokens from VOCAB (4) on have probability 0.
    """
    generator = np.random.default_rng([0, CASES.index(case)])  # another seed per case
    sampler = Sampler(case.sampling, torch.device("cpu"), seed=0)
    layout = TreeLayout.from_parents(case.parents, "cpu")  # the tree without tokens
    # Each of the next arrays has a row for the token after the root (row 0), and a row for the
    # token after each token t (row 1 + t).
    p = np.stack([_ROOT, *_NEXT])  # [1 + 4, 4]
    possible_probs = np.stack([_kept(row_p, case.sampling) for row_p in p])  # within top-p, top-k
    probs = np.pad(possible_probs, ((0, 0), (0, 1)))  # [1 + 4, 4 + 1]; 0 for tokens from 4 on
    counts = np.zeros_like(probs)
    # The sampler divides logits by the temperature: softmax(logits / temperature) is p.
    logits = torch.full((1 + VOCAB, vocab), -1e4, dtype=torch.float64)  # -1e4: probability 0
    logits[:, :VOCAB] = torch.from_numpy(np.log(p) * case.sampling.temperature)
    for _ in range(num_draws):
        drafts = _draw_tree(case, generator)
        # q [nodes, 4] gets zeros for the other tokens; None if the tokens are fixed.
        q = None if drafts.q is None else pad(drafts.q, (0, vocab - VOCAB))  # [nodes, vocab]
        tree = DraftTree(torch.tensor(drafts.tokens), layout, case.num_verify, q)
        # row of `logits` for the token after each node [nodes]
        row_of_node = torch.tensor([0, *(1 + token for token in drafts.tokens[1:])])
        verdict = Verdict.read(rule(tree, logits[row_of_node], sampler))
        # Emitted tokens are the accepted draft tokens, and the target's own token.
        for previous_id, token_id in pairwise([-1, *verdict.token_ids]):  # -1: the root's row is 0
            counts[1 + previous_id, min(token_id, VOCAB)] += 1
            if token_id >= VOCAB:  # there is no row for the token after an impossible one
                break
    return Outcomes(case.name, counts, probs)


class _Drafts(NamedTuple):
    """The tokens of a tree's nodes."""

    tokens: list[int]
    q: torch.Tensor | None
    """The distributions that tokens were drawn from [nodes, 4]; None if tokens are fixed."""


def _draw_tree(case: RuleCase, generator: np.random.Generator) -> _Drafts:
    """Draw the tokens of a case's tree; or take fixed tokens, if the case says so (`is_drawn`).

    A node's token is drawn from the q that follows the parent's token, without the tokens of the
    siblings before. If nothing is left of q, the node takes the first token that none of them has.
    """
    num_nodes = len(case.parents)
    tokens = [0] * num_nodes  # token ids, by node; the root's (node 0) stays 0
    q = np.zeros((num_nodes, VOCAB))  # the distribution that each node's token is drawn from
    for node in range(1, num_nodes):
        parent = case.parents[node]
        elder_siblings = [elder for elder in range(1, node) if case.parents[elder] == parent]
        taken_tokens = [tokens[elder] for elder in elder_siblings]
        # q without earlier siblings' tokens [4], not normalized. None: `_q_after` of the root.
        left_q = _q_after(case, tokens[parent] if parent else None)
        left_q[taken_tokens] = 0
        if case.is_drawn and left_q.sum():
            q[node] = left_q / left_q.sum()
            # Draws as generator.choice(VOCAB, p=q[node]) does, in a fifth of the time.
            cdf = q[node].cumsum()
            uniform = generator.random()  # in [0, 1)
            tokens[node] = int((cdf / cdf[-1]).searchsorted(uniform, side="right"))
            continue
        free_tokens = [token for token in range(VOCAB) if token not in taken_tokens]
        # A fixed token may be any free one; this choice varies with the node.
        index = 0 if case.is_drawn else (node + parent) % len(free_tokens)
        tokens[node] = free_tokens[index]
        q[node, tokens[node]] = 1.0
    return _Drafts(tokens, torch.from_numpy(q) if case.is_drawn else None)


def _q_after(case: RuleCase, token: int | None) -> Array:
    """A copy of q [4] after a drafted token, or after the root if `token` is None.

    At the root, `support` may cut q, which is then not normalized.
    """
    if token is not None:
        return _Q_NEXT[token].copy()
    root_q = case.q_root.copy()
    root_q[case.support :] = 0
    return root_q


def _kept(p: Array, sampling: Sampling) -> Array:
    """The distribution `p` [tokens] cut to the tokens that top-p and top-k keep, and normalized."""
    sorted_ids = np.argsort(-p)  # the likeliest token first
    # Top-p keeps a token if the likelier tokens have less mass than top-p.
    mass_of_likelier = np.concatenate([[0.0], p[sorted_ids].cumsum()[:-1]])  # by `sorted_ids`
    is_kept = mass_of_likelier < sampling.top_p  # by `sorted_ids`
    is_kept[0] = True  # the likeliest token stays with any top-p
    if sampling.top_k:  # 0: all tokens
        is_kept[sampling.top_k :] = False
    kept_ids = sorted_ids[is_kept]
    kept_p = np.zeros_like(p)
    kept_p[kept_ids] = p[kept_ids]
    return kept_p / kept_p.sum()
