"""Sampled drafts: their order, their distributions and their acceptance at temperature 1."""

from itertools import permutations
from pathlib import Path

import pytest
import torch

from specbench.engine.accept import Verdict, typical
from specbench.engine.decode import decode
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Request, Sampling
from tests.methods.building import Recording
from tests.support.models import random_target
from tests.support.weights import build


def test_draws_without_replacement_come_in_the_right_order_of_probability() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]])
    sampler = Sampler(Sampling(1.0), torch.device("cpu"), 0)
    drawn = torch.cat([sampler.draw_distinct(probs, 2) for _ in range(20000)])
    for pair in permutations(range(3), 2):
        # P(i, then j) = p_i * p_j / (1 - p_i)
        p_first, p_second = probs[0, list(pair)].tolist()
        expected = p_first * p_second / (1 - p_first)
        share = (drawn == torch.tensor(pair)).all(1).double().mean()
        assert share == pytest.approx(expected, abs=0.015)


def test_a_sampled_tree_has_the_distribution_of_each_node(tmp_path: Path) -> None:
    """Rows of q sum to one, hold the node's own token, and none of its earlier siblings."""
    target = random_target(layers=4)
    drafter = Recording(build("eagle", target, tmp_path))
    for sampling in (Sampling(1.0), Sampling(1.0, top_p=0.3)):
        decode(target, drafter, Request((5, 6, 7), 20, sampling, seed=1))
    for _, tree in drafter.trees:
        assert tree.q is not None
        parents, tokens = tree.layout.parents.tolist(), tree.tokens.tolist()
        torch.testing.assert_close(tree.q[1:].sum(-1), torch.ones(25).to(tree.q))
        for node in range(1, tree.num_nodes):
            elder_siblings = [i for i in range(1, node) if parents[i] == parents[node]]
            elder_tokens = [tokens[sibling] for sibling in elder_siblings]
            assert tree.q[node, tokens[node]] > 0
            assert all(tree.q[node, token] == 0 for token in elder_tokens)
            assert tokens[node] not in elder_tokens


def test_typical_acceptance_takes_the_most_likely_of_the_likely_tokens() -> None:
    layout = TreeLayout.from_parents([0, 0, 0, 1, 2], "cpu")
    tree = DraftTree(torch.tensor([9, 1, 2, 3, 3]), layout, num_verify=5)
    p = torch.full((5, 10), 1e-9)
    # after each node, the tokens with a probability
    p[0, [1, 2]] = torch.tensor([0.4, 0.6])
    p[1, [3, 4]] = torch.tensor([0.7, 0.3])
    p[2, [3, 4]] = torch.tensor([0.5, 0.5])
    p[3, 5] = 1.0
    p[4, 6] = 1.0
    sampler = Sampler(Sampling(1.0), torch.device("cpu"), 0)
    lenient = Verdict.read(typical(tree, p.log(), sampler, threshold=0.09, alpha=0.3))
    assert lenient.path == (0, 2, 4)
    assert lenient.token_ids == (2, 3, 6)
    strict = Verdict.read(typical(tree, p.log(), sampler, threshold=0.55, alpha=10.0))
    assert strict.path == (0, 2)
    assert strict.token_ids[0] == 2
