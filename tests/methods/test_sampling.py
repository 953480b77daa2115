"""Sampled drafts: their order, their distributions, and their acceptance at temperature 1."""

from itertools import permutations
from pathlib import Path

import pytest
import torch

from specbench.engine.accept import Verdict, typical
from specbench.engine.decode import decode
from specbench.types import Request, Sampling
from tests.methods.building import Recording
from tests.support.draft_trees import sampler, tree
from tests.support.models import random_target
from tests.support.weights import build


def test_draws_without_replacement_come_in_the_right_order_of_probability() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]])
    drawing = sampler(1.0)
    draws = [drawing.draw_distinct(probs, 2) for _ in range(20000)]
    drawn_pairs = torch.cat(draws)  # [draws, 2]
    for pair in permutations(range(3), 2):
        # P(i, then j) = p_i * p_j / (1 - p_i)
        p_first, p_second = probs[0, list(pair)].tolist()
        expected = p_first * p_second / (1 - p_first)
        is_pair = (drawn_pairs == torch.tensor(pair)).all(1)
        share = is_pair.double().mean()
        assert share == pytest.approx(expected, abs=0.015)


def test_a_sampled_tree_has_the_distribution_of_each_node(tmp_path: Path) -> None:
    """Rows of q sum to one. They include the node's own token and exclude its earlier siblings."""
    target = random_target(layers=4)
    drafter = Recording(build("eagle", target, tmp_path))
    for sampling in (Sampling(1.0), Sampling(1.0, top_p=0.3)):
        decode(target, drafter, Request((5, 6, 7), 20, sampling, seed=1))
    for _, drafted in drafter.trees:
        assert drafted.q is not None
        sums = drafted.q[1:].sum(-1)  # the root is not drawn
        torch.testing.assert_close(sums, torch.ones(25).to(sums))
        parents = drafted.layout.parents.tolist()
        tokens = drafted.tokens.tolist()
        for node in range(1, drafted.num_nodes):
            elder_siblings = [other for other in range(1, node) if parents[other] == parents[node]]
            elder_tokens = [tokens[sibling] for sibling in elder_siblings]
            q = drafted.q[node]
            assert q[tokens[node]] > 0
            assert all(q[token] == 0 for token in elder_tokens)
            assert tokens[node] not in elder_tokens


def test_typical_acceptance_takes_the_most_likely_of_the_likely_tokens() -> None:
    draft = tree(tokens=[9, 1, 2, 3, 3], parents=[0, 0, 0, 1, 2])
    likely_after_node = [
        {1: 0.4, 2: 0.6},
        {3: 0.7, 4: 0.3},
        {3: 0.5, 4: 0.5},
        {5: 1.0},
        {6: 1.0},
    ]
    p = torch.full((5, 10), 1e-9)  # [nodes, vocab]
    for node, likely in enumerate(likely_after_node):
        for token, probability in likely.items():
            p[node, token] = probability
    drawing = sampler(1.0)
    lenient = Verdict.read(typical(draft, p.log(), drawing, threshold=0.09, alpha=0.3))
    assert lenient.path == (0, 2, 4)
    assert lenient.token_ids == (2, 3, 6)
    strict = Verdict.read(typical(draft, p.log(), drawing, threshold=0.55, alpha=10.0))
    assert strict.path == (0, 2)
    assert strict.token_ids[0] == 2
