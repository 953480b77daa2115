"""Trees, and the acceptance of their nodes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.accept import AcceptedPath, Verdict, lossless
from specbench.engine.tree import TreeLayout
from tests.support.devices import CPU
from tests.support.draft_trees import sampler, tree


@st.composite
def parent_lists(draw: st.DrawFn, max_nodes: int = 24) -> list[int]:
    """The parents of the nodes of a random tree. The root's is itself."""
    num_nodes = draw(st.integers(1, max_nodes))
    return [0, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))]


def children_of(parents: list[int], node: int) -> list[int]:
    """The children of a node, in order. The root is its own parent, but not its own child."""
    return [child for child in range(1, len(parents)) if parents[child] == node]


@given(parent_lists())
def test_a_layout_has_depth_and_ancestors_of_every_node(parents: list[int]) -> None:
    layout = TreeLayout.from_parents(parents, "cpu")
    ancestors: list[set[int]] = []  # of each node, which is its own ancestor
    for node, parent in enumerate(parents):
        of_parent = ancestors[parent] if node else set()
        of_node = {node, *of_parent}
        ancestors.append(of_node)
        marked = layout.ancestors[node].nonzero()[:, 0]
        assert set(marked.tolist()) == of_node
        assert layout.depths[node] == len(of_node) - 1


@given(parent_lists())
def test_a_layout_has_the_children_of_every_node_in_order(parents: list[int]) -> None:
    layout = TreeLayout.from_parents(parents, "cpu")
    for node in range(len(parents)):
        # siblings [most children, nodes]: the first, second, ... child of each node, or 0
        children = [child for child in layout.siblings[:, node].tolist() if child]
        assert children == children_of(parents, node)


@pytest.mark.parametrize(
    "parents",
    [
        pytest.param([], id="no node"),
        pytest.param([1], id="a root with another parent"),
        pytest.param([0, 1], id="its own parent"),
        pytest.param([0, -1], id="no parent"),
        pytest.param([0, 2, 0], id="a later parent"),
    ],
)
def test_a_parent_that_does_not_precede_its_child_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"root|precede"):
        TreeLayout.from_parents(parents, "cpu")


def logits_for(best: list[int], vocab: int = 10) -> Tensor:
    """Logits [nodes, vocab] with these best tokens."""
    best_ids = torch.tensor(best)
    return torch.nn.functional.one_hot(best_ids, vocab).float()


def judged(
    tokens: list[int],
    parents: list[int],
    best: list[int],
    num_verify: int | None = None,
) -> Verdict:
    """The lossless rule's verdict on a tree, with the target's best token after each node."""
    draft = tree(tokens, parents, num_verify)
    return Verdict.read(lossless(draft, logits_for(best), sampler()))


def test_greedy_takes_the_deepest_path_that_the_target_agrees_with() -> None:
    #      root 1 -> 2 -> 3 (agreed), root -> 4
    verdict = judged(
        tokens=[1, 4, 2, 3],
        parents=[0, 0, 0, 2],
        best=[2, 9, 3, 7],
    )
    assert verdict == Verdict(
        path=(0, 2, 3),
        token_ids=(2, 3, 7),
        next_ids=(2, 9, 3, 7),
    )
    assert verdict.num_accepted == 2


def test_a_right_node_below_a_wrong_one_is_not_accepted() -> None:
    verdict = judged(
        tokens=[1, 4, 3],
        parents=[0, 0, 1],
        best=[2, 3, 7],
    )
    assert verdict.token_ids == (2,)


def test_a_scratch_node_is_never_accepted_but_its_result_is_shown() -> None:
    verdict = judged(
        tokens=[1, 2, 3],
        parents=[0, 0, 1],
        best=[2, 3, 7],
        num_verify=1,
    )
    assert verdict.path == (0,)
    assert verdict.next_ids == (2, 3, 7)


def test_among_equally_deep_paths_the_first_one_wins() -> None:
    verdict = judged(
        tokens=[1, 2, 2],
        parents=[0, 0, 0],
        best=[2, 5, 6],
    )
    assert verdict.path == (0, 1)


@given(parent_lists(max_nodes=41), st.integers(0, 10**6))
def test_the_path_on_the_device_equals_the_verdicts(parents: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, len(parents))
    random_ids = torch.randint(0, 3, shape, generator=generator)
    tokens, best = random_ids.tolist()  # of each node
    draft = tree(tokens, parents)
    chosen = lossless(draft, logits_for(best), sampler())
    verdict = Verdict.read(chosen)
    padded_length = draft.layout.padded_path_length
    padded = AcceptedPath.from_choice(chosen, padded_length)
    plain = AcceptedPath.from_verdict(verdict, CPU)
    length = len(verdict.path)
    assert int(padded.last) == int(plain.last) == length - 1
    assert len(padded.path) == len(padded.token_ids) == padded_length
    assert torch.equal(padded.path[:length], plain.path)
    assert torch.equal(padded.token_ids[:length], plain.token_ids)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    p_of_node = torch.tensor([0.25, 0.25, 0.5])  # [vocab]
    p = p_of_node.repeat(3, 1)  # [nodes, vocab]
    chain = tree(tokens=[0, 2, 1], parents=[0, 0, 1])
    draft = replace(chain, q=p)
    logits = p.log()
    drawing = sampler(1.0, seed=4)
    for _ in range(200):
        assert Verdict.read(lossless(draft, logits, drawing)).num_accepted == 2


def test_top_k_keeps_the_k_best_tokens() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    is_kept = sampler(0.5, top_k=2).probs(logits) > 0
    assert is_kept.tolist() == [[True, True, False, False]]


def test_top_p_keeps_the_fewest_tokens_that_have_the_probability_p() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])  # softmax: 0.64, 0.24, 0.09, 0.03
    is_kept = sampler(1.0, top_p=0.6).probs(logits) > 0
    assert is_kept.tolist() == [[True, False, False, False]]


def test_a_token_of_no_probability_is_never_drawn() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    drawn = sampler(1.0).draw(probs.repeat(2000, 1))
    assert set(drawn.tolist()) == {1, 3}


def test_half_precision_logits_give_a_distribution_that_sums_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 32000, generator=generator)
    probs = sampler(1.0).probs(logits.bfloat16())
    assert probs.sum().item() == pytest.approx(1, abs=1e-5)
