"""Which settings of a method are measured: the fastest by prediction, the paper's, drawn ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from specbench.log.files import write_whole
from specbench.settings.cost_model import CostModel
from specbench.tune.candidates import candidates, spelling
from specbench.tune.kind import find_kind
from specbench.tune.predict import predict_with
from specbench.tune.profile_file import Profile

NUM_SCREENING_ANSWERS = 6
"""Answers that all settings of a method are predicted for."""
NUM_KEPT = 12
"""Settings that are then predicted for all answers of the first half, the fastest of those."""
NUM_BEST = 2
"""Settings of a method that are measured since they are the fastest by prediction."""


class Halves(NamedTuple):
    """Names of the answers to choose settings by, and of those to measure them on."""

    first: set[str]
    second: set[str]


def halves(profile: Profile) -> Halves:
    """The names of the answers to every other sample of each task, and of the rest.

    With a single sample per task, both halves are the same.
    """
    parts = Halves(set(), set())
    numbers_by_task: dict[str, dict[str, int]] = {}
    for answer in profile.answers:
        name = answer.about.prompt
        task, sample = name.partition("/")[0], name.rpartition("/")[0]
        numbers = numbers_by_task.setdefault(task, {})
        number = numbers.setdefault(sample, len(numbers))
        parts[number % 2].add(name)
    return parts if parts.second else Halves(parts.first, parts.first)


def ranked_settings(
    profile: Profile, model: CostModel, label: str, prompts: Collection[str], trees: Path
) -> list[str]:
    """The candidates of a method in profile and curve, the fastest on these prompts first.

    All are predicted for a few answers, and the fastest of those for all.

    Args:
        profile: has the method.
        model: of a curve that has it too.
        label: the method as it was profiled.
        prompts: names of the answers to choose by.
        trees: the folder of files of trees that are made for the method.
    """

    def by_speed(settings: Sequence[str], answers: Collection[str]) -> list[str]:
        predictions = predict_with(model, profile, settings, prompts=answers, is_strict=False)
        fastest_first = sorted(predictions, key=lambda prediction: -prediction.speedup)
        return [prediction.settings for prediction in fastest_first]

    stride = max(1, len(prompts) // NUM_SCREENING_ANSWERS)
    few = set(sorted(prompts)[::stride])
    settings = [*candidates(profile, label), *_tree_settings(profile, label, prompts, trees)]
    ranked = by_speed(settings, few)
    return by_speed(ranked[:NUM_KEPT], prompts) + ranked[NUM_KEPT:]


def settings_to_measure(
    ranked: Sequence[str], paper: str, draw: Random, num_drawn: int
) -> list[str]:
    """The settings of a method that are measured: the best, the paper's, and drawn ones."""
    chosen = [*ranked[:NUM_BEST], paper]
    rest = [setting for setting in ranked if setting not in chosen]
    drawn = draw.sample(rest, min(num_drawn, len(rest)))
    return [*dict.fromkeys([*chosen, *drawn])]


def _tree_settings(
    profile: Profile, label: str, prompts: Collection[str], folder: Path
) -> list[str]:
    """The best static trees of several sizes, as settings; their files are written."""
    kind = find_kind(profile.header.methods[label].kind)
    settings = []
    for rows, paths in kind.best_trees(profile, label, prompts).items():
        if paths:
            folder.mkdir(parents=True, exist_ok=True)
            path = (folder / f"{label.partition(':')[0]}-{rows}.json").resolve()
            write_whole(path, json.dumps(paths).encode())
            settings.append(spelling(profile, label, {"tree": path}))
    return settings
