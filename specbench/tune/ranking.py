"""Rank the settings of a method by prediction, and pick those that are measured.

They are the fastest by prediction, the paper's, and others drawn at random.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from random import Random
from typing import NamedTuple

from specbench.settings.cost_model import CostModel
from specbench.tune.candidates import candidates, spelling
from specbench.tune.kind import find_kind
from specbench.tune.predict import predict_with
from specbench.tune.profile_file import Profile

NUM_SCREENING_ANSWERS = 6
"""Every setting of a method is first predicted for at least this number of answers, or for all."""
NUM_KEPT = 12
"""The number of the fastest settings that are then predicted for all answers of the first half."""
NUM_BEST = 2
"""The number of the fastest settings by prediction that are measured for each method."""


class Halves(NamedTuple):
    """The names of the answers for choosing settings, and of those for measuring them."""

    first: set[str]
    second: set[str]


def halves(profile: Profile) -> Halves:
    """Divide a profile's answers into a half to choose settings by and a half to measure them on.

    The result has names, "task/sample_id/turn". The samples of a task go to the first and the
    second half alternately, with all turns. If no task has a second sample, both halves have all
    names.
    """
    split = Halves(first=set(), second=set())
    # by task: the number of each sample ("task/sample_id") within its task, from 0
    numbers_by_task: dict[str, dict[str, int]] = {}
    for answer in profile.answers:
        answer_name = answer.about.prompt  # "task/sample_id/turn"
        task = answer_name.partition("/")[0]
        sample = answer_name.rpartition("/")[0]  # "task/sample_id"
        sample_numbers = numbers_by_task.setdefault(task, {})
        sample_number = sample_numbers.setdefault(sample, len(sample_numbers))
        split[sample_number % 2].add(answer_name)  # 0 is `first`, 1 is `second`
    return split if split.second else Halves(first=split.first, second=split.first)


def ranked_settings(
    profile: Profile, model: CostModel, label: str, prompts: Collection[str]
) -> list[str]:
    """List the settings of a method that can be tried, the fastest by prediction first.

    Settings are spelled as on the command line. All settings are predicted for a few answers. Then
    the `NUM_KEPT` fastest are predicted again for all answers to `prompts`, and ranked anew; the
    rest follow. Settings outside of profile or curve are left out.

    Args:
        profile: has the method.
        model: computes times from a cost curve that has the method too.
        label: the method as it was profiled.
        prompts: names ("task/sample_id/turn") of the answers to choose by.
    """

    def by_speed(settings: Sequence[str], answer_names: Collection[str]) -> list[str]:
        """Sort settings by their predicted speed for these answers, the fastest first."""
        predictions = predict_with(model, profile, settings, prompts=answer_names, is_strict=False)
        # settings that profile or curve do not cover get no prediction
        fastest_first = sorted(predictions, key=lambda prediction: -prediction.speedup)
        return [prediction.settings for prediction in fastest_first]

    # every n-th name, so that at least `NUM_SCREENING_ANSWERS` are left
    stride = max(1, len(prompts) // NUM_SCREENING_ANSWERS)
    screening_prompts = set(sorted(prompts)[::stride])
    # the usual settings to try, and settings with trees made for all answers to `prompts`
    settings = [*candidates(profile, label), *_tree_settings(profile, label, prompts)]
    ranked = by_speed(settings, screening_prompts)
    # The settings after the first `NUM_KEPT` stay in the order of the first prediction.
    return by_speed(ranked[:NUM_KEPT], prompts) + ranked[NUM_KEPT:]


def settings_to_measure(
    ranked: Sequence[str], paper: str, draw: Random, num_drawn: int
) -> list[str]:
    """Pick settings of a method to measure: the best, the paper's, and some drawn from the rest.

    `ranked` has all settings, the fastest by prediction first. `draw` draws from the rest.
    """
    chosen = [*ranked[:NUM_BEST], paper]
    rest = [setting for setting in ranked if setting not in chosen]
    drawn = draw.sample(rest, min(num_drawn, len(rest)))
    return [*dict.fromkeys([*chosen, *drawn])]


def _tree_settings(profile: Profile, label: str, prompts: Collection[str]) -> list[str]:
    """Spell settings with the best static trees of several sizes, as on the command line.

    Args:
        profile: has the method.
        label: the method as it was profiled.
        prompts: names of the answers that the trees are made for.
    """
    kind = find_kind(profile.header.methods[label].kind)
    # A tree is a list of paths, one per node, such as (0, 2). It is empty if no answer has a token
    # with a rank.
    trees = kind.best_trees(profile, label, prompts).values()
    return [
        spelling(profile, label, {"tree": json.dumps(sorted(paths))}) for paths in trees if paths
    ]
