"""The steps of any setting in a profile over its stored answers: accepted tokens and rows.

A step begins where the last one ended. Nothing is averaged over positions. If the tokens of a
chain are drawn, each number of accepted ones has its chance, and the steps are expected ones.
"""

from __future__ import annotations

from collections import defaultdict

from specbench.errors import UserError
from specbench.settings.run_method import RunMethod, parse_methods
from specbench.settings.walk import Step, Walk
from specbench.tune.drafts import Draft, DraftAt, certain
from specbench.tune.kind import find_kind
from specbench.tune.profile_file import Answer, Profile, ProfiledMethod


def replay(profile: Profile, method_key: str, *, otherwise: str = "") -> list[Walk]:
    """The steps of a method's setting over all answers, in the order of the profile.

    `replay(profile, "eagle2:total_tokens=12,depth=3,top_k=4")`

    With `otherwise`, that setting drafts in the steps for which the first has no draft token:
    `replay(profile, "pld:min_ngram=3", otherwise="sps:num_tokens=4")`.

    Raises:
        UserError: an unknown method or option, or a setting outside the profile.
    """
    first = _drafts_of(profile, method_key)
    second = _drafts_of(profile, otherwise) if otherwise else None

    def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
        draft = first(answer, position, wanted_length)
        if second is not None and draft.num_nodes == 1:
            return second(answer, position, wanted_length)
        return draft

    return [walk_of(answer, draft_at) for answer in profile.answers]


def oracle(profile: Profile, label: str) -> list[Walk]:
    """The steps of a tree that always holds the longest right path of its candidates.

    No tree of the candidates recorded under this label has a higher MAT. Rows count
    the path alone.

    Raises:
        UserError: the label has no recorded candidates of trees.
    """
    method = profile.header.methods.get(label)
    kind = find_kind(method.kind) if method is not None else None
    if kind is None or not kind.has_candidates:
        raise UserError(f"{label} has no recorded tree.", "Methods with heads have one.")

    def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
        depth = kind.longest_path(answer, label, position)
        return certain(1 + depth, depth)

    return [walk_of(answer, draft_at) for answer in profile.answers]


def walk_of(answer: Answer, draft_at: DraftAt) -> Walk:
    """The steps over an answer, whose first token is the prefill's.

    A position is visited as often as the steps before it are expected to end there. With a
    schedule, its visits are counted apart per length that the schedule asks for.
    """
    # visits(1) = 1,  visits(t + a + 1) += visits(t) * P(a tokens are accepted at t)
    num_tokens = answer.about.num_tokens
    visits: list[defaultdict[int | None, float]] = [
        defaultdict(float) for _ in range(num_tokens + 1)
    ]  # per position, by wanted length
    visits[1][None] = 1
    steps: list[Step] = []
    num_expanded = 0
    num_missed = 0
    for position in range(1, num_tokens):
        for wanted_length, times in visits[position].items():
            draft = draft_at(answer, position, wanted_length)
            mean_emitted = 0.0
            for outcome in draft.outcomes:
                emitted = min(outcome.num_accepted + 1, num_tokens - position)
                mean_emitted += outcome.chance * emitted
                next_length = outcome.next_length
                if next_length is None:
                    next_length = wanted_length
                visits[position + emitted][next_length] += times * outcome.chance
            step = Step(
                emitted=mean_emitted, rows=draft.num_nodes, before=position - 1, times=times
            )
            steps.append(step)
            num_expanded += draft.num_expanded
            num_missed += draft.num_missed
    return Walk(
        prompt=answer.about.prompt,
        prompt_tokens=answer.about.prompt_tokens,
        steps=tuple(steps),
        num_expanded=num_expanded,
        num_missed=num_missed,
    )


def misfit(label: str, recorded: ProfiledMethod, method: RunMethod) -> str:
    """The first option that a profile does not cover, with both values; or nothing.

    Args:
        label: a method as it was profiled.
        recorded: what the profile says about it.
        method: the same method with the options of a setting.
    """
    kind = find_kind(recorded.kind)
    (profiled,) = parse_methods([label])
    given = {*method.asked.given, *profiled.asked.given}
    for name, recorded_value in recorded.about.options.items():
        value = getattr(method.options, name)
        if name in kind.bounded_options and value > recorded_value:
            return f"{name} is {value}, and at most {recorded_value} in the profile"
        is_fixed = name not in kind.free_options and name in given
        if is_fixed and value != recorded_value:
            return f"{name} is {value!r}, and {recorded_value!r} in the profile"
    return ""


def _drafts_of(profile: Profile, setting: str) -> DraftAt:
    """The drafts of a setting: recorded ones, or of a method that reads only tokens.

    Raises:
        UserError: they are not recorded, or with other options.
    """
    (method,) = parse_methods([setting])
    misfits = []
    for label, recorded in profile.header.methods.items():
        kind = find_kind(recorded.kind)
        if recorded.about.name == method.method.name and kind.is_recorded:
            reason = misfit(label, recorded, method)
            if not reason:
                return kind.replay(profile, label, method)
            misfits.append(reason)
    if misfits:
        raise UserError(
            f"{method.label} is outside of the profile: {misfits[0]}.",
            f"Make another: specbench tune profile --method '{method.label}' --out DIR",
        )
    return find_kind("text").replay(profile, method.label, method)
