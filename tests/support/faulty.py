"""Faulty rules, targets, drafters and ends of answers, for the catalogue of bugs."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from specbench.engine.accept import lossless, select
from specbench.engine.decode import emit
from specbench.engine.drafter import State
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Sampling
from tests.support.noisy_target import NoisyTarget


def faulty(
    tree: DraftTree, logits: Tensor, sampler: Sampler, *, leniency: float = 1.0,
    residual: str = "own", bonus: str = "own", has_scratch: bool = False, later: str = "own",
) -> Tensor:  # fmt: skip
    """The lossless rule with a fault, for drawn draft tokens; without arguments it is sound."""
    n, layout = tree.num_nodes, tree.layout
    if tree.q is None or sampler.sampling.is_greedy:
        return lossless(tree, logits, sampler)
    p = target = sampler.probs(logits)
    if has_scratch:
        tree = replace(tree, num_verify=n)
    q, chance = tree.q, sampler.uniform(n)
    assert q is not None
    accepted, is_open = torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    is_leaf = torch.ones(n, dtype=torch.bool)
    for number, child in enumerate(layout.siblings):
        token, is_tried = tree.tokens[child][:, None], is_open & (child > 0)
        is_tried &= child < tree.num_verify
        is_leaf &= child == 0
        ratio = leniency * p.gather(1, token)[:, 0]
        kept = is_tried & (chance[child] * q[child].gather(1, token)[:, 0] < ratio)
        accepted = accepted.scatter(0, child, accepted[child] | kept)
        is_open = is_open & ~kept
        taken = {
            "own": q[child], "half": q[child] / 2, "first": q[layout.siblings[0]], "none": 0 * p,
        }[residual]  # fmt: skip
        if later == "first sibling's" and number:  # from the second rejection on
            taken = q[layout.siblings[0]]
        rest = (p - taken).clamp(min=0)
        is_rejected = (is_tried & ~kept)[:, None] & (rest.sum(-1, keepdim=True) > 0)
        rest = rest / rest.sum(-1, keepdim=True).clamp(min=1e-9)
        if later == "top-p again":
            rest = sampler.probs(rest.clamp(min=1e-30).log() * sampler.sampling.temperature)
        p = torch.where(is_rejected, rest, p)
    drawn = sampler.draw(p)
    other = {
        "own": drawn, "parent": sampler.draw(target[layout.parents]),
        "greedy": target.argmax(-1), "cold": sampler.draw(logits.softmax(-1)),
        "cool": sampler.draw(target**1.1),
    }[bonus]  # fmt: skip
    return select(tree, accepted, torch.where(is_leaf, other, drawn))


def right_in_small_trees(
    tree: DraftTree, logits: Tensor, sampler: Sampler, *, most: int, of: str
) -> Tensor:
    """The bonus is the best token in trees with more nodes, or deeper, than a number."""
    size = tree.num_nodes if of == "nodes" else tree.layout.max_depth
    on_path, tokens, next_ids = lossless(tree, logits, sampler)
    is_large = size > most and not sampler.sampling.is_greedy
    return torch.stack([on_path, tokens, logits.argmax(-1) if is_large else next_ids])


def without_top_k(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """Draws from all tokens."""
    seed = int(sampler.uniform(1) * 2**31)
    sampling = replace(sampler.sampling, top_k=0)
    return lossless(tree, logits, Sampler(sampling, logits.device, seed=seed))


def greedy_if_cold(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """Greedy below a temperature of 0.5."""
    if 0 < sampler.sampling.temperature < 0.5:
        greedy = Sampler(Sampling(), logits.device, seed=0)
        return lossless(replace(tree, q=None), logits, greedy)
    return lossless(tree, logits, sampler)


def heated(tree: DraftTree, logits: Tensor, sampler: Sampler, *, by: float = 0) -> Tensor:
    """A temperature that is too high by this factor; without one, it is applied twice."""
    return lossless(tree, logits / (by or sampler.sampling.temperature), sampler)


def greedy_prefill(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    if tree.num_nodes == 1:
        return select(tree, torch.ones(1, dtype=torch.bool), logits.argmax(-1))
    return lossless(tree, logits, sampler)


def first_always(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    return select(tree, torch.arange(tree.num_nodes) == 1, sampler.pick(logits))


def wrong_child(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """Emits the token of the next node instead of the accepted one's."""
    on_path, tokens, next_ids = lossless(tree, logits, sampler)
    return torch.stack([on_path, tokens.roll(-1), next_ids])


