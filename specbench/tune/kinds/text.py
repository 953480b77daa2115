"""Texts: nothing is recorded, since the drafts follow from the tokens. The drafter runs again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from specbench.analysis.stats.arrays import IntArray
from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.sampler import Sampler
from specbench.errors import UserError
from specbench.measure.spec import RunSpec
from specbench.measure.weights import find_checkpoint
from specbench.settings import grids
from specbench.settings.run_method import RunMethod
from specbench.tune.drafts import Draft, DraftAt, certain, num_accepted
from specbench.tune.host_target import host_target
from specbench.tune.kind import Kind, SizedDraft
from specbench.tune.profile_file import Answer, Profile
from specbench.types import Request, Sampling

if TYPE_CHECKING:
    import torch


class TextKind(Kind):
    """Drafts that are copied from the tokens. Any setting can be replayed."""

    name = "text"
    free_options = ("num_tokens",)
    is_recorded = False

    def replay(self, profile: Profile, label: str, method: RunMethod) -> DraftAt:
        """Make a function that returns a setting's draft at a position of a stored answer.

        The drafter of `method`, which has the options of the setting, makes the drafts again.

        Raises:
            UserError: the method's drafts do not depend only on tokens.
        """
        drafter = _build(profile, method)  # None if it reads a model
        if drafter is None or drafter.profile != self.name:
            profiled = ", ".join(profile.header.methods)
            raise UserError(
                f"{method.label} is not in the profile, which has {profiled}.",
                f"Add it: specbench tune profile --method '{method.label}' --out DIR",
            )
        return _Redrafting(drafter, host_target(profile).device).draft_at

    def sizes(self, options: Any, drafter: Drafter) -> Iterator[SizedDraft]:
        yield SizedDraft({}, options)

    def grid(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if "num_tokens" in options:
            for num_tokens in grids.TRIED_COPIES:
                yield {"num_tokens": num_tokens}

    def knots(self, sizes: Sequence[SizedDraft]) -> list[dict[str, int]]:
        return [{"drafted": 0}, {"drafted": 1}]

    def knot_numbers(self, size_numbers: IntArray, rows: IntArray) -> IntArray:
        return (rows > 1).astype(int)


def _build(profile: Profile, method: RunMethod) -> Drafter | None:
    """Build a method's drafter if it drafts only from tokens, or from tokens and a datastore.

    None if the method needs the weights of a draft model, or reads more of the target than its
    device and the size of its vocabulary.

    Args:
        profile: names the model, and has the size of its vocabulary.
        method: a registered method (`method.method`) with the options of a setting.

    Raises:
        CheckpointError: the datastore that the options name is missing or damaged.
    """
    weights = None  # the path of the datastore, if it has one
    if method.checkpoint is not None:  # it needs weights, or a datastore
        if not method.options.datastore:  # the file that the user named; "" for none
            return None
        card = RunSpec(model=profile.header.model.name).card  # describes the model
        weights = find_checkpoint(card, method, is_offline=True).weights
    context = BuildContext(host_target(profile), weights)
    with suppress(AttributeError):  # `host_target` has no other attributes of a target
        return method.method.build(method.options, context)
    return None


class _Redrafting:
    """Runs a drafter along one answer after another."""

    def __init__(self, drafter: Drafter, device: torch.device) -> None:
        self._drafter = drafter
        self._device = device
        self._answer: Answer | None = None
        self._state: State

    def draft_at(self, answer: Answer, position: int, wanted_length: int | None) -> Draft:
        """Run the drafter after `position` tokens of an answer, and count its accepted tokens.

        For one answer, each call must have a larger position than the call before. `wanted_length`
        is only for chains of draft models.
        """
        if answer is not self._answer:  # the first call for this answer
            self._begin(answer)  # sets `self._state` to the prompt and the answer's first token
        num_emitted = len(self._state.token_ids) - len(answer.prompt_ids)  # tokens of the answer
        for token_id in answer.token_ids[num_emitted:position]:
            self._state.append(token_id)
        tree = self._drafter.propose(self._state)
        # Nodes after the first `num_verify` are scratch nodes: computed, but never accepted.
        verified_ids = tree.tokens[: tree.num_verify].tolist()  # token ids
        parents = tree.layout.parents.tolist()  # index of each node's parent
        num_right = num_accepted(verified_ids, parents, answer.token_ids[position:])
        # The draft is not drawn, so the number of its accepted tokens is certain.
        return certain(num_nodes=tree.num_nodes, num_accepted=num_right)

    def _begin(self, answer: Answer) -> None:
        """Start the drafter after an answer's prompt and first token."""
        limit = answer.about.limit  # most tokens of the answer
        sampler = Sampler(Sampling(), self._device)
        self._answer = answer
        self._state = State(Request(answer.prompt_ids, limit), sampler, limit)
        self._state.append(answer.token_ids[0])
        no_forward = cast(Any, None)  # the drafter reads no output of the target
        self._drafter.start(self._state, no_forward)


KIND = TextKind()
