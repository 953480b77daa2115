"""Checks of draft trees: each violation of the contract is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from specbench.engine.accept import Sampler, lossless
from specbench.engine.decode import decode
from specbench.engine.draft_check import check_draft
from specbench.engine.drafter import Drafter, State
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import ContractFault
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import LoadedEngine
from specbench.measure.local.memory import MemoryLedger
from specbench.types import Request, Sampling
from tests.support.models import VOCAB, random_target
from tests.support.weights import build

CPU = torch.device("cpu")


def state() -> State:
    return State(Request((1, 5, 4), 8), Sampler(Sampling(), CPU), 8)


def tree(tokens: list[int], parents: list[int]) -> DraftTree:
    return DraftTree(torch.tensor(tokens), TreeLayout.from_parents(parents, CPU), len(tokens))


SOUND = tree([4, 7, 8, 7], [0, 0, 0, 1])
_LAYOUT = SOUND.layout
_COUSINS = _LAYOUT.ancestors.clone()
_COUSINS[3, 2] = True


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
        (
            replace(SOUND, layout=replace(_LAYOUT, parents=torch.tensor([0, 2, 0, 1]))),
            "is not a tree: node 1 has parent 2",
        ),
        (
            replace(SOUND, layout=replace(_LAYOUT, depths=torch.tensor([0, 1, 1, 1]))),
            "has depths that do not follow",
        ),
        (replace(SOUND, layout=replace(_LAYOUT, ancestors=_COUSINS)), "nodes other than its"),
        (replace(SOUND, layout=replace(_LAYOUT, max_depth=1)), "is 2 deep, but declares"),
    ],
)
def test_a_violation_is_named(draft: DraftTree, reason: str) -> None:
    with pytest.raises(ContractFault, match=reason):
        check_draft(draft, state(), VOCAB)


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
    found = decode(target, Meddler("state.token_ids[:].clear()"), Request((1, 5), 8))
    assert found.token_ids == expected.token_ids


class Fixed(Drafter):
    """Drafts the same tokens below every pending token."""

    def __init__(self, tokens: list[int], parents: list[int], num_verify: int) -> None:
        self.tokens, self.parents, self.num_verify = tokens, parents, num_verify

    def propose(self, state: State) -> DraftTree:
        made = tree([state.pending, *self.tokens], self.parents)
        return replace(made, num_verify=self.num_verify)


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
    found = decode(target, Fixed(tokens, parents, num_verify), request, is_checked=True)
    assert found.token_ids == expected.token_ids
    assert set(found.num_nodes) == {4}


class Wrong(Fixed):
    """Drafts siblings that carry the same token."""

    def __init__(self) -> None:
        super().__init__([VOCAB - 1, VOCAB - 1], [0, 0, 0], 3)


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_completion_with_a_wrong_draft_fails(is_checked: bool) -> None:
    with pytest.raises(ContractFault, match="2 times below node 0"):
        decode(random_target(), Wrong(), Request((1, 5), 8), is_checked=is_checked)


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
        made = tree([state.pending, 7, 8, 9], [0, 0, 1, 2])
        return replace(made, num_verify=3)


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(
    ("path", "tokens", "bonus", "reason"),
    [
        ([0, 2], [0, 7, 8, 9], 3, r"accepted the nodes \[0, 2\], which are not a path"),
        ([1, 2], [0, 7, 8, 9], 3, r"accepted the nodes \[1, 2\], which are not a path"),
        ([0, 1, 2, 3], [0, 7, 8, 9], 3, "accepted node 3, but only 3 nodes may be accepted"),
        ([0, 1], [0, 8, 8, 9], 3, r"emitted the tokens \[8\], which are not those"),
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
    done = decode(random_target(), Ruled([0, 1, 2], [0, 7, 8, 9], 3), Request((1, 5), 9))
    assert done.token_ids[1:] == (7, 8, 3) * 2 + (7, 8)


def test_a_method_that_breaks_its_contract_in_the_warm_up_fails_in_every_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = random_target()
    mode = SimpleNamespace(name="eager", reason=None)
    setup = SimpleNamespace(
        has_phases=False,
        is_traced=False,
        checks_drafts=False,
        threads=None,
        mode=mode,
        settings="paper",
    )
    loaded = LoadedEngine(target, {"wrong": Wrong()}, 0.0, MemoryLedger(target))
    with EngineBackend(cast(Any, setup), loaded=loaded) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        monkeypatch.setattr(Wrong, "propose", lambda self, state: state.chain())
        with pytest.raises(ContractFault, match="2 times below node 0"):
            backend.complete("wrong", Request((1, 5), 4))
