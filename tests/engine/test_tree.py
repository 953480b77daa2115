"""Trees, the acceptance of their nodes, and checks: each violation of the contract is named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.accept import AcceptedPath, Verdict, lossless
from specbench.engine.decode import decode
from specbench.engine.draft_check import check_draft
from specbench.engine.drafter import Drafter, State
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import ContractFault
from specbench.types import Request, Sampling
from tests.support.models import VOCAB, engine_backend, random_target
from tests.support.weights import build


@st.composite
def parent_lists(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(1, 24))
    return [0, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


@given(parent_lists())
def test_a_layout_knows_depth_ancestors_and_children_of_every_node(parents: list[int]) -> None:
    layout = TreeLayout.from_parents(parents, "cpu")
    ancestors: list[set[int]] = []  # of each node, which is its own ancestor
    for node, parent in enumerate(parents):
        of_parent = ancestors[parent] if node else set()
        ancestors.append({node, *of_parent})
        marked = layout.ancestors[node].nonzero()[:, 0]
        assert set(marked.tolist()) == ancestors[node]
        assert layout.depths[node] == len(ancestors[node]) - 1
        children = [child for child in range(1, len(parents)) if parents[child] == node]
        # siblings [most children, nodes]: the first, second, ... child of each node, or 0
        assert [int(row[node]) for row in layout.siblings if row[node]] == children


@pytest.mark.parametrize("parents", [[], [1], [0, 1], [0, -1], [0, 2, 0]])
def test_a_parent_that_does_not_precede_its_child_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"root|precede"):
        TreeLayout.from_parents(parents, "cpu")


CPU = torch.device("cpu")


def sampler(temperature: float = 0.0, seed: int = 0, top_p: float = 1.0, top_k: int = 0) -> Sampler:
    return Sampler(Sampling(temperature, top_p, top_k), CPU, seed)


def tree(tokens: list[int], parents: list[int], num_verify: int | None = None) -> DraftTree:
    layout = TreeLayout.from_parents(parents, CPU)
    return DraftTree(torch.tensor(tokens), layout, num_verify or len(tokens))


def logits_for(best: list[int], vocab: int = 10) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(best), vocab).float()


def judged(draft: DraftTree, best: list[int]) -> Verdict:
    """The lossless rule's verdict, if `best` are the target's best tokens after the nodes."""
    return Verdict.read(lossless(draft, logits_for(best), sampler()))


def test_greedy_takes_the_deepest_path_that_the_target_agrees_with() -> None:
    #      root 1 -> 2 -> 3 (agreed), root -> 4
    draft = tree(tokens=[1, 4, 2, 3], parents=[0, 0, 0, 2])
    verdict = judged(draft, best=[2, 9, 3, 7])
    assert verdict == Verdict(path=(0, 2, 3), token_ids=(2, 3, 7), next_ids=(2, 9, 3, 7))
    assert verdict.num_accepted == 2


def test_a_right_node_below_a_wrong_one_is_not_accepted() -> None:
    draft = tree(tokens=[1, 4, 3], parents=[0, 0, 1])
    assert judged(draft, best=[2, 3, 7]).token_ids == (2,)


def test_a_scratch_node_is_never_accepted_but_its_result_is_shown() -> None:
    draft = tree(tokens=[1, 2, 3], parents=[0, 0, 1], num_verify=1)
    verdict = judged(draft, best=[2, 3, 7])
    assert verdict.path == (0,)
    assert verdict.next_ids == (2, 3, 7)


def test_among_equally_deep_paths_the_first_one_wins() -> None:
    draft = tree(tokens=[1, 2, 2], parents=[0, 0, 0])
    assert judged(draft, best=[2, 5, 6]).path == (0, 1)


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(0, 10**6))
def test_the_path_on_the_device_equals_the_verdicts(draws: list[int], seed: int) -> None:
    parents = [0, *(draw % node for node, draw in enumerate(draws, start=1))]
    generator = torch.Generator().manual_seed(seed)
    tokens, best = torch.randint(0, 3, (2, len(parents)), generator=generator).tolist()
    draft = tree(tokens, parents)
    chosen = lossless(draft, logits_for(best), sampler())
    verdict = Verdict.read(chosen)
    padded = AcceptedPath.from_choice(chosen, draft.layout.padded_path_length)
    plain = AcceptedPath.from_verdict(verdict, CPU)
    length = len(verdict.path)
    assert int(padded.last) + 1 == int(plain.last) + 1 == length
    assert len(padded.path) == len(padded.token_ids) == draft.layout.padded_path_length
    assert torch.equal(padded.path[:length], plain.path)
    assert torch.equal(padded.token_ids[:length], plain.token_ids)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    p = torch.tensor([0.25, 0.25, 0.5]).repeat(3, 1)  # [nodes, vocab]
    draft = replace(tree([0, 2, 1], [0, 0, 1]), q=p)
    drawing = sampler(1.0, seed=4)
    verdicts = [Verdict.read(lossless(draft, p.log(), drawing)) for _ in range(200)]
    assert {verdict.num_accepted for verdict in verdicts} == {2}


def test_top_p_and_top_k_remove_what_transformers_removes() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    by_top_k = sampler(0.5, top_k=2).probs(logits)[0]
    assert (by_top_k > 0).tolist() == [True, True, False, False]
    by_top_p = sampler(1.0, top_p=0.6).probs(logits)[0]
    assert (by_top_p > 0).tolist() == [True, False, False, False]


def test_a_token_of_no_probability_is_never_drawn() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).repeat(2000, 1)
    assert set(sampler(1.0).draw(probs).tolist()) == {1, 3}


def test_half_precision_logits_give_a_distribution_that_sums_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 32000, generator=generator).bfloat16()
    probs = sampler(1.0).probs(logits)
    assert probs.sum().item() == pytest.approx(1, abs=1e-5)


SOUND = tree([4, 7, 8, 7], [0, 0, 0, 1])
_COUSINS = SOUND.layout.ancestors.clone()
_COUSINS[3, 2] = True


def laid(**changes: Any) -> DraftTree:
    """The sound tree with a changed layout."""
    return replace(SOUND, layout=replace(SOUND.layout, **changes))


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (None, "is a NoneType, not a DraftTree"),
        (tree([5, 7], [0, 0]), "has root 5, but the pending token is 4"),
        (tree([4, VOCAB], [0, 0]), f"holds token {VOCAB}; the vocabulary has {VOCAB} tokens"),
        (tree([4, -1], [0, 0]), "holds token -1"),
        (tree([4, 7, 7], [0, 0, 0]), "holds token 7 2 times below node 0"),
        (replace(SOUND, tokens=SOUND.tokens[:3]), "has 3 tokens, but parents of shape"),
        (replace(SOUND, tokens=SOUND.tokens.float()), "tokens of type torch.float32"),
        (replace(SOUND, num_verify=5), "verifies 5 of 4 nodes"),
        (replace(SOUND, q=torch.ones(4, 3)), "has q of shape"),
        (laid(parents=torch.tensor([0, 2, 0, 1])), "is not a tree: node 1 has parent 2"),
        (laid(depths=torch.tensor([0, 1, 1, 1])), "has depths that do not follow"),
        (laid(ancestors=_COUSINS), "nodes other than its"),
        (laid(max_depth=1), "is 2 deep, but declares"),
    ],
)
def test_a_violation_is_named(draft: DraftTree, reason: str) -> None:
    state = State(Request((1, 5, 4), 8), sampler(), 8)
    with pytest.raises(ContractFault, match=reason):
        check_draft(draft, state, VOCAB)


class Meddler(Drafter):
    """A drafter that tries to change its state."""

    def __init__(self, attack: str) -> None:
        self.attack = attack

    def start(self, state: State, prefill: Forward) -> None:
        exec(self.attack, {"state": state})

    def propose(self, state: State) -> DraftTree:
        return state.chain()


@pytest.mark.parametrize(
    "attack",
    [
        "state.token_ids[0] = 3", "state.token_ids.append(3)", "del state.token_ids[0]",
        "state.token_ids = []", "state.limit = 99", "state.request = None",
        "state.request.prompt_ids = ()",
    ],
)  # fmt: skip
def test_a_drafter_cannot_change_the_state(attack: str) -> None:
    with pytest.raises((AttributeError, TypeError)):
        decode(random_target(), Meddler(attack), Request((1, 5), 8))


def test_a_slice_of_the_tokens_is_the_drafters_own(tmp_path: Path) -> None:
    target = random_target()
    expected = decode(target, build("vanilla", target, tmp_path), Request((1, 5), 8))
    answer = decode(target, Meddler("state.token_ids[:].clear()"), Request((1, 5), 8))
    assert answer.token_ids == expected.token_ids


class Fixed(Drafter):
    """Drafts the same tokens below every pending token."""

    def __init__(self, tokens: list[int], parents: list[int], num_verify: int) -> None:
        self.tokens, self.parents, self.num_verify = tokens, parents, num_verify

    def propose(self, state: State) -> DraftTree:
        drafted = tree([state.pending, *self.tokens], self.parents)
        return replace(drafted, num_verify=self.num_verify)


@pytest.mark.parametrize(
    ("tokens", "parents", "num_verify"),
    [([7, 8, 7], [0, 0, 0, 1], 4), ([7, 8, 8], [0, 0, 1, 1], 3)],
    ids=["cousins with one token", "a scratch node that repeats a sibling"],
)
def test_a_sound_tree_passes(
    tokens: list[int], parents: list[int], num_verify: int, tmp_path: Path
) -> None:
    target, request = random_target(), Request((1, 5), 8)
    expected = decode(target, build("vanilla", target, tmp_path), request)
    answer = decode(target, Fixed(tokens, parents, num_verify), request, is_checked=True)
    assert answer.token_ids == expected.token_ids
    assert set(answer.num_nodes) == {4}


WRONG = Fixed(tokens=[VOCAB - 1, VOCAB - 1], parents=[0, 0, 0], num_verify=3)
"""Drafts siblings that carry the same token."""


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_completion_with_a_wrong_draft_fails(is_checked: bool) -> None:
    with pytest.raises(ContractFault, match="2 times below node 0"):
        decode(random_target(), WRONG, Request((1, 5), 8), is_checked=is_checked)


class Ruled(Drafter):
    """Drafts a tree of four nodes, the last one a scratch node, with a rule of its own."""

    def __init__(self, path: list[int], tokens: list[int], bonus: int) -> None:
        self.chosen = torch.zeros(3, 4, dtype=torch.long)
        self.chosen[0, path] = 1
        self.chosen[1] = torch.tensor(tokens)
        self.chosen[2] = bonus

    def rule(self, tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
        if tree.num_nodes == 1:
            return lossless(tree, logits, sampler)
        return self.chosen.clone()

    def propose(self, state: State) -> DraftTree:
        drafted = tree([state.pending, 7, 8, 9], [0, 0, 1, 2])
        return replace(drafted, num_verify=3)


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(
    ("path", "tokens", "bonus", "reason"),
    [
        ([0, 2], [0, 7, 8, 9], 3, r"accepted the nodes \[0, 2\], which are not a path"),
        ([1, 2], [0, 7, 8, 9], 3, r"accepted the nodes \[1, 2\], which are not a path"),
        ([0, 1, 2, 3], [0, 7, 8, 9], 3, "accepted node 3, but only 3 nodes may be accepted"),
        ([0, 1], [0, 8, 8, 9], 3, r"emitted the tokens \[8\], but the nodes"),
        ([0, 1], [0, 7, 8, 9], -1, f"emitted token -1, but the vocabulary has {VOCAB}"),
        ([0, 1], [0, 7, 8, 9], VOCAB, f"emitted token {VOCAB}, but the vocabulary has {VOCAB}"),
    ],
)
def test_a_rule_that_accepts_what_is_no_path_fails(
    path: list[int], tokens: list[int], bonus: int, reason: str, is_checked: bool
) -> None:
    with pytest.raises(ContractFault, match=reason):
        drafter = Ruled(path, tokens, bonus)
        decode(random_target(), drafter, Request((1, 5), 9), is_checked=is_checked)


def test_a_rule_of_a_methods_own_may_accept_any_path() -> None:
    drafter = Ruled(path=[0, 1, 2], tokens=[0, 7, 8, 9], bonus=3)
    done = decode(random_target(), drafter, Request((1, 5), 9))
    assert done.token_ids[1:] == (7, 8, 3, 7, 8, 3, 7, 8)


def test_a_method_that_breaks_its_contract_in_the_warm_up_fails_in_every_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = random_target()
    with engine_backend(target, {"wrong": WRONG}) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        monkeypatch.setattr(Fixed, "propose", lambda self, state: state.chain())
        with pytest.raises(ContractFault, match="2 times below node 0"):
            backend.complete("wrong", Request((1, 5), 4))
