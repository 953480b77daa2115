"""Faulty targets and drafters, for the catalogue of bugs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specbench.engine.drafter import State
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Sampling
from tests.support.noisy_target import NoisyTarget


class StaleLogits(Target):
    """Every tenth forward gives the previous forward's logits, if the trees have the same size."""

    num_forwards = 0
    last_logits = torch.empty(0)

    def forward(self, tree: DraftTree) -> Forward:
        computed = super().forward(tree)
        self.num_forwards += 1
        has_same_shape = self.last_logits.shape == computed.logits.shape
        if self.num_forwards % 10 == 0 and has_same_shape:
            return replace(computed, logits=self.last_logits)
        self.last_logits = computed.logits.clone()
        return computed


class OneSeed(Target):
    """Every answer is drawn with the same random numbers."""

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        return super().sampler(sampling, 0)


class KeepsRejected(Target):
    """The cache keeps a row of a tree that was rejected as a whole."""

    def commit(self, path: Sequence[int]) -> None:
        super().commit(path)
        if len(path) == 1:  # only the root
            self.cache.length += 1


class LosesAccepted(Target):
    """The cache drops the last accepted node."""

    def commit(self, path: Sequence[int]) -> None:
        num_kept = max(1, len(path) - 1)
        super().commit(path[:num_kept])


class StaleLayer(Target):
    """The first layer's keys of an accepted branch are not moved."""

    def commit(self, path: Sequence[int]) -> None:
        rows = slice(self.cache.length, self.cache.length + len(path))
        keys = self.cache.rows(0).keys
        before = keys[:, rows].clone()
        super().commit(path)
        keys[:, rows] = before


class WrongPositions(Target):
    """Draft tokens are one position too far."""

    def forward(self, tree: DraftTree) -> Forward:
        depths = tree.layout.depths
        is_draft = depths > 0
        layout = replace(tree.layout, depths=depths + is_draft)
        return super().forward(replace(tree, layout=layout))


class WrongPositionsFarOn(WrongPositions):
    """Draft tokens are one position too far beyond 150 tokens."""

    def forward(self, tree: DraftTree) -> Forward:
        is_far = self.cache.length > 150
        return super().forward(tree) if is_far else Target.forward(self, tree)


class WrongAfterRejection(WrongPositions):
    """Draft tokens are one position too far after a step that accepted none."""

    was_rejected = False

    def forward(self, tree: DraftTree) -> Forward:
        return super().forward(tree) if self.was_rejected else Target.forward(self, tree)

    def commit(self, path: Sequence[int]) -> None:
        super().commit(path)
        self.was_rejected = len(path) == 1


class SeesCousin(Target):
    """Every node sees the first child of the root."""

    def forward(self, tree: DraftTree) -> Forward:
        ancestors = tree.layout.ancestors.clone()
        ancestors[1:, 1:2] = True
        layout = replace(tree.layout, ancestors=ancestors)
        return super().forward(replace(tree, layout=layout))


class ReusesSeed(NoisyTarget):
    def propose(self, state: State) -> DraftTree:
        state.sampler.generator.manual_seed(state.request.seed)
        return super().propose(state)


class Drawn(NoisyTarget):
    """Drawn draft tokens with a fault in them or in the q that they claim."""

    def __init__(
        self, target: Target, change: Callable[[DraftTree, Tensor, State], DraftTree]
    ) -> None:
        super().__init__(target)
        self._change = change

    def propose(self, state: State) -> DraftTree:
        tree = super().propose(state)
        return tree if tree.q is None else self._change(tree, tree.q, state)


def unconditional(tree: DraftTree, q: Tensor, state: State) -> DraftTree:
    """Siblings claim the first sibling's q, which does not exclude elder siblings."""
    parents = tree.layout.parents.tolist()
    first_child: dict[int, int] = {}
    for node, parent in enumerate(parents[1:], start=1):
        first_child.setdefault(parent, node)
    first_siblings = [0, *(first_child[parent] for parent in parents[1:])]
    return replace(tree, q=q[torch.tensor(first_siblings)])


def sharper(tree: DraftTree, q: Tensor, state: State, *, power: float) -> DraftTree:
    """Claims a sharper q than it draws from."""
    sharp = q**power
    mass = sharp.sum(-1, keepdim=True).clamp_min(1e-30)
    return replace(tree, q=sharp / mass)


def unnormed(tree: DraftTree, q: Tensor, state: State) -> DraftTree:
    """Claims a q that sums to less than one."""
    return replace(tree, q=q * 0.8)


def claims_draws(tree: DraftTree, q: Tensor, state: State) -> DraftTree:
    """Takes the likeliest tokens and claims that they were drawn."""
    tokens = q.argmax(-1)
    tokens[0] = state.pending
    parents_of_chain = [max(node - 1, 0) for node in range(tree.num_nodes)]
    layout = TreeLayout.from_parents(parents_of_chain, "cpu")
    return replace(tree, tokens=tokens, layout=layout)


class HasScratch(NoisyTarget):
    """Half of the nodes are scratch nodes."""

    def propose(self, state: State) -> DraftTree:
        tree = super().propose(state)
        return replace(tree, num_verify=max(1, tree.num_nodes // 2))


class OffByOne(NoisyTarget):
    """The draft vocabulary is off by one."""

    def propose(self, state: State) -> DraftTree:
        tree = super().propose(state)
        tokens = (tree.tokens + 1) % self._model.vocab_size
        tokens[0] = state.pending
        return replace(tree, tokens=tokens)


class Forgets(NoisyTarget):
    """Reads the text without the tokens accepted last."""

    def propose(self, state: State) -> DraftTree:
        cache = self._model.cache
        num_missing = len(state.token_ids) - cache.length
        if cache.length and num_missing > 1:
            cache.length += num_missing - 1
        return super().propose(state)


class LeavesState(NoisyTarget):
    """The cache of the last prompt stays."""

    def start(self, state: State, prefill: Forward) -> None:
        length = self._model.cache.length
        super().start(state, prefill)
        self._model.cache.length = min(length, 3)


class ForgetsSize(NoisyTarget):
    """Claims that its trees have a single size, but proposes fewer nodes near the end."""

    tree_sizes = (9,)

    def propose(self, state: State) -> DraftTree:
        tree = super().propose(state)
        if state.remaining % 2:
            return state.chain([int(tree.tokens[1])])
        return tree
