"""The steps of any setting in a profile over its stored answers: accepted tokens and rows.

A step begins where the last one ended. Nothing is averaged over positions. If the tokens of a
chain are drawn, each number of accepted ones has its chance, and the steps are expected ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from specbench.engine.accept import Sampler
from specbench.engine.drafter import BuildContext, State
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.measure.methods import RunMethod, find_checkpoint, parse_methods
from specbench.methods._static_tree import NUM_RANKS, PROFILE_DEPTH, StaticTree
from specbench.methods._stored_pool import HostPool, StoredPool, smaller_tree
from specbench.methods.sps import next_length
from specbench.models.cards import find_model
from specbench.tune.stored_profile import Answer, Profile, ProfiledMethod
from specbench.tune.walk import Walk
from specbench.types import Request, Sampling

FREE = {
    "pool": ("total_tokens", "depth", "top_k"),
    "ranks": ("tree", "nodes"),
    "path": ("num_tokens",),
    "token": ("num_tokens", "schedule"),
}
"""Options that a profile of a kind can be replayed with; of all others it has one value."""
BOUNDED = {"pool": ("depth", "top_k"), "ranks": (), "path": ("num_tokens",), "token": ()}
"""Options whose value in the profile is the largest that can be replayed."""


class Outcome(NamedTuple):
    """A number of accepted draft tokens with its chance, given the answer.

    `wanted` are the draft tokens that a schedule then asks for, or None if it asks as before.
    """

    num_accepted: int
    chance: float = 1
    wanted: int | None = None


class Draft(NamedTuple):
    """A step's draft: its rows, the root included, and what may be accepted of it.

    Some expansions of a dynamic tree may be missing in the profile.
    """

    num_nodes: int
    outcomes: Sequence[Outcome]
    num_expanded: int = 0
    num_missed: int = 0


DraftAt = Callable[[int, int | None], Draft]
"""From the tokens before a draft, and those that a schedule asks for, to the draft."""


class Replay(NamedTuple):
    """The steps of a setting. Children of missed nodes count as not accepted."""

    walks: list[Walk]
    num_expanded: int
    num_missed: int


def replay(profile: Profile, method_key: str, *, otherwise: str = "") -> list[Walk]:
    """The steps of a method's setting over all answers, in the order of the profile.

    `replay(profile, "eagle2:total_tokens=12,depth=3,top_k=4")`

    With `otherwise`, that setting drafts in the steps for which the first has no draft token:
    `replay(profile, "pld:min_ngram=3", otherwise="sps:num_tokens=4")`.

    Raises:
        UserError: an unknown method or option, or a setting outside the profile.
    """
    return replay_counted(profile, method_key, otherwise=otherwise).walks


def replay_counted(profile: Profile, method_key: str, *, otherwise: str = "") -> Replay:
    """As `replay`, with the expansions of all its trees, and those that the profile lacks."""
    begin = _beginning(profile, method_key)
    if otherwise:
        begin = partial(_first_of, begin, _beginning(profile, otherwise))
    return _replayed(profile, begin)


def oracle(profile: Profile, label: str) -> list[Walk]:
    """The steps of a tree that always holds the longest right path of its candidates.

    No tree of the candidates recorded under this label has a higher MAT. Rows count
    the path alone.

    Raises:
        UserError: the label has no recorded pools or ranks.
    """
    arrays = profile.drafts.get(label, {})
    if not {"ranks", *StoredPool._fields} & {*arrays}:
        raise UserError(f"{label} has no recorded tree.", "Methods with heads have one.")

    def draft_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        row = {name: array[answer.first + at - 1] for name, array in arrays.items()}
        if "ranks" in row:
            depth = num_before(row["ranks"].tolist(), NUM_RANKS)
        else:
            depth = StoredPool(**row).depth_of(answer.token_ids[at:])
        return Draft(1 + depth, [Outcome(depth)])

    return _replayed(profile, lambda answer: partial(draft_at, answer)).walks


def num_before(values: Sequence[int], end: int) -> int:
    """Number of values before the first that is `end`."""
    return next((at for at, value in enumerate(values) if value == end), len(values))


def _beginning(profile: Profile, method_key: str) -> Callable[[Answer], DraftAt]:
    """The drafts of a setting, answer by answer."""
    (method,) = parse_methods([method_key])
    label = _recorded_as(profile, method)
    return _drafts(profile, label, method.options) if label else _text(profile, method)


def _first_of(
    first: Callable[[Answer], DraftAt], second: Callable[[Answer], DraftAt], answer: Answer
) -> DraftAt:
    drafts = first(answer), second(answer)

    def draft_at(at: int, wanted: int | None) -> Draft:
        draft = drafts[0](at, wanted)
        return draft if draft.num_nodes > 1 else drafts[1](at, wanted)

    return draft_at


def _replayed(profile: Profile, begin: Callable[[Answer], DraftAt]) -> Replay:
    walks, drafts = [], list[Draft]()
    for one in profile.answers:
        steps = list(steps_of(len(one.token_ids), begin(one)))
        columns = tuple(zip(*(step[:4] for step in steps), strict=True)) or ((),) * 4
        walks.append(Walk(one.about.prompt, one.about.prompt_tokens, *columns))
        drafts += [step.draft for step in steps]
    expanded = sum(one.num_expanded for one in drafts)
    return Replay(walks, expanded, sum(one.num_missed for one in drafts))


class Step(NamedTuple):
    """A step: emitted tokens, rows, tokens read before, how often it is expected; its draft."""

    emitted: float
    num_nodes: int
    before: int
    times: float
    draft: Draft


def steps_of(num_tokens: int, draft_at: DraftAt) -> Iterator[Step]:
    """The steps over an answer, whose first token is the prefill's.

    A position is visited as often as the steps before it are expected to end there.
    """
    visits: list[Counter[int | None]] = [Counter() for _ in range(num_tokens + 1)]
    visits[1][None] = 1
    for at in range(1, num_tokens):
        for wanted, times in visits[at].items():
            draft, emitted = draft_at(at, wanted), 0.0
            for accepted, chance, following in draft.outcomes:
                count = min(accepted + 1, num_tokens - at)
                emitted += chance * count
                then = wanted if following is None else following
                visits[at + count][then] += times * chance  # type: ignore[assignment]
            yield Step(emitted, draft.num_nodes, at - 1, times, draft)


def _recorded_as(profile: Profile, method: RunMethod) -> str | None:
    """The label that a method's drafts are recorded under; None if they follow from the text.

    Raises:
        UserError: they are not recorded, or with other options.
    """
    misfits = []
    for label, one in profile.header.methods.items():
        if one.about.name == method.method.name and one.kind != "text":
            if not (misfit := _misfit(label, one, method)):
                return label
            misfits.append(misfit)
    if misfits:
        raise UserError(
            f"{method.label} is outside of the profile: {misfits[0]}.",
            f"Make another: specbench tune profile --method '{method.label}' --out DIR",
        )
    return None


def _misfit(label: str, recorded: ProfiledMethod, method: RunMethod) -> str:
    """The first option that a profile does not cover, with both values; or nothing."""
    given = {*method.asked.given, *parse_methods([label])[0].asked.given}
    for name, value in recorded.about.options.items():
        wanted = getattr(method.options, name)
        if name in BOUNDED[recorded.kind] and wanted > value:
            return f"{name} is {wanted}, and at most {value} in the profile"
        if name not in FREE[recorded.kind] and name in given and wanted != value:
            return f"{name} is {wanted!r}, and {value!r} in the profile"
    return ""


def _text(profile: Profile, method: RunMethod) -> Callable[[Answer], DraftAt]:
    """Drafts of a method that reads only tokens: its own drafter runs again.

    Raises:
        UserError: the method reads more than tokens.
    """
    weights, about, host = None, method.method, _host(profile)
    if about.weights_with(method.options) is not None:
        card = find_model(profile.header.model.name)
        if not getattr(method.options, "datastore", ""):
            raise _not_recorded(profile, method)
        weights = find_checkpoint(card, about, method.options, is_offline=True).weights
    try:
        drafter = about.build(method.options, BuildContext(host, weights))
    except AttributeError as error:  # it reads a model
        raise _not_recorded(profile, method) from error
    if drafter.profile != "text":
        raise _not_recorded(profile, method)

    def begin(answer: Answer) -> DraftAt:
        limit = answer.about.limit
        sampler = Sampler(Sampling(), host.device)
        state = State(Request(answer.prompt_ids, limit), sampler, limit)
        state.append(answer.token_ids[0])
        drafter.start(state, cast(Any, None))

        def draft_at(at: int, wanted: int | None) -> Draft:
            for token in answer.token_ids[len(state.token_ids) - len(answer.prompt_ids) : at]:
                state.append(token)
            tree = drafter.propose(state)
            tokens = tree.tokens[: tree.num_verify].tolist()
            parents = tree.layout.parents.tolist()
            accepted = num_accepted(tokens, parents, answer.token_ids[at:])
            return Draft(tree.num_nodes, [Outcome(accepted)])

        return draft_at

    return begin


def _not_recorded(profile: Profile, method: RunMethod) -> UserError:
    listed = ", ".join(profile.header.methods)
    return UserError(
        f"{method.label} is not in the profile, which has {listed}.",
        f"Add it: specbench tune profile --method '{method.label}' --out DIR",
    )


def _drafts(profile: Profile, label: str, options: Any) -> Callable[[Answer], DraftAt]:
    """Recorded drafts of a method, cut to a setting."""
    recorded, arrays = profile.header.methods[label], profile.drafts[label]
    if recorded.kind == "pool":
        depth, top_k = options.depth, min(options.top_k, arrays["token_ids"].shape[-1])
        pool = HostPool(options.total_tokens, depth, top_k)
        parts = [arrays[name] for name in StoredPool._fields]

        def tree_at(answer: Answer, at: int, wanted: int | None) -> Draft:
            place = answer.first + at - 1
            tree = smaller_tree(StoredPool(*(one[place] for one in parts)), pool, depth)
            accepted = num_accepted(tree.tokens, tree.parents, answer.token_ids[at:])
            outcomes = [Outcome(accepted)]
            return Draft(len(tree.tokens), outcomes, tree.num_expanded, tree.num_missed)

        return lambda answer: partial(tree_at, answer)
    (stored,) = arrays.values()
    if recorded.kind == "ranks":
        return _static(profile, options, stored)
    return lambda answer: _chain(recorded, options, answer, stored[answer.first :])


def _chain(recorded: ProfiledMethod, options: Any, answer: Answer, stored: NDArray[Any]) -> DraftAt:
    """Chains. `stored` [positions, ...] are of this answer and those after it.

    A row of a "path" has the number of right tokens, or the chance that each drawn token is
    accepted. A row of a "token" has the chance of the first token alone; the next rows have
    those of the next tokens.
    """
    schedule = getattr(options, "schedule", "constant")
    is_constant = schedule == "constant"

    def draft_at(at: int, wanted: int | None) -> Draft:
        asked: int = options.num_tokens if wanted is None else wanted
        count = asked if recorded.has_fixed_size else min(asked, answer.about.limit - at - 1)
        if recorded.kind == "token":
            chances = stored[at - 1 : min(at - 1 + count, len(answer.token_ids) - 1)].tolist()
        elif stored.ndim == 1:
            chances = [1] * int(stored[at - 1]) + [0]
        else:
            chances = stored[at - 1].tolist()
        outcomes = [
            Outcome(n, chance, None if is_constant else next_length(schedule, asked, n))
            for n, chance in shares(chances[:count])
        ]
        return Draft(1 + count, outcomes)

    return draft_at


def shares(chances: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Each number of tokens that may be accepted, with its chance, from each token's own.

    A token is accepted only if all before it are.
    """
    reached = 1.0
    for accepted, chance in enumerate([*chances, 0]):
        if chance < 1 and reached:
            yield accepted, reached * (1 - chance)
        reached *= chance


