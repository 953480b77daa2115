"""Predict the speedup of settings, with steps from a profile and times from a cost curve."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specbench.errors import UserError
from specbench.settings.cost_curve import MEASURE_HINT, Curve
from specbench.settings.cost_model import CostModel
from specbench.settings.json_files import Compared, check_same
from specbench.settings.run_method import RunMethod
from specbench.settings.speedup import NUM_RESAMPLES, estimate, weigh
from specbench.settings.walk import mat
from specbench.tune.candidates import candidates
from specbench.tune.labels import read_label
from specbench.tune.profile_file import Profile
from specbench.tune.replay import replay


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speedup of a setting over all tasks, with its 95 % interval."""

    method: str
    """The registered name of the method."""
    settings: str
    """The setting as it is spelled on the command line."""
    options: dict[str, Any]
    """The options that `settings` names, with their values."""
    speedup: float
    """The mean over tasks."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""
    mat: float
    """The mean accepted tokens of the replayed steps."""
    threads: int
    """The number of CPU threads that the setting decodes with."""
    seconds: float
    """The predicted seconds of all answers with the setting."""
    missed: float
    """The share of the expansions of dynamic trees that the profile lacks."""
    machine: str
    """The machine of the cost curve."""


def predict(
    profile: Profile,
    curve: Curve,
    settings: Sequence[str] | None = None,
    *,
    prompts: Collection[str] | None = None,
    is_strict: bool = True,
) -> list[Prediction]:
    """Predict the speedup of settings on the machine of a cost curve, in the order of the settings.

    `predict(profile, curve, ["eagle2:total_tokens=12,depth=3,top_k=4", "pld"])`

    Args:
        profile: a profile of the curve's model, number format and temperature.
        curve: the cost curve of a machine.
        settings: methods with options; by default all of `candidates`.
        prompts: names of the answers to predict for; by default all.
        is_strict: False leaves out settings outside of the profile or the curve. Without
            `settings`, they are always left out.

    Raises:
        UserError: profile and curve do not fit together, or a setting is outside of one of them.
    """
    model = CostModel(curve, NUM_RESAMPLES)
    return predict_with(model, profile, settings, prompts=prompts, is_strict=is_strict)


def predict_with(
    model: CostModel,
    profile: Profile,
    settings: Sequence[str] | None = None,
    *,
    prompts: Collection[str] | None = None,
    is_strict: bool = True,
) -> list[Prediction]:
    """Predict the speedup of settings on the machine of a cost curve.

    Returns a prediction per setting, in the order of the settings. `predict` does the same with a
    curve in place of a cost model; a cost model serves several calls.

    Args:
        model: computes the time of steps and prefills from the curve (`model.curve`).
        profile: has what methods draft at each position of vanilla's answers.
        settings: methods with options, as on the command line; by default all candidates of the
            methods that profile and curve both have, less those outside of the curve.
        prompts: names of the prompts whose answers are predicted; by default all.
        is_strict: raise for a setting outside of profile or curve, or with a wrong name or value;
            False leaves the setting out.

    Raises:
        UserError: profile and curve do not fit together; or, if strict, for such a setting.
    """
    _check_fit(profile, model.curve)  # raises if they differ in model, dtype or temperature
    answers = tuple(
        answer for answer in profile.answers if prompts is None or answer.about.prompt in prompts
    )
    profile_of_prompts = replace(profile, answers=answers)
    if settings is None:
        is_strict = False  # a candidate may be outside of the curve
        # a label is a method as it was profiled; its candidates are the settings that a tune tries
        settings = [
            setting
            for label in model.curve.methods
            if label in profile.header.methods
            for setting in candidates(profile, label)
        ]
    predictions = []
    for setting in settings:
        try:
            predictions.append(_predict_setting(profile_of_prompts, model, setting))
        except UserError:
            if is_strict:
                raise
    return predictions


def _check_fit(profile: Profile, curve: Curve) -> None:
    """Refuse a profile and a curve that were not made for the same work.

    Raises:
        UserError: the model, the number format or the temperature differs.
    """
    header = profile.header
    values_of_profile = {
        "model": header.model.name,
        "dtype": header.model.dtype,
        "quantization": header.model.quantization,
        "temperature": str(header.sampling),
    }
    check_same(
        "The profile and the cost curve do not fit together:",
        ("in the profile", "in the curve"),
        [Compared(name, value, curve.about[name]) for name, value in values_of_profile.items()],
        "Make both with the same --model, --dtype and --temperature.",
    )


def _predict_setting(profile: Profile, model: CostModel, setting: str) -> Prediction:
    """Predict the speedup of a setting over all answers of a profile.

    Args:
        profile: has vanilla's answers, and the drafts that the setting's steps are replayed from.
        model: computes the time of the steps from a cost curve.
        setting: a method with options, as on the command line.

    Raises:
        UserError: the setting is outside of the profile or of the curve, or names an unknown
            method or option, or a wrong value.
    """
    method = profile.method_of(setting)
    curve = model.curve
    label = curve_label(curve, method)  # the spelling of the method in the curve
    options = asdict(method.options)  # all options of the setting, by name
    walks = replay(profile, setting)  # the steps of the setting over each answer
    # How often vanilla and the setting pay each cost of the curve, with a row per sample. A row is
    # the sum over the answers to all turns of the prompt.
    cost_weights = weigh(walks, model, label, options)
    estimated = estimate(cost_weights, model, label)
    # expansions of dynamic trees (nodes whose children were drafted), and those not recorded
    num_expanded = sum(walk.num_expanded for walk in walks)
    num_missed = sum(walk.num_missed for walk in walks)
    return Prediction(
        method=method.method.name,
        settings=setting,
        # only the options that `setting` names
        options={name: options[name] for name in method.asked.given},
        speedup=estimated.speedup,
        # the 95 % interval of log(speedup) is log(speedup) +- `half_width`
        low=estimated.speedup * math.exp(-estimated.half_width),
        high=estimated.speedup * math.exp(estimated.half_width),
        mat=mat(walks),  # mean accepted tokens of all steps
        threads=curve.threads[estimated.thread_index],  # the number that a run would choose
        # `vanilla_steps`: the time of all answers with the setting, in steps of vanilla of
        # `vanilla_s` seconds
        seconds=estimated.vanilla_steps * curve.vanilla_s,
        missed=num_missed / max(1, num_expanded),  # 0 for methods without expansions
        machine=curve.about["machine"],
    )


def curve_label(curve: Curve, method: RunMethod) -> str:
    """Find the label of a method in a cost curve, which has the options that were measured.

    The curve must have the method with the same weights, compared by the last part of their path.
    All other options may differ.

    Raises:
        UserError: the curve lacks the method, or has it with other weights.
    """
    weights_name = Path(method.options.weights).name  # "" for the usual weights
    for label in curve.methods:
        measured = read_label(label)  # the method's name, and its given options as texts
        is_same_method = measured.name == method.method.name
        if is_same_method and Path(measured.given.get("weights", "")).name == weights_name:
            return label
    measured_labels = ", ".join(curve.methods) or "none"
    message = f"The cost curve does not have {method.label}. It has {measured_labels}."
    raise UserError(message, MEASURE_HINT)
