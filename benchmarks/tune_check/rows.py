"""A sweep of settings, predicted from one half of the prompts and measured on the other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pandas import DataFrame

from benchmarks.tune_check.measured import measured_mat, speedup_on, times_of
from benchmarks.tune_check.settings import label_in
from specbench.log.run import Run
from specbench.settings.cost_model import CostModel
from specbench.settings.speedup import SpeedupEstimate, estimate
from specbench.settings.walk import mat
from specbench.tune import Profile
from specbench.tune.choice import paper_of
from specbench.tune.ranking import halves
from specbench.tune.replay import replay


@dataclass(frozen=True)
class Sweep:
    """Settings with the profile and cost model to predict them, and the run that measured them."""

    profile: Profile
    model: CostModel
    weighed: Mapping[str, DataFrame]
    """For each setting, how often it and vanilla pay each cost. A row is a sample."""
    run: Run

    @cached_property
    def labels(self) -> dict[str, str]:
        """The method of each setting, as the cost curve spells it."""
        return {setting: label_in(self.model.curve, setting) for setting in self.weighed}

    @cached_property
    def profiled(self) -> set[str]:
        """The samples that predictions are made from."""
        return _samples_of(halves(self.profile).first)

    @cached_property
    def measured(self) -> set[str]:
        """The samples on which settings are measured."""
        return _samples_of(halves(self.profile).second)

    def predicted(
        self, setting: str, samples: Collection[str], model: CostModel | None = None
    ) -> SpeedupEstimate:
        """Predict the speedup of a setting on some samples, from the costs of `model` if given."""
        weights = self.weighed[setting]
        of_samples = weights[weights.index.isin(samples)]
        return estimate(of_samples, model or self.model, self.labels[setting])

    def replayed_mat(self, setting: str) -> float:
        """The MAT of a setting on the measured samples, as replayed from the profile."""
        walks = replay(self.profile, setting)
        return mat([walk for walk in walks if walk.prompt.rpartition("/")[0] in self.measured])

    def measured_speedup(self, setting: str) -> float:
        """The speedup of a setting on the measured samples."""
        return speedup_on(times_of(self.run, setting), self.measured).mean


def _samples_of(prompts: Collection[str]) -> set[str]:
    return {prompt.rpartition("/")[0] for prompt in prompts}


class Row(NamedTuple):
    """A setting, as predicted from one half of the prompts and measured on the other half."""

    label: str
    """The method, as the cost curve spells it."""
    setting: str
    """The method with its options."""
    predicted: float
    """Speedup predicted from the first half."""
    predicted_there: float
    """Speedup predicted from the second half, whose prompts are measured."""
    measured: float
    """Speedup measured on the second half."""
    replayed_mat: float
    """MAT on the second half, from the profile."""
    measured_mat: float
    """MAT on the second half, from the run."""

    @property
    def errors(self) -> tuple[float, ...]:
        """Logarithmic errors of the speedup (all, from other prompts, from wrong costs) and MAT."""
        return (
            math.log(self.measured / self.predicted),
            math.log(self.predicted_there / self.predicted),
            math.log(self.measured / self.predicted_there),
            math.log(self.measured_mat / self.replayed_mat),
        )


class Picks(NamedTuple):
    """Settings of a method that are measured again, interleaved."""

    by_prediction: str
    """The setting with the best predicted speedup."""
    of_sweep: str
    """The setting with the best measured speedup."""
    paper: str
    """The paper's setting."""


def measured_rows(sweep: Sweep) -> list[Row]:
    """The rows of all settings."""
    return [
        Row(
            label=label,
            setting=setting,
            predicted=sweep.predicted(setting, sweep.profiled).speedup,
            predicted_there=sweep.predicted(setting, sweep.measured).speedup,
            measured=sweep.measured_speedup(setting),
            replayed_mat=sweep.replayed_mat(setting),
            measured_mat=measured_mat(sweep.run, setting, sweep.measured),
        )
        for setting, label in sweep.labels.items()
    ]


def picks_of(rows: Sequence[Row]) -> dict[str, Picks]:
    """The settings that are measured again, by method."""
    picks = {}
    for label in dict.fromkeys(row.label for row in rows):
        of_method = [row for row in rows if row.label == label]
        predicted_best = max(of_method, key=lambda row: row.predicted).setting
        measured_best = max(of_method, key=lambda row: row.measured).setting
        picks[label] = Picks(predicted_best, measured_best, paper_of(predicted_best))
    return picks
