"""Sampled drafts: their order, their distributions and their acceptance at temperature 1."""

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
    for (first, second), expected in {
        (0, 1): 0.5 * 0.3 / 0.5, (0, 2): 0.5 * 0.2 / 0.5, (1, 0): 0.3 * 0.5 / 0.7,
        (1, 2): 0.3 * 0.2 / 0.7, (2, 0): 0.2 * 0.5 / 0.8, (2, 1): 0.2 * 0.3 / 0.8,
    }.items():  # fmt: skip
        share = ((drawn[:, 0] == first) & (drawn[:, 1] == second)).double().mean()
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
            earlier = [i for i in range(1, node) if parents[i] == parents[node]]
            assert tree.q[node, tokens[node]] > 0
            assert all(tree.q[node, tokens[i]] == 0 for i in earlier)
            assert tokens[node] not in [tokens[i] for i in earlier]


def test_typical_acceptance_takes_the_most_likely_of_the_likely_tokens() -> None:
    layout = TreeLayout.from_parents([0, 0, 0, 1, 2], "cpu")
    tree = DraftTree(torch.tensor([9, 1, 2, 3, 3]), layout, num_verify=5)
    p = torch.full((5, 10), 1e-9)
    p[0, 1], p[0, 2] = 0.4, 0.6
    p[1, 3], p[1, 4] = 0.7, 0.3
    p[2, 3], p[2, 4] = 0.5, 0.5
    p[3, 5] = p[4, 6] = 1.0
    sampler = Sampler(Sampling(1.0), torch.device("cpu"), 0)
    verdict = Verdict.read(typical(tree, p.log(), sampler, threshold=0.09, alpha=0.3))
    assert (verdict.path, verdict.token_ids) == ((0, 2, 4), (2, 3, 6))
    strict = Verdict.read(typical(tree, p.log(), sampler, threshold=0.55, alpha=10.0))
    assert (strict.path, strict.token_ids[0]) == ((0, 2), 2)
