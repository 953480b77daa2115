"""Find the fastest settings of methods on this machine: profile, cost, predict, then measure.

Settings are chosen on one half of the prompts. Expected and measured speedups are for the other
half.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from specbench.log.run import Run
from specbench.measure.base import Progress
from specbench.measure.continued_run import continued_run
from specbench.measure.local.engine_load import load_model
from specbench.measure.plan import make_plan
from specbench.measure.progress import Lines
from specbench.settings.cost_curve import CURVE_FILE, Curve, read_curve
from specbench.settings.cost_model import CostModel
from specbench.settings.json_files import Compared, check_same
from specbench.settings.speedup import NUM_RESAMPLES
from specbench.tune.choice import Choice, choose, paper_of
from specbench.tune.cost import about_of, measured_curve
from specbench.tune.engine_plan import EnginePlan, Say, make_engine_plan
from specbench.tune.predict import predict_with
from specbench.tune.profile_file import PROFILE_FILE, Profile
from specbench.tune.profile_reading import read_profile
from specbench.tune.ranking import halves, ranked_settings, settings_to_measure
from specbench.tune.recording import recorded_plan
from specbench.tune.results import write_results
from specbench.types import BASELINE

DEFAULT_NUM_PROMPTS = 4
"""The prompts per task without --limit. Each half has two, so that a tune takes minutes."""
NUM_DRAWN = 2
"""The number of settings, drawn from the rest, that are measured to test the predictions."""
SHORT_MINUTES = 2
"""With a goal of at most this many minutes, only one setting is drawn."""
CURVE_SHARE = 3
"""The cost curve gets 1 / CURVE_SHARE of the minutes."""
_ANOTHER_FOLDER = "Give --out another folder."
"""The advice if a folder has parts of another tune."""
CHANGED = 1.2
"""The machine's speed counts as changed if two times of vanilla's step differ by this factor."""
CHANGED_WARNING = (
    "Vanilla's step took {:.0%} of its time in the cost curve: the machine's speed changed. "
    "--settings auto will not use these settings. Repeat on an idle machine, with another --out."
)


def tune(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path,
    minutes: float | None = None,
    offline: bool = False,
    say: Say | None = None,
    progress: Progress | None = None,
    chosen: Callable[[Sequence[Choice]], None] | None = None,
    **values: Any,
) -> list[Choice]:
    """Find the fastest settings of methods on this machine, and measure them.

    `tune("tiny", "eagle2,medusa", output="tunes/mine", minutes=2)`

    The folder gets `profile/`, `cost/` and `run/`, which a second call uses again, and
    `predictions.csv`, a plot and `settings.toml`. `--settings auto` may take these settings later.

    Args:
        model: a known model, a folder or a Hub id.
        methods: their options bound the settings that are tried; if empty, a plain run's methods.
        output: the folder of the tune.
        minutes: a goal for the whole tune; it decides how many settings and measurements it has.
        offline: use no network.
        say: receives a line per finished sample and message.
        progress: receives the events, in place of `say`.
        chosen: receives the choices before they are written.
        values: further fields of `specbench.log.spec.SpecValues` by name, such as `tasks`.

    Raises:
        UserError: a wrong option, or the folder has a part for another model or machine.
    """
    folder = Path(output)
    progress = progress or Lines(say or (lambda text: None))
    if "limit" not in values and "sample" not in values:  # the user does not limit the prompts
        values["limit"] = DEFAULT_NUM_PROMPTS
    engine_plan = make_engine_plan(model, methods, values, offline=offline)
    profile = _profile_in(folder / "profile", engine_plan, progress)  # what methods draft
    curve_minutes = minutes / CURVE_SHARE if minutes else None  # None: no bound
    curve = _curve_in(folder / "cost", engine_plan, curve_minutes, progress)  # times of steps
    _check_methods(folder, profile, curve)  # raises if they have different methods
    cost_model = CostModel(curve, NUM_RESAMPLES)
    prompts = halves(profile)  # names: the first half to choose by, the second to measure on
    progress.message("Predicting …")
    ranked_by_label = {  # settings by a method's label, the fastest by prediction first
        label: ranked_settings(profile, cost_model, label, prompts.first)
        for label in engine_plan.setup.labels
        if label in curve.methods
    }
    num_drawn = 1 if minutes is not None and minutes <= SHORT_MINUTES else NUM_DRAWN
    settings_by_method = _settings_by_method(engine_plan, ranked_by_label, num_drawn)  # to measure
    run = _run_settings(folder / "run", engine_plan, settings_by_method, prompts.second, progress)
    metrics = measure(run)
    is_steady = _is_steady(metrics, curve, progress)  # if not, `--settings auto` gets nothing
    choices = _choices(cost_model, profile, settings_by_method, prompts.second, metrics)
    if chosen:
        chosen(choices)
    write_results(folder, choices, engine_plan.setup, run, is_steady=is_steady)
    return choices


def _choices(
    cost_model: CostModel,
    profile: Profile,
    settings_by_method: Mapping[str, Sequence[str]],
    answers: Collection[str],
    metrics: RunMetrics,
) -> list[Choice]:
    """Choose the setting of each method among those measured, with predictions for `answers`."""
    return [
        choose(
            label,
            profile.methods_of(settings),
            predict_with(cost_model, profile, settings, prompts=answers, is_strict=False),
            metrics,
        )
        for label, settings in settings_by_method.items()
    ]


def _profile_in(folder: Path, engine_plan: EnginePlan, progress: Progress) -> Profile:
    """Read the profile in a folder; or record a new profile, and store it there.

    A new profile has all methods of the plan that can have one. Others are left out, not refused
    (`is_named=False`). `progress` receives messages.

    Raises:
        UserError: the stored profile does not fit the plan, or a new one cannot be written.
        SpecbenchError: vanilla failed, or no method reproduced its answers.
    """
    if (folder / PROFILE_FILE).is_file():
        profile = read_profile(folder)
        _check_profile(folder, profile, engine_plan)
        progress.message(f"Profile: read from {folder}")
        return profile
    progress.message("Recording the profile …")
    profile = recorded_plan(engine_plan, progress, is_named=False)
    profile.write(folder)
    return profile


def _check_profile(folder: Path, profile: Profile, engine_plan: EnginePlan) -> None:
    """Refuse a stored profile that does not fit the plan of this tune.

    `folder` is the folder of the profile, which errors name.

    Raises:
        UserError: the model, a method's weights, the sampling, the prompts or the most tokens of
            an answer differ, or the profile has a method that the plan lacks.
    """
    plan = engine_plan.plan
    # Raises for another model, or other weights of a method that both have.
    profile.check(plan.about.model, plan.about.methods)
    stored_sampling = Compared("temperature", profile.header.sampling, engine_plan.sampling)
    title = f"The profile in {folder} was made with another temperature, top-p or top-k:"
    check_same(title, ("in the profile", "here"), [stored_sampling], _ANOTHER_FOLDER)
    # a hash per set of prompts
    stored_hashes = [prompts.sha256 for prompts in profile.header.prompts]
    planned_hashes = [prompt_set.describe().sha256 for prompt_set in plan.prompt_sets]
    has_same_prompts = stored_hashes == planned_hashes
    has_same_lengths = profile.header.max_new_tokens == plan.max_new_tokens
    unplanned_labels = {*profile.header.methods} - {*engine_plan.setup.labels}
    if not (has_same_prompts and has_same_lengths) or unplanned_labels:
        message = f"{folder} has a profile for other prompts, lengths or methods."
        raise UserError(message, _ANOTHER_FOLDER)


def _curve_in(
    folder: Path, engine_plan: EnginePlan, minutes: float | None, progress: Progress
) -> Curve:
    """Read the cost curve in a folder; or measure a new curve, and store it there.

    No block (a measurement of everything) of a new curve begins after `minutes`; None sets no such
    bound. `progress` receives messages.

    Raises:
        UserError: the stored curve is of another machine, model or version.
    """
    if (folder / CURVE_FILE).is_file():
        curve = read_curve(folder)
        # raises if a curve that is measured now would have another machine, target or version
        curve.check(about_of(engine_plan.setup, load_model(engine_plan.setup)))
        progress.message(f"Cost curve: read from {folder}")
        return curve
    progress.message("Measuring the cost curve …")
    curve = measured_curve(engine_plan, minutes, progress)
    curve.write(folder)
    return curve


def _check_methods(folder: Path, profile: Profile, curve: Curve) -> None:
    """Refuse a profile and a curve that have different methods.

    Raises:
        UserError: the two in the folder have different methods.
    """
    if {*curve.methods} != {*profile.header.methods} - {BASELINE}:
        profiled = ", ".join(profile.header.methods)
        measured = ", ".join(curve.methods)
        message = f"{folder} has a profile for {profiled} and a cost curve for {measured}."
        raise UserError(message, _ANOTHER_FOLDER)


def _settings_by_method(
    engine_plan: EnginePlan, ranked: Mapping[str, Sequence[str]], num_drawn: int
) -> dict[str, list[str]]:
    """Pick the settings to measure, by method as the user spelled it.

    They are the fastest by prediction, the paper's, and settings drawn at random from the rest.
    Only the paper's setting is measured for a method without a profile.

    Args:
        engine_plan: names the methods.
        ranked: settings by method label, the fastest by prediction first; lacks methods without a
            profile.
        num_drawn: settings to draw per method.
    """
    random = Random(0)
    settings_by_method = {}
    for method in engine_plan.setup.methods:
        if method.label != BASELINE:  # vanilla has no settings
            asked = str(method.asked)  # the method with options, as the user spelled it
            settings = ranked.get(method.label, ())
            settings_by_method[asked] = settings_to_measure(
                settings, paper_of(asked), random, num_drawn
            )
    return settings_by_method


def _run_settings(
    folder: Path,
    engine_plan: EnginePlan,
    settings: Mapping[str, Sequence[str]],
    prompts: Collection[str],
    progress: Progress,
) -> Run:
    """Run all settings as methods of one ordinary run, with two passes over the prompts.

    Returns the run. A run that is stored in the folder is continued.

    Args:
        folder: folder of the run.
        engine_plan: names the model and the prompts.
        settings: by method, the settings to measure: methods with options, as on the command line.
        prompts: names "task/sample_id/turn" of answers; the run has these samples with all turns.
        progress: receives the events.

    Raises:
        UserError: the folder has a run with other inputs, or of another machine or version.
    """
    all_settings = tuple(chain.from_iterable(settings.values()))
    spec = msgspec.structs.replace(engine_plan.plan.spec, methods=all_settings, repeats=2)
    plan = make_plan(spec, is_offline=engine_plan.is_offline)
    sample_names = {name.rpartition("/")[0] for name in prompts}  # "task/sample_id"
    prompt_sets = []  # the plan's sets, reduced to the prompts of these samples
    for prompt_set in plan.prompt_sets:
        task = prompt_set.task.name
        task_prompts = tuple(
            prompt for prompt in prompt_set.prompts if f"{task}/{prompt.sample_id}" in sample_names
        )
        if task_prompts:
            prompt_sets.append(replace(prompt_set, prompts=task_prompts))
    plan = replace(plan, prompt_sets=tuple(prompt_sets))
    return continued_run(plan, folder, progress)


def _is_steady(metrics: RunMetrics, curve: Curve, progress: Progress) -> bool:
    """Check that vanilla's step took about as long in the run as in the cost curve.

    Also True if the run has no time of vanilla's step. If False, `progress` receives a warning.
    """
    step_s = metrics.cost(BASELINE, metrics.temperatures[0]).step_s
    if not isinstance(step_s, Estimate):  # missing
        return True
    ratio = step_s.value / curve.vanilla_s
    if 1 / CHANGED < ratio < CHANGED:
        return True
    progress.message(CHANGED_WARNING.format(ratio))
    return False
