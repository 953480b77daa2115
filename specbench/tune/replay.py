"""Replay the steps of any setting in a profile over the stored answers.

A step begins where the last one ended, and nothing is averaged over positions. If the tokens of a
chain are drawn, each number of accepted tokens has a probability, and numbers of steps are expected
values.
"""

from __future__ import annotations

from collections import defaultdict

from specbench.errors import UserError
from specbench.settings.run_method import RunMethod
from specbench.settings.walk import Step, Walk
from specbench.tune.drafts import Draft, DraftAt, certain
from specbench.tune.kind import find_kind
from specbench.tune.labels import read_label
from specbench.tune.profile_file import Answer, Profile, ProfiledMethod


def replay(profile: Profile, method_key: str, *, otherwise: str = "") -> list[Walk]:
    """Replay a method's setting: its steps over each answer, in the order of the answers.

    `replay(profile, "eagle2:total_tokens=12,depth=3,top_k=4")`

    With `otherwise`, a second setting drafts in the steps for which the first has no draft token:
    `replay(profile, "pld:min_ngram=3", otherwise="sps:num_tokens=4")`.

    Args:
        profile: has vanilla's answers, and what methods draft at each position.
        method_key: a method with options, as on the command line.
        otherwise: the second setting; "" for none.

    Raises:
        UserError: an unknown method or option, or a setting outside the profile.
    """
    # functions that return a setting's draft at a position of an answer
    first_draft_at = _drafts_of(profile, method_key)
    second_draft_at = _drafts_of(profile, otherwise) if otherwise else None

    def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
        """The draft after `position` tokens of an answer.

        `wanted_length` is the number of draft tokens that a schedule asks for; None stands for the
        setting's own number.
        """
        draft = first_draft_at(answer, position, wanted_length)
        if second_draft_at is not None and draft.num_nodes == 1:  # the root, without draft tokens
            return second_draft_at(answer, position, wanted_length)
        return draft

    return [walk_of(answer, draft_at) for answer in profile.answers]


def oracle(profile: Profile, label: str) -> list[Walk]:
    """Replay a method that always drafts the best path of its candidates.

    The best path has the most tokens with which the answer continues. The draft of a step is the
    root with only this path. No tree of the recorded candidates would have more accepted tokens.

    Args:
        profile: has the candidates of the method's trees.
        label: the method as it was profiled.

    Raises:
        UserError: the label has no recorded candidates of trees.
    """
    profiled = profile.header.methods.get(label)  # None if it is not in the profile
    kind = find_kind(profiled.kind) if profiled is not None else None
    if kind is None or not kind.has_candidates:
        raise UserError(f"{label} has no recorded tree.", "Methods with heads have one.")

    def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
        """The draft after `position` tokens of an answer; `wanted_length` is not used."""
        num_right = kind.longest_path(answer, label, position)  # tokens on the best path
        # The number of accepted tokens is certain.
        return certain(num_nodes=1 + num_right, num_accepted=num_right)

    return [walk_of(answer, draft_at) for answer in profile.answers]


def walk_of(answer: Answer, draft_at: DraftAt) -> Walk:
    """Compute the expected steps over one of vanilla's answers, from the second token on.

    The prefill emits the first token. A position is a number of tokens of the answer so far. The
    expected number of steps at a position is the expected number of earlier steps that end there.
    It is one or zero unless draft tokens are drawn. With a schedule of draft lengths, there is a
    step per position and per draft length that is wanted there.

    Args:
        answer: the tokens that the steps emit, with the drafts that were recorded along them.
            `about` has their number, the prompt's number of tokens and its name.
        draft_at: returns the draft at a position of the answer, of the length that a schedule
            asks for (None: the setting's), with the chance of each number of accepted tokens.
    """
    # visits(1) = 1,  visits(t + a + 1) += visits(t) * P(a tokens are accepted at t)
    num_tokens = answer.about.num_tokens
    # per position: the expected number of steps, by the draft length that is wanted
    visits: list[defaultdict[int | None, float]] = [
        defaultdict(float) for _ in range(num_tokens + 1)
    ]
    visits[1][None] = 1  # the first step, with the setting's own draft length
    steps: list[Step] = []
    num_expanded = 0  # expansions of dynamic trees: nodes whose children were drafted
    num_missed = 0  # expansions that the profile lacks
    for position in range(1, num_tokens):
        for wanted_length, num_visits in visits[position].items():
            draft = draft_at(answer, position, wanted_length)
            mean_emitted = 0.0
            for outcome in draft.outcomes:  # a number of accepted tokens with its chance
                # 1: the target's own token. The last step is cut at the answer's end.
                num_emitted = min(outcome.num_accepted + 1, num_tokens - position)
                mean_emitted += outcome.chance * num_emitted
                next_length = outcome.next_length
                if next_length is None:  # as long as this draft
                    next_length = wanted_length
                visits[position + num_emitted][next_length] += num_visits * outcome.chance
            # `before`: the target has read all emitted tokens but the last. `times`: how often the
            # step is expected.
            step = Step(
                emitted=mean_emitted, rows=draft.num_nodes, before=position - 1, times=num_visits
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
    """Describe the first option of a setting that a profiled method does not cover.

    The result is a clause of an error, or "" if the method covers all options. The method's
    kind of profile says which options may differ from the recorded ones. A free option may have any
    value. A bounded option may not be larger. Any other option must be equal if the user named it
    for the setting or for the profile.

    Args:
        label: the method as it was profiled.
        recorded: the method in the profile: its kind, and the options of its drafts.
        method: the same method with the options of the setting.
    """
    kind = find_kind(recorded.kind)
    choice = read_label(label)  # the method, with the options of the label
    named_options = {*method.asked.given, *choice.given}  # the setting's, and the profile's
    for name, recorded_value in recorded.about.options.items():
        wanted_value = getattr(method.options, name)
        if name in kind.bounded_options and wanted_value > recorded_value:
            return f"{name} is {wanted_value}, but the profile allows at most {recorded_value}"
        is_fixed = name not in kind.free_options and name in named_options
        if is_fixed and wanted_value != recorded_value:
            return f"{name} is {wanted_value!r}, but the profile has {recorded_value!r}"
    return ""


def _drafts_of(profile: Profile, setting: str) -> DraftAt:
    """Make a function that returns the draft of a setting at a position of a stored answer.

    The drafts are replayed from the profile; a method that reads only tokens drafts again.

    Args:
        profile: has vanilla's answers, and what methods draft at each position.
        setting: a method with options, as on the command line.

    Raises:
        UserError: a method or option is unknown, or no drafts are recorded with these options.
    """
    method = profile.method_of(setting)
    reasons = []  # why the profile's entries of this method do not cover the setting
    for label, recorded in profile.header.methods.items():
        kind = find_kind(recorded.kind)
        # `is_recorded` is False for kinds that draft again from the tokens.
        if recorded.about.name == method.method.name and kind.is_recorded:
            reason = misfit(label, recorded, method)  # "" if the entry covers the setting
            if not reason:
                return kind.replay(profile, label, method)
            reasons.append(reason)
    if reasons:
        raise UserError(
            f"The profile does not cover {method.label}: {reasons[0]}.",
            f"Make another: specbench tune profile --method '{method.label}' --out DIR",
        )
    # The method was not recorded. This raises an error unless its drafts follow from the tokens.
    return find_kind("text").replay(profile, method.label, method)
