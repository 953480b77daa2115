"""The settings that are predicted and measured, and their names in cost curves and in records."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress
from random import Random

from pandas import DataFrame

from specbench.errors import UserError
from specbench.measure.spec import RunSpec
from specbench.settings.cost_curve import Curve
from specbench.settings.cost_model import CostModel
from specbench.settings.speedup import weigh
from specbench.tune import Profile
from specbench.tune.candidates import candidates
from specbench.tune.predict import curve_label
from specbench.tune.replay import replay

PAIRS = {"pld": "ngram=3", "suffix": "factor=1.0", "sps": "schedule=heuristic"}
"""An option of each method at its default value. Naming it enters the same setting again."""


def weighed_settings(profile: Profile, model: CostModel, num_settings: int) -> dict[str, DataFrame]:
    """Weigh each method's paper setting, if the curve covers it, and random settings."""
    draw = Random(0)
    num_per_method = math.ceil(num_settings / max(1, len(model.curve.methods)))
    weighed: dict[str, DataFrame] = {}
    for label in model.curve.methods:
        paper, *others = candidates(profile, label)
        of_method: dict[str, DataFrame] = {}
        for setting in [paper, *draw.sample(others, len(others))]:
            (method,) = profile.methods_of([setting])
            with suppress(UserError):  # the curve ends before it
                walks = replay(profile, setting)
                of_method[setting] = weigh(walks, model, label, method.options.as_dict())
            if len(of_method) == num_per_method:
                break
        weighed |= of_method
    return weighed


def twins_of(settings: Collection[str]) -> dict[str, str]:
    """The settings that are entered twice, each with its second spelling."""
    return {
        setting: f"{setting}:{option}" for setting, option in PAIRS.items() if setting in settings
    }


def label_in(curve: Curve, setting: str) -> str:
    """The spelling of a setting's method in a cost curve."""
    (entered,) = RunSpec(methods=(setting,)).run_methods
    return curve_label(curve, entered.load())


def record_label(setting: str) -> str:
    """The name of a setting in records."""
    (method,) = RunSpec(methods=(setting,)).run_methods
    return method.label
