"""The steps of any setting in a profile over its stored answers: accepted tokens and rows.

A step begins where the last one ended. Nothing is averaged over positions. If the tokens of a
chain are drawn, each number of accepted ones has its chance, and the steps are expected ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.measure.weights import find_checkpoint
from specbench.methods.shared.static_tree import NUM_RANKS, PROFILE_DEPTH, Ranks, StaticTree
from specbench.methods.shared.stored_pool import HostPool, StoredPool, smaller_tree
from specbench.methods.sps import next_length
from specbench.models.cards import find_model
from specbench.settings.run_method import RunMethod, parse_methods
from specbench.tune.profile import Answer, Profile, ProfiledMethod
from specbench.types import ProfileKind, Request, Sampling

if TYPE_CHECKING:
    from pandas import DataFrame

TREE_ROUNDS = 5
"""Rounds in which the best tree and the steps with it are found."""
FREE: dict[ProfileKind, tuple[str, ...]] = {
    "pool": ("total_tokens", "depth", "top_k"),
    "ranks": ("tree", "nodes"),
    "path": ("num_tokens",),
    "token": ("num_tokens", "schedule"),
    "text": ("num_tokens",),
}
"""Options that are tried. Of all others, a profile has one value, but of texts any."""
BOUNDED: dict[ProfileKind, tuple[str, ...]] = {"pool": ("depth", "top_k"), "path": ("num_tokens",)}
"""Options whose value in the profile is the largest that can be replayed."""


@dataclass(frozen=True)
class Walk:
    """One setting's steps over one stored answer, or the steps that are expected of it.

    If the tokens of chains are drawn, a step may begin at any position. Each position occurs
    once, with how often a step is expected there.
    """

    prompt: str
    """Its name, "task/sample_id/turn"."""
    prompt_tokens: int
    """Tokens of the prompt."""
    accepts: tuple[float, ...]
    """Tokens that each step emits: accepted draft tokens + 1, as `Record.accept_lengths`."""
    nodes: tuple[int, ...]
    """Rows of each step, as `Record.num_nodes`."""
    before: tuple[int, ...]
    """Tokens of the answer that the target has read before each step."""
    chances: tuple[float, ...]
    """Expected number of times that each step occurs; always 1 if drafts are not drawn."""
    num_expanded: int = 0
    """Expansions of dynamic trees in all steps."""
    num_missed: int = 0
    """Those that the profile lacks. Their children count as not accepted."""

    @property
    def num_steps(self) -> float:
        return sum(self.chances)

    @property
    def num_tokens(self) -> int:
        """Tokens of all steps: the answer's, without the prefill's."""
        return round(sum(a * c for a, c in zip(self.accepts, self.chances, strict=True)))

    @property
    def vanilla(self) -> Walk:
        """Vanilla's steps over the same answer."""
        once, places = (1,) * self.num_tokens, tuple(range(self.num_tokens))
        return Walk(self.prompt, self.prompt_tokens, once, once, places, once)


def mat(walks: Sequence[Walk]) -> float:
    """Mean accepted tokens: emitted tokens by steps, of all answers."""
    return sum(one.num_tokens for one in walks) / max(1, sum(one.num_steps for one in walks))


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


DraftAt = Callable[[Answer, int, int | None], Draft]
"""From an answer, its tokens before a draft, and those a schedule asks for, to the draft."""


def replay(profile: Profile, method_key: str, *, otherwise: str = "") -> list[Walk]:
    """The steps of a method's setting over all answers, in the order of the profile.

    `replay(profile, "eagle2:total_tokens=12,depth=3,top_k=4")`

    With `otherwise`, that setting drafts in the steps for which the first has no draft token:
    `replay(profile, "pld:min_ngram=3", otherwise="sps:num_tokens=4")`.

    Raises:
        UserError: an unknown method or option, or a setting outside the profile.
    """
    first = _drafts(profile, method_key)
    second = _drafts(profile, otherwise) if otherwise else None

    def draft_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        draft = first(answer, at, wanted)
        return second(answer, at, wanted) if second and draft.num_nodes == 1 else draft

    return [walk_of(one, draft_at) for one in profile.answers]


