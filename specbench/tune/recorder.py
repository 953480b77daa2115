"""Record a method's drafts at every position of an answer that the target decodes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.engine.accept import Sampler, lossless
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.errors import UserError
from specbench.measure.local.engine_setup import EngineSetup
from specbench.methods._stored_pool import StoredPool
from specbench.tune.stored_profile import Arrays
from specbench.types import ProfileKind, Sampling

if TYPE_CHECKING:
    from torch import Tensor

Say = Callable[[str], None]


def kinds_of(
    setup: EngineSetup, drafters: Mapping[str, Drafter], sampling: Sampling, say: Say | None
) -> dict[str, ProfileKind]:
    """The kind of data to record for each method. `say` gets a line for each other method.

    Raises:
        UserError: without `say`, a method has no profile.
    """
    found = dict[str, ProfileKind]()
    for label in setup.labels:
        drafter = drafters[label]
        if reason := _reason(drafter, not sampling.is_greedy):
            message = f"{label} has no acceptance profile: {reason}."
            if say is None:
                hint = f"Ordinary runs measure its settings: specbench run --method '{label}'"
                raise UserError(message, f"Leave it out. {hint}")
            say(message)
        elif drafter.profile:
            found[label] = drafter.profile
    return found


def _reason(drafter: Drafter, is_drawn: bool) -> str:
    if drafter.profile is None:
        _ = drafter.needs  # a broken one says why
        return "its drafts depend on earlier trees or answers, or the method does not say"
    if is_drawn and drafter.rule is not lossless:
        return "above temperature 0 its rule gives other answers than vanilla's"
    if is_drawn and drafter.draws_siblings:
        return "above temperature 0 it draws siblings, and an answer shows only one"
    return ""


class Along(Sampler):
    """Draws the tokens of an answer, whatever their probabilities, and keeps these."""

    def __init__(self, sampler: Sampler, following: Sequence[int]) -> None:
        self.__dict__.update(sampler.__dict__)
        self.generator = sampler.generator.clone_state()  # not to move the target's
        self._following = iter(following)
        self.kept: list[float] = []

    def draw(self, probs: Tensor) -> Tensor:
        import torch

        tokens = [next(self._following, 0) for _ in probs]  # after the end, any
        drawn = torch.tensor(tokens, device=probs.device)
        self.kept += probs.gather(1, drawn[:, None])[:, 0].tolist()
        return drawn


class Recorder(Drafter):
    """Lets a drafter propose at every position of `answer`; the target gets the root alone.

    So the target's answer is vanilla's, and every step emits one token. A chain whose
    tokens are drawn is drafted along the answer: the rule accepts an emitted token with
    probability min(1, q / p).
    """

    tree_sizes = (1,)

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.needs = drafter, drafter.needs
        self._is_chain = drafter.profile in ("path", "token")
        self._pools: list[StoredPool] = []
        self._rows: list[Any] = []
        self._target: list[float] = []
        self.answer: Sequence[int] = ()

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        following = self.answer[len(state.token_ids) - len(state.request.prompt_ids) :]
        if self._drafter.profile == "ranks":
            self._rows.append(self._drafter.ranks(state, following))
        elif self._drafter.profile == "pool":
            self._pools.append(StoredPool.read(self._drafter.propose(state)))
        elif state.sampler.sampling.is_greedy:
            self._rows.append(_num_right(self._drafter.propose(state), following))
        else:
            along = copy(state)  # with the same tokens
            object.__setattr__(along, "sampler", sampler := Along(state.sampler, following))
            tree = self._drafter.propose(along)
            certain = [np.inf] * _num_right(tree, following)
            self._rows.append(certain if tree.q is None else sampler.kept)
        return state.chain()

    def observe(self, state: State, result: StepResult) -> None:
        if self._is_chain and not state.sampler.sampling.is_greedy:
            p = state.sampler.probs(result.forward.logits[:1])
            self._target.append(float(p[0, state.pending]))
        self._drafter.observe(state, result)

    def taken(self) -> Arrays:
        """The arrays since the last call, a row for each token of an answer but the last."""
        pools, rows, target = self._pools, self._rows, self._target
        self._pools, self._rows, self._target = [], [], []
        kind = str(self._drafter.profile)
        if pools:
            parts = map(np.stack, zip(*pools, strict=True))
            return dict(zip(StoredPool._fields, parts, strict=True))
        if self._is_chain and rows and isinstance(rows[0], list):
            found = _chances(rows, target)
            return {kind: found if kind == "path" else found[:, 0]}
        return {kind: np.array(rows, dtype=np.uint16)} if rows else {}


def _num_right(tree: DraftTree, following: Sequence[int]) -> int:
    pairs = zip(tree.tokens.tolist()[1:], following, strict=False)
    return sum(1 for _ in takewhile(lambda one: one[0] == one[1], pairs))


def _chances(draft: Sequence[Sequence[float]], target: Sequence[float]) -> Any:
    """The chance [positions, tokens] that each token of a chain is accepted, as float32.

    `draft` has the probabilities of the answer's tokens from each position on, `target` the
    target's, without the last one: whether that is accepted changes no step.
    """
    found = np.zeros((len(draft), max(1, *map(len, draft))), np.float32)
    for at, row in enumerate(draft):
        for depth, (q, p) in enumerate(zip(row, target[at:], strict=False)):
            found[at, depth] = min(1.0, q / p)
    return found
