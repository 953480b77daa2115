"""The fastest settings of methods here: profile, cost, predict, then measure.

Settings are chosen on one half of the prompts. Expected and measured speedups are of the other
half.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from specbench.log.files import write_whole
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.measure.base import Plan, Progress
from specbench.measure.local.engine_load import load_model
from specbench.measure.plan import make_plan
from specbench.measure.progress import Lines
from specbench.measure.session import run_plan
from specbench.settings.cost_curve import CURVE_FILE, Curve, read_curve
from specbench.settings.cost_model import CostModel
from specbench.settings.run_method import parse_methods
from specbench.settings.speedup import NUM_RESAMPLES
from specbench.tune.candidates import candidates, spelling
from specbench.tune.choice import Choice, choose, paper_of
from specbench.tune.cost import about_of, measured_curve
from specbench.tune.engine_plan import EnginePlan, Say, engine_plan
from specbench.tune.kind import find_kind
from specbench.tune.predict import predict_with
from specbench.tune.profile_file import PROFILE_FILE, Profile, read_profile
from specbench.tune.recording import recorded_plan
from specbench.tune.results import write_results
from specbench.types import BASELINE

DEFAULT_NUM_PROMPTS = 4
"""Prompts of a task without --limit: two for each half, so that a tune takes minutes."""
NUM_SCREENING_ANSWERS = 6
"""Answers that all settings of a method are predicted for."""
NUM_KEPT = 12
"""Settings that are then predicted for all answers of the first half, the fastest of those."""
NUM_BEST = 2
"""Settings of a method that are measured since they are the fastest by prediction."""
NUM_DRAWN = 2
"""Settings that are drawn from the rest and measured, which shows how good predictions are."""
SHORT_MINUTES = 2
"""Goal up to which only one of those is measured."""
CURVE_SHARE = 3
"""The part of the time that the cost curve gets: one in this many minutes."""
CHANGED = 1.2
"""Ratio of vanilla's step times above which the speed of the machine has changed."""
CHANGED_WARNING = (
    "Vanilla's step took {:.0%} of its time in the cost curve: the machine's speed changed."
)


class Halves(NamedTuple):
    """Names of the answers to choose settings by, and of those to measure them on."""

    first: set[str]
    second: set[str]


def tune(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path,
    minutes: float | None = None,
    offline: bool = False,
    say: Say | None = None,
    progress: Progress | None = None,
    **values: Any,
) -> list[Choice]:
    """Find the fastest settings of methods on this machine, and measure them.

    `tune("tiny", "eagle2,medusa", output="tunes/mine", minutes=2)`

    What is in the folder already is not made again. The folder gets `profile/`, `cost/`,
    `run/`, `settings.toml`, `predictions.csv` and plots.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, which bound what is tried.
        output: the folder.
        minutes: a goal for the whole, kept by fewer blocks of the curve and fewer drawn settings.
        offline: use no network.
        say: receives a line per finished sample and message.
        progress: receives the events instead.
        values: further fields of `specbench.log.spec.SpecValues`, as `profile` takes them.

    Raises:
        UserError: what `profile` and `cost` refuse, or a folder of another model, machine or
            version.
    """
    folder = Path(output)
    progress = progress or Lines(say or (lambda text: None))
    if "limit" not in values and "sample" not in values:
        values["limit"] = DEFAULT_NUM_PROMPTS
    made = engine_plan(model, methods, values, offline=offline)
    profile = _profile_in(folder / "profile", made, progress)
    curve = _curve_in(folder / "cost", made, minutes / CURVE_SHARE if minutes else None, progress)
    _check_methods(folder, profile, curve)
    cost_model = CostModel(curve, NUM_RESAMPLES)
    prompts = halves(profile)
    progress.message("Predicting …")
    draw = Random(0)
    num_drawn = 1 if minutes is not None and minutes <= SHORT_MINUTES else NUM_DRAWN
    settings: dict[str, list[str]] = {}
    for method in made.setup.methods:
        if method.label == BASELINE:
            continue
        ranked: list[str] = []
        if method.label in curve.methods:
            trees = folder / "trees"
            ranked = ranked_settings(profile, cost_model, method.label, prompts.first, trees)
        asked = str(method.asked)
        settings[asked] = _measured_settings(ranked, paper_of(asked), draw, num_drawn)
    all_settings = tuple(setting for of_method in settings.values() for setting in of_method)
    spec = msgspec.structs.replace(made.plan.spec, methods=all_settings, repeats=2)
    run_of_settings = make_plan(spec, is_offline=offline)
    run = _run_in(folder / "run", run_of_settings, prompts.second, progress)
    metrics = measure(run)
    _compare_steps(metrics, curve, progress)
    choices = []
    for label, tried in settings.items():
        predictions = predict_with(
            cost_model, profile, tried, prompts=prompts.second, is_strict=False
        )
        choices.append(choose(label, tried, predictions, metrics))
    write_results(folder, choices, made.setup, run)
    return choices