def oracle(profile: Profile, label: str) -> list[Walk]:
    """The steps of a tree that always holds the longest right path of its candidates.

    No tree of the candidates recorded under this label has a higher MAT. Rows count
    the path alone.

    Raises:
        UserError: the label has no recorded pools or ranks.
    """
    method = profile.header.methods.get(label)
    if not method or method.kind not in ("pool", "ranks"):
        raise UserError(f"{label} has no recorded tree.", "Methods with heads have one.")

    def draft_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        if method.kind == "ranks":
            depth = len(ranked_path(answer, label, at))
        else:
            depth = _stored_pool(answer, label, at).depth_of(answer.token_ids[at:])
        return Draft(1 + depth, [Outcome(depth)])

    return [walk_of(one, draft_at) for one in profile.answers]


def ranked_path(answer: Answer, label: str, at: int) -> Ranks:
    """The ranks of the answer's tokens from a position on, up to the first without one."""
    ranks = answer.drafts[label]["ranks"][at - 1].tolist()
    return tuple(ranks[: [*ranks, NUM_RANKS].index(NUM_RANKS)])


def _drafts(profile: Profile, method_key: str) -> DraftAt:
    """The drafts of a setting: recorded ones, or of a method that reads only tokens.

    Raises:
        UserError: they are not recorded, or with other options.
    """
    (method,) = parse_methods([method_key])
    misfits = []
    for label, one in profile.header.methods.items():
        if one.about.name == method.method.name and one.kind != "text":
            misfits.append(misfit(label, one, method))
            if not misfits[-1]:
                make = {"pool": _dynamic, "ranks": _static}.get(one.kind, _chain)
                return make(profile, label, method.options)
    if misfits:
        raise UserError(
            f"{method.label} is outside of the profile: {misfits[0]}.",
            f"Make another: specbench tune profile --method '{method.label}' --out DIR",
        )
    return _text(profile, method)


def walk_of(answer: Answer, draft_at: DraftAt) -> Walk:
    """The steps over an answer, whose first token is the prefill's.

    A position is visited as often as the steps before it are expected to end there.
    """
    about, steps, drafts = answer.about, [], list[Draft]()
    visits: list[Counter[int | None]] = [Counter() for _ in range(about.num_tokens + 1)]
    visits[1][None] = 1
    for at in range(1, about.num_tokens):
        for wanted, times in visits[at].items():
            draft, emitted = draft_at(answer, at, wanted), 0.0
            for accepted, chance, following in draft.outcomes:
                count = min(accepted + 1, about.num_tokens - at)
                emitted += chance * count
                then = wanted if following is None else following
                visits[at + count][then] += times * chance  # type: ignore[assignment]
            steps.append((emitted, draft.num_nodes, at - 1, times))
            drafts.append(draft)
    accepts, nodes, before, chances = tuple(zip(*steps, strict=True)) or ((),) * 4
    expanded = sum(draft.num_expanded for draft in drafts)
    missed = sum(draft.num_missed for draft in drafts)
    sizes = about.prompt_tokens, accepts, nodes, before, chances
    return Walk(about.prompt, *sizes, expanded, missed)


def misfit(label: str, recorded: ProfiledMethod, method: RunMethod) -> str:
    """The first option that a profile does not cover, with both values; or nothing."""
    given = {*method.asked.given, *parse_methods([label])[0].asked.given}
    for name, value in recorded.about.options.items():
        wanted = getattr(method.options, name)
        if name in BOUNDED.get(recorded.kind, ()) and wanted > value:
            return f"{name} is {wanted}, and at most {value} in the profile"
        if name not in FREE[recorded.kind] and name in given and wanted != value:
            return f"{name} is {wanted!r}, and {value!r} in the profile"
    return ""


