"""Checks of drafts and verdicts: each violation of the contract of methods is named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.accept import lossless
from specbench.engine.decode import decode
from specbench.engine.draft_check import check_draft
from specbench.engine.drafter import Drafter, State
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.errors import ContractFault
from specbench.types import Request
from tests.support.draft_trees import sampler, tree
from tests.support.models import VOCAB, engine_backend, random_target
from tests.support.weights import build

REQUEST = Request((1, 5), 8)
SOUND = tree(tokens=[4, 7, 8, 7], parents=[0, 0, 0, 1])
_COUSINS = SOUND.layout.ancestors.clone()
"""Ancestors [nodes, nodes] in which node 3 sees node 2, which is not its ancestor."""
_COUSINS[3, 2] = True


def changed(**changes: Any) -> DraftTree:
    """The sound tree with other fields."""
    return replace(SOUND, **changes)


def laid(**changes: Any) -> DraftTree:
    """The sound tree with a changed layout."""
    return changed(layout=replace(SOUND.layout, **changes))


VIOLATIONS: list[tuple[DraftTree | None, str]] = [
    (None, "is a NoneType, not a DraftTree"),
    (tree([5, 7], [0, 0]), "has root 5, but the pending token is 4"),
    (tree([4, VOCAB], [0, 0]), f"holds token {VOCAB}; the vocabulary has {VOCAB} tokens"),
    (tree([4, -1], [0, 0]), "holds token -1"),
    (tree([4, 7, 7], [0, 0, 0]), "holds token 7 2 times below node 0"),
    (changed(tokens=SOUND.tokens[:3]), "has 3 tokens, but parents of shape"),
    (changed(tokens=SOUND.tokens.float()), "tokens of type torch.float32"),
    (changed(num_verify=5), "verifies 5 of 4 nodes"),
    (changed(q=torch.ones(4, 3)), "has q of shape"),
    (laid(parents=torch.tensor([0, 2, 0, 1])), "is not a tree: node 1 has parent 2"),
    (laid(depths=torch.tensor([0, 1, 1, 1])), "has depths that do not follow"),
    (laid(ancestors=_COUSINS), "nodes other than its"),
    (laid(max_depth=1), "has depth 2, but declares"),
]
"""Drafts after the pending token 4, and the part of the message that names each violation."""


@pytest.mark.parametrize(("draft", "reason"), VIOLATIONS)
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
        "state.token_ids[0] = 3",
        "state.token_ids.append(3)",
        "del state.token_ids[0]",
        "state.token_ids = []",
        "state.limit = 99",
        "state.request = None",
        "state.request.prompt_ids = ()",
    ],
)
def test_a_drafter_cannot_change_the_state(attack: str) -> None:
    with pytest.raises((AttributeError, TypeError)):
        decode(random_target(), Meddler(attack), REQUEST)


def test_a_slice_of_the_tokens_is_a_copy(tmp_path: Path) -> None:
    target = random_target()
    expected = decode(target, build("vanilla", target, tmp_path), REQUEST)
    answer = decode(target, Meddler("state.token_ids[:].clear()"), REQUEST)
    assert answer.token_ids == expected.token_ids


class Fixed(Drafter):
    """A drafter that drafts the same tokens below every pending token."""

    def __init__(self, tokens: list[int], parents: list[int], num_verify: int) -> None:
        self.tokens = tokens
        self.parents = parents
        self.num_verify = num_verify

    def propose(self, state: State) -> DraftTree:
        drafted = tree([state.pending, *self.tokens], self.parents)
        return replace(drafted, num_verify=self.num_verify)


@pytest.mark.parametrize(
    ("tokens", "parents", "num_verify"),
    [
        pytest.param([7, 8, 7], [0, 0, 0, 1], 4, id="cousins with one token"),
        pytest.param([7, 8, 8], [0, 0, 1, 1], 3, id="a scratch node that repeats a sibling"),
    ],
)
def test_a_sound_tree_passes(
    tokens: list[int], parents: list[int], num_verify: int, tmp_path: Path
) -> None:
    target = random_target()
    expected = decode(target, build("vanilla", target, tmp_path), REQUEST)
    answer = decode(target, Fixed(tokens, parents, num_verify), REQUEST, is_checked=True)
    assert answer.token_ids == expected.token_ids
    assert set(answer.num_nodes) == {4}


WRONG = Fixed(tokens=[VOCAB - 1, VOCAB - 1], parents=[0, 0, 0], num_verify=3)
"""A drafter whose siblings have the same token."""


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_completion_with_a_wrong_draft_fails(is_checked: bool) -> None:
    with pytest.raises(ContractFault, match="2 times below node 0"):
        decode(random_target(), WRONG, REQUEST, is_checked=is_checked)


class Ruled(Drafter):
    """Drafts a chain of four nodes, the last one a scratch node, with a rule of its own.

    The rule accepts `path`, says that the nodes have `tokens`, and adds `bonus`.
    """

    def __init__(self, path: list[int], tokens: list[int], bonus: int) -> None:
        # rows: nodes on the path, tokens of the nodes, next token of each node
        self.choice = torch.zeros(3, 4, dtype=torch.long)
        self.choice[0, path] = 1
        self.choice[1] = torch.tensor(tokens)
        self.choice[2] = bonus

    def rule(self, tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
        if tree.num_nodes == 1:
            return lossless(tree, logits, sampler)
        return self.choice.clone()

    def propose(self, state: State) -> DraftTree:
        return tree([state.pending, 7, 8, 9], parents=[0, 0, 1, 2], num_verify=3)


CHAIN = [0, 7, 8, 9]
"""The right tokens of the nodes. The root's token does not count."""


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(
    ("path", "tokens", "bonus", "reason"),
    [
        ([0, 2], CHAIN, 3, r"accepted the nodes \[0, 2\], which are not a path"),
        ([1, 2], CHAIN, 3, r"accepted the nodes \[1, 2\], which are not a path"),
        ([0, 1, 2, 3], CHAIN, 3, "accepted node 3, but only 3 nodes may be accepted"),
        ([0, 1], [0, 8, 8, 9], 3, r"emitted the tokens \[8\], which are not those of the nodes"),
        ([0, 1], CHAIN, -1, f"emitted token -1, but the vocabulary has {VOCAB}"),
        ([0, 1], CHAIN, VOCAB, f"emitted token {VOCAB}, but the vocabulary has {VOCAB}"),
    ],
)
def test_a_rule_that_accepts_a_broken_path_fails(
    path: list[int], tokens: list[int], bonus: int, reason: str, is_checked: bool
) -> None:
    drafter = Ruled(path, tokens, bonus)
    with pytest.raises(ContractFault, match=reason):
        decode(random_target(), drafter, Request((1, 5), 9), is_checked=is_checked)


def test_a_methods_own_rule_may_accept_any_path() -> None:
    drafter = Ruled(path=[0, 1, 2], tokens=CHAIN, bonus=3)
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
