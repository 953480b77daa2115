"""The steps of any setting in a profile over its stored answers: accepted tokens and rows.

A step begins where the last one ended. Nothing is averaged over positions. If the tokens of a chain
are drawn, each number of accepted tokens has a probability, and numbers of steps are expected
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
    """The steps of a method's setting over all answers, in the order of the profile.

    `replay(profile, "eagle2:total_tokens=12,depth=3,top_k=4")`

    With `otherwise`, that setting drafts in the steps for which the first has no draft token:
    `replay(profile, "pld:min_ngram=3", otherwise="sps:num_tokens=4")`.

    Args:
        profile: has vanilla's answers, and what methods draft at each position.
        method_key: a method with options, as on the command line.
        otherwise: another setting; none by default.

    Raises:
        UserError: an unknown method or option, or a setting outside the profile.
    """
    # functions that return a setting's draft at a position (tokens so far) of an answer
    main_draft_at = _drafts_of(profile, method_key)
    other_draft_at = _drafts_of(profile, otherwise) if otherwise else None

    def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
        """The draft after `position` tokens of an answer.

        `wanted_length` is the draft tokens that a schedule asks for; None: the setting's.
        """
        draft = main_draft_at(answer, position, wanted_length)
        if other_draft_at is not None and draft.num_nodes == 1:  # the root alone
            return other_draft_at(answer, position, wanted_length)
        return draft

    return [walk_of(answer, draft_at) for answer in profile.answers]


def oracle(profile: Profile, label: str) -> list[Walk]:
    """The steps of a method if its draft were always the longest right path of its candidates.

    No tree of the recorded candidates has a higher MAT. The rows of a step are that path and the
    root alone. There is a walk per answer of the profile.

    Args:
        profile: has the candidates of the method's trees.
        label: the method as it was profiled.

    Raises:
        UserError: the label has no recorded candidates of trees.
    """
    profiled = profile.header.methods.get(label)  # what the profile says about the method
    kind = find_kind(profiled.kind) if profiled is not None else None
    if kind is None or not kind.has_candidates:
        raise UserError(f"{label} has no recorded tree.", "Methods with heads have one.")

    def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
        """The draft after `position` tokens of an answer; `wanted_length` is for chains."""
        num_right = kind.longest_path(answer, label, position)  # draft tokens
        return certain(num_nodes=1 + num_right, num_accepted=num_right)

    return [walk_of(answer, draft_at) for answer in profile.answers]


def walk_of(answer: Answer, draft_at: DraftAt) -> Walk:
    """The steps over an answer, whose first token is the prefill's.

    The expected number of steps at a position (a number of answer tokens so far) is the expected
    number of earlier steps that end there: one or zero, unless draft tokens are drawn. With a
    schedule of draft lengths, each length at a position has a step of its own.

    Args:
        answer: an answer of vanilla.
        draft_at: returns the draft at a position of the answer, of the length that a schedule
            asks for (None: the setting's), with the chance of each number of accepted tokens.
    """
    # visits(1) = 1,  visits(t + a + 1) += visits(t) * P(a tokens are accepted at t)
    num_tokens = answer.about.num_tokens
    visits: list[defaultdict[int | None, float]] = [
        defaultdict(float) for _ in range(num_tokens + 1)
    ]  # expected number of steps per position, by the draft length that is wanted there
    visits[1][None] = 1  # the first step follows the prefill's token, with the setting's length
    steps: list[Step] = []
    num_expanded = 0  # expansions of dynamic trees: nodes that got children
    num_missed = 0  # expansions that the profile lacks
    for position in range(1, num_tokens):
        for wanted_length, num_visits in visits[position].items():
            draft = draft_at(answer, position, wanted_length)
            mean_emitted = 0.0
            for outcome in draft.outcomes:
                # accepted tokens and one of the target; the last step is cut at the answer's end
                num_emitted = min(outcome.num_accepted + 1, num_tokens - position)
                mean_emitted += outcome.chance * num_emitted
                next_length = outcome.next_length
                if next_length is None:
                    next_length = wanted_length
                visits[position + num_emitted][next_length] += num_visits * outcome.chance
            # `before`: tokens that the target has read, all emitted ones but the last; `times`: how
            # often the step is expected.
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
    """The first option of a setting that a profile does not cover, in words; "" if it covers all.

    Args:
        label: a method as it was profiled.
        recorded: what the profile says about it: its kind, and the options of its drafts.
        method: the same method with the options of a setting; `asked` has those that were named.
    """
    kind = find_kind(recorded.kind)
    profiled = read_label(label)
    given_names = {*method.asked.given, *profiled.given}  # options named by either
    # A bounded option may be smaller than recorded, a free one may have any value. Others have to
    # be the same, unless neither names them.
    for name, recorded_value in recorded.about.options.items():
        wanted_value = getattr(method.options, name)
        if name in kind.bounded_options and wanted_value > recorded_value:
            return f"{name} is {wanted_value}, but the profile allows at most {recorded_value}"
        is_fixed = name not in kind.free_options and name in given_names
        if is_fixed and wanted_value != recorded_value:
            return f"{name} is {wanted_value!r}, but the profile has {recorded_value!r}"
    return ""


def _drafts_of(profile: Profile, setting: str) -> DraftAt:
    """A function that returns the draft of a setting at a position of a stored answer.

    Drafts come from the profile, or from running a method that reads only tokens.

    Args:
        profile: has vanilla's answers, and what methods draft at each position.
        setting: a method with options, as on the command line.

    Raises:
        UserError: the drafts are not recorded, or only with other options.
    """
    (method,) = profile.methods_of([setting])
    misfits = []  # an option per profiled method that does not cover the setting, in words
    for label, recorded in profile.header.methods.items():
        kind = find_kind(recorded.kind)
        # `is_recorded`: False for kinds whose drafts are made again from the tokens
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
    # No recorded method: the text kind raises unless drafts follow from the tokens.
    return find_kind("text").replay(profile, method.label, method)
