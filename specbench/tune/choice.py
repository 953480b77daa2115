"""Choose among the measured settings of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats.estimates import Estimate
from specbench.registry import MethodChoice
from specbench.settings.run_method import RunMethod
from specbench.tune.labels import read_label
from specbench.tune.predict import Prediction

NO_SETTINGS = ("weights", "datastore", "scope", "other")
"""Options that name the sources with which a method drafts. They are not settings."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, with its expected and measured speedup on the second half of the prompts."""

    method: RunMethod
    """The method with the setting."""
    predicted: Prediction | None
    """The prediction; None if the profile or the curve does not cover the setting."""
    measured: Estimate | None = None
    """The measured speedup; None if it could not be measured."""

    @property
    def settings(self) -> str:
        """The setting as it is spelled on the command line."""
        return str(self.method.asked)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen setting of a method, the setting of its paper, and all that were measured."""

    label: str
    """The requested method."""
    best: Tried
    """The chosen setting."""
    paper: Tried
    """The paper's setting, with the same weights."""
    tried: tuple[Tried, ...]
    """All settings that were measured, the best by prediction first."""

    @property
    def lines(self) -> list[str]:
        """The result in one to three lines of text.

        They have the chosen setting, the paper's if it differs, and for EAGLE the arguments of
        EAGLE's own scripts.
        """
        lines = [f"{self.best.method.label}: {_speedup_text(self.best)}"]
        if self.best.settings != self.paper.settings:
            lines.append(f"  the paper's {self.paper.method.label}: {_speedup_text(self.paper)}")
        arguments = self.best.method.options.official_arguments
        if arguments:
            lines.append(f"  EAGLE's arguments: {arguments}")
        return lines


def _speedup_text(tried: Tried) -> str:
    """Write the speedup of a setting: "1.92x expected (1.80 to 2.04), 1.95x measured".

    The interval is the 95 % interval of the prediction. Without a prediction there is no expected
    speedup. Without a measured speedup, the setting is "not measured".
    """
    texts = []  # the expected speedup, and the measured one
    predicted = tried.predicted
    if predicted is not None:
        interval = f"{predicted.low:.2f} to {predicted.high:.2f}"
        texts.append(f"{predicted.speedup:.2f}x expected ({interval})")
    if tried.measured is not None:
        texts.append(f"{tried.measured.value:.2f}x measured")
    else:
        texts.append("not measured")
    return ", ".join(texts)


def choose(
    label: str, methods: Sequence[RunMethod], predictions: Sequence[Prediction], metrics: RunMetrics
) -> Choice:
    """Choose a method's setting: the best by prediction, or the paper's if it was faster.

    The paper's setting is also chosen if it was measured and the best by prediction was not.

    Args:
        label: the requested method.
        methods: the method with each of the settings that were measured, the paper's included. The
            first is the best by prediction, or the paper's if there are no predictions.
        predictions: predictions of the settings that both the acceptance profile and the cost curve
            cover.
        metrics: metrics of the run that measured the settings, at one temperature.
    """
    (temperature,) = metrics.temperatures
    # by the spelling of the setting on the command line
    prediction_by_setting = {prediction.settings: prediction for prediction in predictions}
    all_tried = []  # in the order of `methods`
    for method in methods:
        speedup = metrics.overall[method.label, temperature].speedup  # mean over tasks
        measured = speedup if isinstance(speedup, Estimate) else None  # None: not measured
        predicted = prediction_by_setting.get(str(method.asked))  # None: not covered
        all_tried.append(Tried(method, predicted, measured))
    best = all_tried[0]  # by prediction
    paper_setting = paper_of(label)  # as on the command line, with the weights that the user gave
    paper = next(tried for tried in all_tried if tried.settings == paper_setting)
    if _is_faster(paper, best):  # as measured
        best = paper
    return Choice(label, best=best, paper=paper, tried=tuple(all_tried))


def _is_faster(setting: Tried, other: Tried) -> bool:
    """Check if a setting was measured faster than another, or the other was not measured."""
    if setting.measured is None:
        return False
    return other.measured is None or setting.measured.value > other.measured.value


def paper_of(label: str) -> str:
    """Spell a method with its paper's setting. Keep the sources in `label`.

    Sources, such as weights, are the options in `NO_SETTINGS`.
    """
    asked = read_label(label)
    given = {name: value for name, value in asked.given.items() if name in NO_SETTINGS}
    return str(MethodChoice(asked.name, given))
