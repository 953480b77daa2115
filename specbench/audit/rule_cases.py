"""Acceptance rules on small trees with known p and q: the outcomes that they give.

The output cannot show a rule that is a little lenient; here every probability is known.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import pad

from specbench.audit.evidence import Array
from specbench.engine.accept import Rule, Verdict
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Sampling

VOCAB = 4
WIDE = 128
"""Vocabulary for rules that look at more tokens; tokens from 4 on have probability 0."""
_ROOT = np.array([0.42, 0.28, 0.2, 0.1])
_NEXT = np.array(
    [[0.1, 0.5, 0.15, 0.25], [0.3, 0.1, 0.35, 0.25], [0.27, 0.23, 0.4, 0.1], [0.6, 0.2, 0.12, 0.08]]
)  # fmt: skip
"""p after the root, and p [4, 4] after each token that may follow it."""
_Q_ROOT = np.array([0.15, 0.35, 0.1, 0.4])
_Q_CLOSE = np.array([0.48, 0.33, 0.15, 0.04])
"""Likely tokens have a little too much mass, so that too few rejections show."""
_Q_NEXT = _NEXT[[2, 3, 1, 0]]


@dataclass(frozen=True, slots=True)
class RuleCase:
    """A tree whose tokens are drawn anew for each outcome, under some sampling settings.

    `parents` [nodes] is the tree, of depth 2 at most, with `num_verify` nodes that may be
    accepted. If `is_drawn`, siblings are drawn from q without replacement; `support` limits q
    at the root to its first tokens, `is_close` makes it like p. Otherwise the tokens are
    fixed.
    """

    name: str
    parents: tuple[int, ...]
    num_verify: int
    is_drawn: bool
    sampling: Sampling = field(default_factory=lambda: Sampling(1.0))
    support: int = VOCAB
    is_close: bool = False


CASES = (
    RuleCase("fixed guesses", (0, 0, 0, 1, 1, 0), 5, is_drawn=False, sampling=Sampling(0.7)),
    RuleCase("drawn chain", (0, 0, 1), 3, is_drawn=True, sampling=Sampling(1.5), is_close=True),
    RuleCase("drawn siblings", (0, 0, 0, 0, 1, 1, 2), 7, is_drawn=True),
    RuleCase("drawn siblings, top-p", (0, 0, 0, 0, 1, 1, 2), 7, is_drawn=True,
             sampling=Sampling(1.0, top_p=0.85)),
    RuleCase("more siblings than q has tokens", (0, 0, 0, 0, 1), 5, is_drawn=True, support=2),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Counts of outcomes and their probabilities by p.

    `counts` [1 + 4, 4]: the first token of each draw, then the tokens after each token that
    was accepted. `probs` has the same shape.
    """

    name: str
    counts: Array
    probs: Array


@torch.inference_mode()
def rule_outcomes(rule: Rule, num_draws: int) -> list[Outcomes]:
    """The outcomes of a rule over all cases, `num_draws` in total.

    The list is empty for a rule that fails on such a small vocabulary, and on one with
    impossible tokens.
    """
    num = -(-num_draws // len(CASES))
    for vocab in (VOCAB, WIDE):
        with suppress(Exception):  # any plug-in: its own completions show what it does
            return [_outcomes(rule, case, num, vocab=vocab) for case in CASES]
    return []


def _outcomes(rule: Rule, case: RuleCase, num_draws: int, *, vocab: int) -> Outcomes:
    draw = np.random.default_rng([0, CASES.index(case)])
    sampler = Sampler(case.sampling, torch.device("cpu"), seed=0)
    layout = TreeLayout.from_parents(case.parents, "cpu")
    probs = np.stack([_kept(row, case.sampling.top_p) for row in (_ROOT, *_NEXT)])
    logits = torch.full((1 + VOCAB, vocab), -1e4, dtype=torch.float64)
    logits[:, :VOCAB] = torch.from_numpy(np.log([_ROOT, *_NEXT]) * case.sampling.temperature)
    counts = np.zeros_like(probs)
    for _ in range(num_draws):
        tokens, q = _guesses(case, draw)
        if q is not None:
            q = pad(q, (0, vocab - VOCAB))
        at = torch.tensor([0, *(1 + token for token in tokens[1:])])
        tree = DraftTree(torch.tensor(tokens), layout, case.num_verify, q)
        emitted = Verdict.read(rule(tree, logits[at], sampler)).token_ids
        counts[0, emitted[0]] += 1
        for before, token in pairwise(emitted):
            counts[1 + before, token] += 1
    return Outcomes(case.name, counts, probs)


def _guesses(case: RuleCase, draw: np.random.Generator) -> tuple[list[int], torch.Tensor | None]:
    """Tokens of the nodes, and q [nodes, 4] if they are drawn."""
    n = len(case.parents)
    tokens, q = [0] * n, np.zeros((n, VOCAB))
    for node in range(1, n):
        parent = case.parents[node]
        elder = [tokens[i] for i in range(1, node) if case.parents[i] == parent]
        root = _Q_CLOSE if case.is_close else _Q_ROOT
        left = (_Q_NEXT[tokens[parent]] if parent else root).copy()
        left[case.support if not parent else VOCAB :] = 0
        left[elder] = 0
        if not case.is_drawn or not left.sum():
            free = [token for token in range(VOCAB) if token not in elder]
            tokens[node] = free[0] if case.is_drawn else free[(node + parent) % len(free)]
            q[node, tokens[node]] = 1.0
            continue
        q[node] = left / left.sum()
        tokens[node] = int(draw.choice(VOCAB, p=q[node]))
    return tokens, torch.from_numpy(q) if case.is_drawn else None


def _kept(p: Array, top_p: float) -> Array:
    """The distribution with only the most likely tokens that reach `top_p` together."""
    order = np.argsort(-p)
    is_kept = np.concatenate([[True], p[order].cumsum()[:-1] < top_p])
    kept = np.zeros_like(p)
    kept[order[is_kept]] = p[order[is_kept]]
    return kept / kept.sum()