def _static(
    profile: Profile, options: Any, ranks: NDArray[np.uint16]
) -> Callable[[Answer], DraftAt]:
    """A static tree, whose nodes are ranks as `ranks` [positions, depths] are."""
    depths = ranks.shape[1]
    most = depths if depths < PROFILE_DEPTH else None  # a method has fewer heads
    tree = StaticTree.load(options, _host(profile), max_depth=most)
    if tree.layout.max_depth > depths or tree.num_candidates > NUM_RANKS:
        size = f"depth {tree.layout.max_depth} and {tree.num_candidates} ranks"
        reason = f"Tree {options.tree} has {size}, and the profile {depths} and {NUM_RANKS}."
        raise UserError(reason, "Choose a smaller tree.")
    nodes, parents = tree.ranks.tolist(), tree.layout.parents.tolist()

    def tree_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        following = ranks[answer.first + at - 1].tolist()
        return Draft(len(nodes), [Outcome(num_accepted(nodes, parents, following))])

    return lambda answer: partial(tree_at, answer)


def _host(profile: Profile) -> Target:
    """A target for a method that runs on tokens alone."""
    import torch

    values = {"device": torch.device("cpu"), "vocab_size": profile.header.vocab_size}
    return cast(Target, SimpleNamespace(**values))


def num_accepted(tokens: Sequence[int], parents: Sequence[int], answer: Sequence[int]) -> int:
    """Depth of a tree's path that an answer [tokens] continues along, from the root down."""
    depths = {0: 0}
    for node in range(1, len(tokens)):
        depth = depths.get(parents[node])
        if depth is not None and depth < len(answer) and tokens[node] == answer[depth]:
            depths[node] = depth + 1
    return max(depths.values())