def parents_logits(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    return lossless(tree, logits[tree.layout.parents], sampler)


class StaleLogits(Target):
    """Every tenth forward gives the previous forward's logits, if the trees have the same size."""

    count, last = 0, torch.empty(0)

    def forward(self, tree: DraftTree) -> Forward:
        computed = super().forward(tree)
        self.count += 1
        if self.count % 10 == 0 and self.last.shape == computed.logits.shape:
            return replace(computed, logits=self.last)
        self.last = computed.logits.clone()
        return computed


class OneSeed(Target):
    """Every answer is drawn with the same random numbers."""

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        return super().sampler(sampling, 0)


class KeepsRejected(Target):
    """The cache keeps a row of a tree that was rejected as a whole."""

    def commit(self, path: Sequence[int]) -> None:
        super().commit(path)
        self.cache.length += len(path) == 1


class LosesAccepted(Target):
    """The cache drops the last accepted node."""

    def commit(self, path: Sequence[int]) -> None:
        super().commit(path[: max(1, len(path) - 1)])


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
        return super().forward(
            replace(tree, layout=replace(tree.layout, depths=depths + (depths > 0)))
        )


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
        return super().forward(replace(tree, layout=replace(tree.layout, ancestors=ancestors)))


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
    first = {parent: i for i, parent in reversed([*enumerate(tree.layout.parents.tolist())])}
    rows = [0, *(first[p] or 1 for p in tree.layout.parents.tolist()[1:])]
    return replace(tree, q=q[torch.tensor(rows)])


def sharper(tree: DraftTree, q: Tensor, state: State, *, power: float) -> DraftTree:
    """Claims a sharper q than it draws from."""
    return replace(tree, q=q**power / (q**power).sum(-1, keepdim=True).clamp_min(1e-30))


def unnormed(tree: DraftTree, q: Tensor, state: State) -> DraftTree:
    """Claims a q that sums to less than one."""
    return replace(tree, q=q * 0.8)


def claims_draws(tree: DraftTree, q: Tensor, state: State) -> DraftTree:
    """Takes the likeliest tokens and claims that they were drawn."""
    tokens = q.argmax(-1)
    tokens[0] = state.pending
    layout = TreeLayout.from_parents([max(i - 1, 0) for i in range(tree.num_nodes)], "cpu")
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
        missing = len(state.token_ids) - self._model.cache.length
        if self._model.cache.length and missing > 1:
            self._model.cache.length += missing - 1
        return super().propose(state)


class LeavesState(NoisyTarget):
    """The cache of the last prompt stays."""

    def start(self, state: State, prefill: Forward) -> None:
        length = self._model.cache.length
        super().start(state, prefill)
        self._model.cache.length = min(length, 3)


class ForgetsSize(NoisyTarget):
    """Claims trees of a single size, and proposes fewer nodes near the end."""

    tree_sizes = (9,)

    def propose(self, state: State) -> DraftTree:
        tree = super().propose(state)
        if state.remaining % 2:
            return state.chain([int(tree.tokens[1])])
        return tree


def patched_emit(emit_: Callable[..., Any]) -> AbstractContextManager[Any]:
    return mock.patch("specbench.engine.decode.emit", emit_)


def after_eos(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Emits one more token after the end token, if the path has one."""
    ids = [*token_ids]
    end = next((i for i, token in enumerate(ids) if token in state.request.eos_ids), None)
    if end is None:
        return emit(state, ids, vocab_size)
    kept = ids[: end + 2][: state.remaining]
    for token in kept:
        state.append(token)
    return len(kept), True


def lost_before_eos(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Loses the token before an end token within an accepted path."""
    ids = [*token_ids]
    end = next((i for i, token in enumerate(ids) if token in state.request.eos_ids), None)
    if not end:  # none, or the first token of the step
        return emit(state, ids, vocab_size)
    return emit(state, [*ids[: end - 1], *ids[end:]], vocab_size)


def overshoots_by_two(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Cuts a path by one token too few if it goes two or more beyond the budget."""
    ids = [*token_ids]
    if len(ids) < state.remaining + 2:
        return emit(state, ids, vocab_size)
    kept = ids[: state.remaining + 1]
    for token in kept:
        state.append(token)
    return len(kept), True


def ends_early(is_chosen: Callable[[], bool]) -> Callable[..., tuple[int, bool]]:
    """Ends chosen answers before their end token."""

    def emit_(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
        ids = [*token_ids]
        end = next((i for i, token in enumerate(ids) if token in state.request.eos_ids), None)
        if end is None or not is_chosen():
            return emit(state, ids, vocab_size)
        return emit(state, ids[:end], vocab_size)[0], True

    return emit_


def beyond_budget(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Emits the whole path although the budget ends in it."""
    ids = [*token_ids]
    is_done = len(ids) >= state.remaining
    for token in ids:
        state.append(token)
    return len(ids), is_done


def without_bonus(state: State, token_ids: Iterable[int], vocab_size: int) -> tuple[int, bool]:
    """Counts the bonus token, but drops the accepted one before it in paths of three or more."""
    ids = [*token_ids]
    return emit(state, ids if len(ids) < 3 else [*ids[:-2], ids[-1]], vocab_size)