def _text(profile: Profile, method: RunMethod) -> DraftAt:
    """Drafts of a method that reads only tokens: its own drafter runs again.

    Raises:
        UserError: the method reads more than tokens.
    """
    weights, about, host = None, method.method, _host(profile)
    drafter: Drafter | None = None
    has_weights = about.weights_with(method.options) is not None
    datastore = method.options.datastore
    if has_weights and datastore:
        card = find_model(profile.header.model.name)
        weights = find_checkpoint(card, method, is_offline=True).weights
    if weights or not has_weights:
        with suppress(AttributeError):  # it reads a model
            drafter = about.build(method.options, BuildContext(host, weights))
    if drafter is None or drafter.profile != "text":
        raise UserError(
            f"{method.label} is not in the profile, which has {', '.join(profile.header.methods)}.",
            f"Add it: specbench tune profile --method '{method.label}' --out DIR",
        )

    states: dict[int, State] = {}  # by answer: they come one after the other

    def draft_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        state = states.get(id(answer))
        if state is None:
            limit, sampler = answer.about.limit, Sampler(Sampling(), host.device)
            state = states[id(answer)] = State(Request(answer.prompt_ids, limit), sampler, limit)
            state.append(answer.token_ids[0])
            drafter.start(state, cast(Any, None))
        for token in answer.token_ids[len(state.token_ids) - len(answer.prompt_ids) : at]:
            state.append(token)
        tree = drafter.propose(state)
        tokens, parents = tree.tokens[: tree.num_verify].tolist(), tree.layout.parents.tolist()
        accepted = num_accepted(tokens, parents, answer.token_ids[at:])
        return Draft(tree.num_nodes, [Outcome(accepted)])

    return draft_at


def _dynamic(profile: Profile, label: str, options: Any) -> DraftAt:
    """Dynamic trees, grown by the method's own pool from the recorded candidates."""
    pool_of = cache(HostPool)

    def draft_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        stored = _stored_pool(answer, label, at)
        top_k = min(options.top_k, stored.token_ids.shape[-1])
        pool = pool_of(options.total_tokens, options.depth, top_k)
        tree = smaller_tree(stored, pool, options.depth)
        outcome = Outcome(num_accepted(tree.tokens, tree.parents, answer.token_ids[at:]))
        return Draft(len(tree.tokens), [outcome], tree.num_expanded, tree.num_missed)

    return draft_at


def _stored_pool(answer: Answer, label: str, at: int) -> StoredPool:
    return StoredPool(**{name: rows[at - 1] for name, rows in answer.drafts[label].items()})