def _profile_in(folder: Path, made: EnginePlan, progress: Progress) -> Profile:
    """The profile stored in a folder, or a new one of all methods that can have one."""
    if (folder / PROFILE_FILE).is_file():
        profile = read_profile(folder)
        _check_profile(folder, profile, made)
        progress.message(f"Profile: that in {folder}")
        return profile
    progress.message("Profile …")
    profile = recorded_plan(made, progress, is_named=False)
    profile.write(folder)
    return profile


def _check_profile(folder: Path, profile: Profile, made: EnginePlan) -> None:
    """Refuse a stored profile of another model or of other work.

    Raises:
        UserError: model, weights, prompts, lengths or methods differ.
    """
    plan = made.plan
    profile.check(plan.about.model, plan.about.methods)
    stored_prompts = [prompts.sha256 for prompts in profile.header.prompts]
    prompts = [prompt_set.describe().sha256 for prompt_set in plan.prompt_sets]
    is_same = stored_prompts == prompts
    is_same = is_same and profile.header.max_new_tokens == plan.max_new_tokens
    if not is_same or {*profile.header.methods} - {*made.setup.labels}:
        message = f"{folder} has a profile of other prompts, lengths or methods."
        raise UserError(message, "Give --out another folder.")


def _curve_in(folder: Path, made: EnginePlan, minutes: float | None, progress: Progress) -> Curve:
    """The cost curve stored in a folder, or a new one."""
    if (folder / CURVE_FILE).is_file():
        curve = read_curve(folder)
        curve.check(about_of(made.setup, load_model(made.setup)))
        progress.message(f"Cost curve: that in {folder}")
        return curve
    progress.message("Cost curve …")
    curve = measured_curve(made, minutes, progress)
    curve.write(folder)
    return curve


def _check_methods(folder: Path, profile: Profile, curve: Curve) -> None:
    """Refuse a profile and a curve of different methods.

    Raises:
        UserError: a folder has them.
    """
    if {*curve.methods} != {*profile.header.methods} - {BASELINE}:
        profiled = ", ".join(profile.header.methods)
        measured = ", ".join(curve.methods)
        message = f"{folder} has a profile of {profiled} and a cost curve of {measured}."
        raise UserError(message, "Give --out another folder.")


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


def _measured_settings(
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


def _run_in(folder: Path, plan: Plan, prompts: Collection[str], progress: Progress) -> Run:
    """An ordinary run of a plan on some of its prompts; a stored one is continued.

    Raises:
        UserError: the folder has a complete run of other settings.
    """
    if (folder / HEADER).is_file():
        stored = read_run(folder)
        if stored.header.status == "complete":
            stored_methods = [label for label in stored.header.methods if label != BASELINE]
            labels = {method.label for method in parse_methods(plan.spec.methods)}
            if {*stored_methods} != labels:
                message = f"{folder} has a run of {', '.join(stored_methods)}."
                raise UserError(message, "Give another --out.")
            return stored
    progress.message("Measuring …")
    samples = {name.rpartition("/")[0] for name in prompts}
    prompt_sets = []
    for prompt_set in plan.prompt_sets:
        task = prompt_set.task.name
        kept = [prompt for prompt in prompt_set.prompts if f"{task}/{prompt.sample_id}" in samples]
        if kept:
            prompt_sets.append(replace(prompt_set, prompts=tuple(kept)))
    return run_plan(replace(plan, prompt_sets=tuple(prompt_sets)), folder, progress, given=())


def _compare_steps(metrics: RunMetrics, curve: Curve, progress: Progress) -> None:
    """Say if vanilla's steps took another time in the run than in the curve."""
    step_s = metrics.cost(BASELINE, metrics.temperatures[0]).step_s
    if not isinstance(step_s, Estimate):
        return
    ratio = step_s.value / curve.vanilla_s
    if not 1 / CHANGED < ratio < CHANGED:
        progress.message(CHANGED_WARNING.format(ratio))
