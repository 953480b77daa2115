"""The nodes and edges of static and dynamic trees."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.tree import TreeLayout
from specbench.errors import UserError
from specbench.methods._dynamic_tree import CandidatePool
from tests.support.devices import CPU
from tests.support.models import static_tree


@pytest.mark.parametrize(
    ("name", "nodes", "depth"),
    [
        ("mc_sim_7b_63", 64, 4),
        ("eagle_25", 26, 5),
        ("recycling_80", 81, 6),
        ("4x2x1", 1 + 4 + 8 + 8, 3),
        ("1x1x1", 4, 3),
    ],
)
def test_named_trees_have_their_nodes(name: str, nodes: int, depth: int) -> None:
    tree = static_tree(name)
    assert (tree.layout.num_nodes, len(tree.levels)) == (nodes, depth)
    assert int(tree.layout.depths.max()) == depth
    depths = tree.layout.depths.tolist()
    assert depths == sorted(depths)


def test_a_tree_is_read_from_a_file_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text("[[2, 0], [0], [2], [0, 3], [2, 0, 1]]")
    tree = static_tree(str(path))
    assert tree.layout.parents.tolist() == [0, 0, 0, 1, 2, 4]
    assert tree.ranks.tolist() == [0, 0, 2, 3, 0, 1]
    assert tree.num_candidates == 4
    assert [level.source.tolist() for level in tree.levels] == [[0, 2], [3, 4], [1]]
    assert tree.levels[0].sees.tolist() == [[True, False], [False, True]]
    assert tree.levels[1].sees.tolist() == [[False, True, True]]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[[0, 0]]", "[0, 1]", '[["a"]]', "[[-1]]", "[" * 100_000]
)
def test_a_file_that_is_not_a_tree_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"tree\.json is not a tree"):
        static_tree(str(path))
    with pytest.raises(UserError, match=r"absent\.json is not a tree"):
        static_tree(str(tmp_path / "absent.json"))


def test_an_unknown_tree_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="Did you mean 'eagle_25'"):
        static_tree("eagle_26")


def test_nodes_that_cannot_be_filled_are_left_out() -> None:
    tree = static_tree("mc_sim_7b_63", vocab_size=3, max_depth=2)
    assert tree.layout.parents.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert tree.num_candidates == 3


def test_a_tree_keeps_the_nodes_of_the_lowest_ranks_with_their_parents() -> None:
    tree = static_tree("mc_sim_7b_63", nodes=6)
    assert tree.layout.parents.tolist() == [0, 0, 0, 1, 1, 3]
    assert tree.ranks.tolist() == [0, 0, 1, 0, 1, 0]
    assert static_tree("eagle_25", nodes=60).layout.num_nodes == 26


class Grown(NamedTuple):
    """A tree of random draft tokens, and all candidates in its pool, beginning with the root."""

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    candidate_scores: Tensor
    candidate_tokens: Tensor
    candidate_parents: Tensor


def grow(seed: int, top_k: int, depth: int, num_nodes: int, scale: float) -> Grown:
    """A tree of the best of random candidates, whose scores are computed one by one."""
    rng = torch.Generator().manual_seed(seed)
    pool = CandidatePool(top_k, depth, num_nodes, torch.float32, CPU)
    pool.start(torch.tensor([7]))
    parents, tokens, scores, beam_nodes = [0], [7], [0.0], [0]
    for level in range(depth + 1):
        logits = scale * torch.randn(1 if level == 0 else top_k, 40, generator=rng)
        best = logits.log_softmax(-1).topk(top_k)  # [beam, top_k]
        num_above = len(tokens)
        for node, log_probs, ids in zip(beam_nodes, best.values, best.indices, strict=True):
            parents += [node] * top_k
            tokens += ids.tolist()
            scores += (log_probs.double() + scores[node]).tolist()
        pool.add(best.values, best.indices)
        if level < depth:
            beam = pool.beam()
            of_level = torch.tensor(scores[num_above:])
            beam_nodes = (of_level.topk(top_k).indices + num_above).tolist()
            assert beam.tokens.tolist() == [tokens[node] for node in beam_nodes]

    tree_tokens, tree_parents, depths, tree_scores = pool.tree()
    candidate_scores = torch.tensor(scores)
    best_scores = candidate_scores[1:].topk(len(tree_tokens) - 1).values.double()
    torch.testing.assert_close(
        tree_scores[1:].sort().values, best_scores.sort().values, atol=1e-6, rtol=1e-5
    )
    return Grown(
        tree_tokens,
        tree_parents,
        depths,
        candidate_scores,
        candidate_tokens=torch.tensor(tokens),
        candidate_parents=torch.tensor(parents),
    )


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.integers(2, 60))
def test_a_dynamic_tree_keeps_the_best_candidates_and_their_ancestors(
    seed: int, top_k: int, depth: int, num_nodes: int
) -> None:
    tree = grow(seed, top_k, depth, num_nodes, scale=1.0)
    count = min(num_nodes, len(tree.candidate_scores))
    best = tree.candidate_scores[1:].topk(count - 1).indices + 1
    kept = [0, *best.sort().values.tolist()]
    assert tree.tokens.tolist() == tree.candidate_tokens[kept].tolist()
    node_of = {candidate: node for node, candidate in enumerate(kept)}
    parents = [node_of[int(parent)] for parent in tree.candidate_parents[kept]]
    assert tree.parents.tolist() == parents
    assert tree.depths.tolist() == TreeLayout.from_parents(parents, CPU).depths.tolist()


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 60))
def test_a_draft_that_is_certain_still_keeps_every_parent(
    seed: int, top_k: int, num_nodes: int
) -> None:
    """Probabilities of one make a child's score equal its parent's."""
    tree = grow(seed, top_k, 4, num_nodes, scale=1e4)
    expected = TreeLayout.from_parents(tree.parents.tolist(), CPU)
    assert tree.depths.tolist() == expected.depths.tolist()
    assert tree.tokens[0] == 7
