from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.engine.tree import DraftTree, TreeLayout, chain_layout


@st.composite
def parent_lists(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(1, 24))
    return [0, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


def ancestors_of(parents: list[int], node: int) -> set[int]:
    above = {node}
    while node:
        node = parents[node]
        above.add(node)
    return above


@given(parent_lists())
def test_a_layout_knows_depth_and_ancestors_of_every_node(parents: list[int]) -> None:
    layout = TreeLayout.from_parents(parents, "cpu")
    for node in range(len(parents)):
        above = ancestors_of(parents, node)
        assert set(layout.ancestors[node].nonzero()[:, 0].tolist()) == above
        assert layout.depths[node] == len(above) - 1


@given(parent_lists())
def test_sibling_rows_list_each_child_once_in_order(parents: list[int]) -> None:
    layout = TreeLayout.from_parents(parents, "cpu")
    for node in range(len(parents)):
        children = [i for i in range(1, len(parents)) if parents[i] == node]
        listed = [int(row[node]) for row in layout.siblings if row[node]]
        assert listed == children


@pytest.mark.parametrize("parents", [[], [1], [0, 1], [0, -1], [0, 2, 0]])
def test_a_parent_that_does_not_precede_its_child_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"root|precede"):
        TreeLayout.from_parents(parents, "cpu")


def test_a_chain_is_a_tree() -> None:
    tree = DraftTree.chain(torch.tensor([5, 6, 7]))
    assert tree.layout.depths.tolist() == [0, 1, 2]
    assert tree.num_verify == tree.num_nodes == 3
    assert tree.layout is chain_layout(3, torch.device("cpu"))
