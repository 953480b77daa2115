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
"""Options that are not settings: they name the sources that a method drafts with."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting with its expected and measured speedup on the second half of the prompts."""

    method: RunMethod
    """The method with the setting."""
    predicted: Prediction | None
    """The prediction; None if profile or curve does not cover the setting."""
    measured: Estimate | None = None
    """The measured speedup; None if it could not be measured."""

    @property
    def settings(self) -> str:
        """The setting as it is spelled on the command line."""
        return str(self.method.asked)


@dataclass(frozen=True, slots=True)
class Choice:
    """A method's settings: the chosen setting, the paper's, and all that were measured."""

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
        """The result in one to three lines of text: the chosen settings, the paper's if they
        differ, and the arguments of EAGLE's own scripts if the method is one of EAGLE's.
        """
        lines = [f"{self.best.method.label}: {_speedup_text(self.best)}"]
        if self.best.settings != self.paper.settings:
            lines.append(f"  the paper's {self.paper.method.label}: {_speedup_text(self.paper)}")
        arguments = self.best.method.options.official_arguments
        if arguments:
            lines.append(f"  EAGLE's arguments: {arguments}")
        return lines


def _speedup_text(tried: Tried) -> str:
    """The speedup of a setting in words: "1.92x expected (1.80 to 2.04), 1.95x measured".

    The interval is the 95 % interval of the prediction. A setting without a prediction gets no
    expected speedup; a setting without a measured speedup is "not measured".
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
    """Choose a method's settings: the best by prediction, or the paper's if measured faster.

    The paper's settings are also chosen if they were measured and the best by prediction were not.

    Args:
        label: the requested method.
        methods: the method with each of the settings that were measured, the paper's included.
            The first is the best by prediction, or the paper's if there are no predictions.
        predictions: predictions of the settings that are covered by the acceptance profile (drafts
            at each position of vanilla's answers) and the cost curve (times of steps by rows).
        metrics: metrics of the run that measured the settings, at one temperature.
    """
    (temperature,) = metrics.temperatures
    # by the spelling of the setting on the command line
    prediction_by_setting = {prediction.settings: prediction for prediction in predictions}
    all_tried = []  # per method of `methods`, in the same order
    for method in methods:
        speedup = metrics.overall[method.label, temperature].speedup  # mean over tasks
        measured = speedup if isinstance(speedup, Estimate) else None  # None: not measured
        predicted = prediction_by_setting.get(str(method.asked))  # None: not covered
        all_tried.append(Tried(method, predicted, measured))
    best = all_tried[0]  # by prediction
    paper_setting = paper_of(label)  # as on the command line; weights that the user gave stay
    paper = next(tried for tried in all_tried if tried.settings == paper_setting)
    if _is_faster(paper, best):  # as measured
        best = paper
    return Choice(label, best=best, paper=paper, tried=tuple(all_tried))


def _is_faster(setting: Tried, other: Tried) -> bool:
    """True if a setting was measured faster than another, or the other was not measured."""
    if setting.measured is None:
        return False
    return other.measured is None or setting.measured.value > other.measured.value


def paper_of(label: str) -> str:
    """The spelling of a method with its paper's settings, and the sources that `label` names.

    Sources, such as weights, are the options in `NO_SETTINGS`.
    """
    asked = read_label(label)
    given = {name: value for name, value in asked.given.items() if name in NO_SETTINGS}
    return str(MethodChoice(asked.name, given))