def _chain(profile: Profile, label: str, options: Any) -> DraftAt:
    """Chains of as many tokens as are asked for.

    A row of a "path" has the number of right tokens, or the chance that each drawn token is
    accepted. A row of a "token" has the chance of the first token alone; the next rows have
    those of the next tokens.
    """
    recorded = profile.header.methods[label]
    schedule = options.schedule

    def draft_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        stored, asked = answer.drafts[label][recorded.kind], wanted or options.num_tokens
        count = asked if recorded.has_fixed_size else min(asked, answer.about.limit - at - 1)
        if recorded.kind == "token":
            chances = stored[at - 1 : at - 1 + count].tolist()
        elif stored.ndim == 1:
            chances = [1] * int(stored[at - 1]) + [0]
        else:
            chances = stored[at - 1].tolist()
        outcomes = [
            Outcome(n, chance, next_length(schedule, asked, n))
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


def _static(profile: Profile, label: str, options: Any) -> DraftAt:
    """A static tree, whose nodes are ranks as the recorded ones [positions, depths] are."""
    recorded = [drafts["ranks"] for one in profile.answers if (drafts := one.drafts[label])]
    depths = max((one.shape[1] for one in recorded), default=0)
    most = depths if depths < PROFILE_DEPTH else None  # a method has fewer heads
    tree = StaticTree.load(options, _host(profile), max_depth=most)
    if tree.layout.max_depth > depths or tree.num_candidates > NUM_RANKS:
        size = f"depth {tree.layout.max_depth} and {tree.num_candidates} ranks"
        reason = f"Tree {options.tree} has {size}, and the profile {depths} and {NUM_RANKS}."
        raise UserError(reason, "Choose a smaller tree.")
    nodes, parents = tree.ranks.tolist(), tree.layout.parents.tolist()

    def draft_at(answer: Answer, at: int, wanted: int | None) -> Draft:
        following = answer.drafts[label]["ranks"][at - 1].tolist()
        return Draft(len(nodes), [Outcome(num_accepted(nodes, parents, following))])

    return draft_at


def _host(profile: Profile) -> Target:
    """A target for a method that runs on tokens alone."""
    import torch

    sizes = SimpleNamespace(device=torch.device("cpu"), vocab_size=profile.header.vocab_size)
    return cast(Target, sizes)


def num_accepted(tokens: Sequence[int], parents: Sequence[int], answer: Sequence[int]) -> int:
    """Depth of a tree's path that an answer [tokens] continues along, from the root down."""
    depths = {0: 0}
    for node in range(1, len(tokens)):
        depth = depths.get(parents[node])
        if depth is not None and depth < len(answer) and tokens[node] == answer[depth]:
            depths[node] = depth + 1
    return max(depths.values())


def best_tree(
    profile: Profile, label: str, num_nodes: int, prompts: Container[str] | None = None
) -> list[Ranks]:
    """The paths of the static tree of `num_nodes` rows that gets most draft tokens accepted.

    They are the most frequent ranks of the answers' tokens over the steps of a walk. No path
    is more frequent than its parent's, so that they form a tree. The steps depend on the tree
    in turn, so that this takes some rounds; the tree with the fewest steps counts.

    Args:
        profile: has the method's ranks.
        label: the method as it was profiled.
        num_nodes: rows, the root included.
        prompts: names of the answers to choose by; by default all.

    Raises:
        UserError: no ranks are recorded under this label.
    """
    method = profile.header.methods.get(label)
    if not method or method.kind != "ranks":
        raise UserError(f"{label} has no recorded ranks.", "Profile medusa, eagle or hydra.")
    chosen = [
        [ranked_path(one, label, at) for at in range(1, len(one.token_ids))]
        for one in profile.answers
        if prompts is None or one.about.prompt in prompts
    ]
    tree: list[Ranks] = []
    found: list[tuple[int, list[Ranks]]] = []
    for _ in range(TREE_ROUNDS + 1):
        steps = [path for paths in chosen for path in _walked(paths, {*tree})]
        found.append((len(steps), tree))
        counts = Counter(path[:depth] for path in steps for depth in range(1, len(path) + 1))
        ordered = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        tree = ordered[: num_nodes - 1]
    return min(found[1:], key=lambda one: one[0])[1]


def _walked(paths: Sequence[Ranks], tree: Container[Ranks]) -> Iterator[Ranks]:
    """The paths of the positions that steps with a tree begin from."""
    at = 0
    while at < len(paths):
        path = paths[at]
        yield path
        at += 1 + next((d for d in range(len(path), 0, -1) if path[:d] in tree), 0)


def profile_frame(profile: Profile, method_key: str) -> DataFrame:
    """One row a step: `prompt`, `prompt_tokens`, `accepted`, `rows`, and its expected `times`."""
    import pandas as pd

    columns = ["prompt", "prompt_tokens", "accepted", "rows", "times"]
    rows = [
        (walk.prompt, walk.prompt_tokens, count - 1, size, times)
        for walk in replay(profile, method_key)
        for count, size, times in zip(walk.accepts, walk.nodes, walk.chances, strict=True)
    ]
    return pd.DataFrame(rows, columns=columns)
