"""The steps of any setting in a profile over its stored answers: accepted tokens and rows.

A step begins where the last one ended. Nothing is averaged over positions.
"""

from __future__ import annotations

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
"""Those of which the profile has the largest value."""


class Draft(NamedTuple):
    """A step's draft: its rows, the root included, and its accepted draft tokens.

    Of the expansions of a dynamic tree, some may be missing in the profile.
    """

    num_nodes: int
    num_accepted: int
    num_expanded: int = 0
    num_missed: int = 0


DraftAt = Callable[[int], Draft]
"""From the number of tokens before a draft to the draft of a setting."""


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

    No tree of the candidates recorded under this label has a higher MAT. Rows are those of the
    path alone.

    Raises:
        UserError: the label has no recorded pools or ranks.
    """
    arrays = profile.drafts.get(label, {})
    if not {"ranks", *StoredPool._fields} & {*arrays}:
        raise UserError(f"{label} has no recorded tree.", "Methods with heads have one.")

    def draft_at(answer: Answer, at: int) -> Draft:
        row = {name: array[answer.first + at - 1] for name, array in arrays.items()}
        if "ranks" in row:
            depth = num_before(row["ranks"].tolist(), NUM_RANKS)
        else:
            depth = StoredPool(**row).depth_of(answer.token_ids[at:])
        return Draft(1 + depth, depth)

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

    def draft_at(at: int) -> Draft:
        draft = drafts[0](at)
        return draft if draft.num_nodes > 1 else drafts[1](at)

    return draft_at


def _replayed(profile: Profile, begin: Callable[[Answer], DraftAt]) -> Replay:
    steps = [list(_steps(answer, begin(answer))) for answer in profile.answers]
    walks = [
        Walk(
            answer.about.prompt,
            answer.about.prompt_tokens,
            tuple(count for count, _ in one),
            tuple(draft.num_nodes for _, draft in one),
        )
        for answer, one in zip(profile.answers, steps, strict=True)
    ]
    drafts = [draft for one in steps for _, draft in one]
    expanded = sum(draft.num_expanded for draft in drafts)
    return Replay(walks, expanded, sum(draft.num_missed for draft in drafts))


def _steps(answer: Answer, draft_at: DraftAt) -> Iterator[tuple[int, Draft]]:
    """Each step's emitted tokens and draft."""
    at, end = 1, len(answer.token_ids)
    while at < end:
        draft = draft_at(at)
        count = min(draft.num_accepted + 1, end - at)
        yield count, draft
        at += count


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
    """Drafts of a method that reads nothing but tokens: its own drafter runs again.

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

        def draft_at(at: int) -> Draft:
            for token in answer.token_ids[len(state.token_ids) - len(answer.prompt_ids) : at]:
                state.append(token)
            tree = drafter.propose(state)
            tokens = tree.tokens[: tree.num_verify].tolist()
            parents = tree.layout.parents.tolist()
            return Draft(tree.num_nodes, num_accepted(tokens, parents, answer.token_ids[at:]))

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

        def tree_at(answer: Answer, at: int) -> Draft:
            place = answer.first + at - 1
            tree = smaller_tree(StoredPool(*(one[place] for one in parts)), pool, depth)
            accepted = num_accepted(tree.tokens, tree.parents, answer.token_ids[at:])
            return Draft(len(tree.tokens), accepted, tree.num_expanded, tree.num_missed)

        return lambda answer: partial(tree_at, answer)
    (stored,) = arrays.values()
    if recorded.kind == "ranks":
        return _static(profile, options, stored)
    if recorded.kind == "path":

        def chain_at(answer: Answer, at: int) -> Draft:
            count = options.num_tokens
            if not recorded.has_fixed_size:
                count = min(count, answer.about.limit - at - 1)
            length = int(stored[answer.first + at - 1])
            return Draft(1 + count, min(length, count))

        return lambda answer: partial(chain_at, answer)
    return lambda answer: _scheduled(answer, stored[answer.first :], options)


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

    def tree_at(answer: Answer, at: int) -> Draft:
        following = ranks[answer.first + at - 1].tolist()
        return Draft(len(nodes), num_accepted(nodes, parents, following))

    return lambda answer: partial(tree_at, answer)


def _host(profile: Profile) -> Target:
    """What a method that runs on tokens alone needs of a target."""
    import torch

    values = {"device": torch.device("cpu"), "vocab_size": profile.header.vocab_size}
    return cast(Target, SimpleNamespace(**values))


def _scheduled(answer: Answer, is_right: NDArray[np.uint16], options: Any) -> DraftAt:
    """Chains whose lengths follow a schedule; `is_right` [positions] is 0 or 1."""
    wanted: int = options.num_tokens

    def draft_at(at: int) -> Draft:
        nonlocal wanted
        count = min(wanted, answer.about.limit - at - 1)
        chain = is_right[at - 1 : min(at - 1 + count, len(answer.token_ids) - 1)].tolist()
        accepted = num_before(chain, 0)
        wanted = next_length(options.schedule, wanted, accepted)
        return Draft(1 + count, accepted)

    return draft_at


def num_accepted(tokens: Sequence[int], parents: Sequence[int], answer: Sequence[int]) -> int:
    """Depth of a tree's path that an answer [tokens] continues along, from the root down."""
    depths = {0: 0}
    for node in range(1, len(tokens)):
        depth = depths.get(parents[node])
        if depth is not None and depth < len(answer) and tokens[node] == answer[depth]:
            depths[node] = depth + 1
    return max(depths.values())
