"""The results of a comparison in sentences, which claim only what the tests support."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors.safe_text import few
from specbench.judge.comparison import Comparison
from specbench.judge.pairs import CellPair, Metric, Pair
from specbench.log.header import RunHeader
from specbench.report import facts, formats

_EXACT = 1e-9
"""Rounding: an interval that ends this close to 1 includes 1."""
_TOO_FEW_WHOLE = "not judged: fewer than two passes or runs are complete enough"
_TOO_FEW_SAMPLES = "too few samples for a claim (use a larger --limit)"
_NAMES: Mapping[Metric, str] = {
    "speedup": "Speedup over vanilla",
    "tokens_per_s": "Tokens per second",
    "mat": "MAT",
}


class Letters(NamedTuple):
    """The letters of two compared runs."""

    subject: str
    reference: str


def change_sentences(
    comparison: Comparison, letters: Letters, *, temperature: float, task: str
) -> str:
    """The changes on one task or the mean: vanilla's speed, then the methods' speedups (without
    vanilla, their tokens/s) and MAT.

    Args:
        comparison: the comparison of a run, the subject, with the reference.
        letters: the letters of the two runs.
        temperature: the sampling temperature.
        task: the name of a task, or "mean" for the mean over tasks.
    """
    # Method -> its numbers in both runs. Vanilla's are taken out of `cells`.
    cells = {method: comparison.cell(method, temperature, task) for method in comparison.methods}
    vanilla = cells.pop(BASELINE, None)
    sentences = []
    if vanilla:
        sentences.append(_vanilla_sentence(comparison, letters, vanilla))
        is_compared = not isinstance(vanilla.tokens_per_s.ratio, Missing)
        # is_judged: there are enough runs or passes to judge speed. If not, and no sentence on
        # another method says why, this one does.
        if is_compared and not cells and not comparison.repetition.is_judged:
            sentences.append(no_verdict(comparison))
    if cells:
        speed_metric: Metric = "speedup" if vanilla else "tokens_per_s"
        metrics: tuple[Metric, ...] = (speed_metric, "mat")
        for metric in metrics:
            # the label of a method -> the metric in both runs, with its ratio
            pairs_by_label = {
                comparison.subject.method(method).label: cell.pair(metric)
                for method, cell in cells.items()
            }
            changes = _Changes(comparison, metric, pairs_by_label)
            sentences.append(changes.sentence(letters.subject))
    return " ".join(sentences)


def _vanilla_sentence(comparison: Comparison, letters: Letters, vanilla: CellPair) -> str:
    """Vanilla's speed in one run relative to the other."""
    pair = vanilla.tokens_per_s
    if isinstance(pair.ratio, Missing):
        return f"Vanilla is not compared: {pair.ratio.reason}."
    times = f"{_times(pair.ratio)} as fast in {letters.subject} as in {letters.reference}"
    return f"Vanilla is {times}{_doubt(comparison, pair)}."


def no_verdict(comparison: Comparison) -> str:
    """The reason that no difference in speed is claimed, with the known spread of passes."""
    if comparison.repetition.is_one_run:  # both sides are the same run, which has one pass
        return "One pass does not show how much passes differ. Nothing is claimed: use --repeats 3."
    # Standard deviation of log tokens/s over the passes of each run that has several, as the median
    # over its methods and temperatures.
    largest_sd = max(comparison.pass_spreads, default=0.0)
    spread_text = ""
    if largest_sd:
        percent = 1.96 * 100 * largest_sd  # 95 % of passes are within 1.96 standard deviations
        spread_text = f" Passes of a run differ by +/- {percent:.1f} % here."
    return (
        "Differences in speed are not judged: one run per side does not show how much runs differ "
        f"on a machine.{spread_text} Use several runs per side: `specbench run --runs 5`."
    )


def cross_sentence(comparison: Comparison, letters: Letters, key: CellKey) -> str:
    """The speed of one method in the subject, relative to another method in the reference.

    `key` is the compared cell: the subject's method, a temperature, and a task or the mean.
    `letters` stand for the two runs.
    """
    pair = comparison.cells[key].tokens_per_s
    ratio = pair.ratio  # the subject's speed / the reference's
    subject, reference = comparison.subject, comparison.reference  # headers of the runs
    # " on the MACHINE" for each, or " in LETTER" if they are of one machine
    subject_place, reference_place = _places(subject, reference, letters)
    reference_method = comparison.reference_method or BASELINE  # the reference's
    model_text = f"With {facts.model_label(subject)}, "  # both runs have this model
    subject_text = f"{subject.method(comparison.methods[0]).label}{subject_place}"
    reference_text = f"{reference.method(reference_method).label}{reference_place}"
    if isinstance(ratio, Missing):
        return f"{model_text}{subject_text} and {reference_text} are not compared: {ratio.reason}."
    interval = ratio.shown_interval
    # in place of an interval, if one prompt or task decides the number
    no_interval_text = f" {formats.one_decides(len(comparison.tasks))}"
    interval_text = f" ± {interval.half_width:.2f}" if interval else no_interval_text
    mean_text = ", on average over the tasks" if len(comparison.tasks) > 1 else ""
    times = f"{ratio.value:.2f}{interval_text} times"
    main_clause = f"{model_text}{subject_text} is {times} as fast as {reference_text}{mean_text}"
    if not comparison.repetition.is_judged:  # too few runs or passes to judge a speed
        return f"{main_clause}. {no_verdict(comparison)}"
    doubt = _doubt(comparison, pair)  # the end of the sentence; empty if there is none
    # Both methods are of one run (is_one_run), and their speeds differ.
    if not doubt and comparison.repetition.is_one_run and not _is_same(ratio):
        doubt = (
            ". This test assumes that you chose the two methods before you saw the results; "
            "`report` corrects for all pairs of the run"
        )
    return f"{main_clause}{doubt}."


def _places(subject: RunHeader, reference: RunHeader, letters: Letters) -> tuple[str, str]:
    """The places of the two measurements, with a space before each: their machines if they differ,
    otherwise their runs; nothing if they are one run.
    """
    if subject == reference:
        return "", ""
    subject_device = subject.device_phrase.partition(",")[0]
    reference_device = reference.device_phrase.partition(",")[0]
    if subject_device != reference_device:
        return f" on the {subject_device}", f" on the {reference_device}"
    return f" in {letters.subject}", f" in {letters.reference}"


def _doubt(comparison: Comparison, pair: Pair) -> str:
    """The doubt about a difference in speed as the end of a sentence; empty if the difference is
    not judged, if it is claimed, or if there is no difference.

    `pair` is a speed in both runs, with the p-value of "they are equal", corrected for all tests.
    """
    # Speed is judged if each side has several runs, or if both are one run of several passes.
    if not comparison.repetition.is_judged or isinstance(pair.ratio, Missing):
        return ""
    if pair.ratio.interval is None:
        return f"; {_TOO_FEW_SAMPLES}"
    if pair.is_claimed or _is_same(pair.ratio):  # significant, or equal in every sample
        return ""
    if pair.p_value is None:  # not tested: too few passes or runs have most of their requests
        return f"; {_TOO_FEW_WHOLE}"
    if pair.is_alone:  # the interval leaves out 1, but the corrected test finds no difference
        return ": significant on its own, but not after correcting for all comparisons"
    return ": not a significant difference"


@dataclass(frozen=True, slots=True)
class _Changes:
    """One metric of several methods in two runs."""

    comparison: Comparison
    metric: Metric
    pairs: Mapping[str, Pair]
    """The metric's pair of each method, by the method's label."""

    def sentence(self, subject: str) -> str:
        """The methods whose change is claimed, or why no change can be claimed. `subject` is the
        letter of the run that has changed.

        `pairs` has the metric in both runs for each method, by its label. A ratio is the
        subject's number / the reference's.
        """
        name = _NAMES[self.metric]  # in words
        ratios = self._ratios  # by label, those that are not missing
        if not ratios:
            return f"{name} is not compared: {', '.join(self._missing_reasons)}."
        # Labels of methods without a test; where speed is not tested, of those without an interval.
        unjudged = self._unjudged
        unjudged_text = f"; not judged: {', '.join(unjudged)}" if unjudged else ""
        if all(map(_is_same, ratios.values())):
            return f"{name} is the same in both{unjudged_text}."
        if not self._is_judged:  # a speed, with too few runs or passes
            return no_verdict(self.comparison)
        claimed = {label: ratio for label, ratio in ratios.items() if self.pairs[label].is_claimed}
        if not claimed:
            if len(self._without_interval) == len(self.pairs):  # no method has an interval
                return f"{name}: {_TOO_FEW_SAMPLES}."
            if len(unjudged) == len(self.pairs):  # too few passes or runs are complete
                return f"{name} is {_TOO_FEW_WHOLE}."
            return f"{name} does not differ significantly for any method{unjudged_text}."
        higher = {label: ratio for label, ratio in claimed.items() if ratio.value > 1}
        lower = {label: ratio for label, ratio in claimed.items() if ratio.value < 1}
        directions = []
        if higher:
            directions.append(f"higher in {subject} for {_list(higher)}")
        if lower:
            directions.append(f"lower in {subject} for {_list(lower)}")
        # methods that are judged, but not claimed
        has_others = len(claimed) + len(unjudged) < len(self.pairs)
        others_text = "; the others do not differ significantly" if has_others else ""
        return f"{name} is {' and '.join(directions)}{others_text}{unjudged_text}."

    @property
    def _is_judged(self) -> bool:
        return self.metric == "mat" or self.comparison.repetition.is_judged

    @property
    def _ratios(self) -> dict[str, Estimate]:
        """The ratios that are not missing."""
        ratios = {label: pair.ratio for label, pair in self.pairs.items()}
        return {label: ratio for label, ratio in ratios.items() if isinstance(ratio, Estimate)}

    @property
    def _missing_reasons(self) -> list[str]:
        ratios = (pair.ratio for pair in self.pairs.values())
        return sorted({ratio.reason for ratio in ratios if isinstance(ratio, Missing)})

    @property
    def _without_interval(self) -> Sequence[str]:
        """The methods with too few samples for an interval, or with none."""
        ratios = self._ratios
        return [
            label for label in self.pairs if label not in ratios or ratios[label].interval is None
        ]

    @property
    def _unjudged(self) -> Sequence[str]:
        """The methods without a test, or, where speed is not tested, without an interval."""
        if not self._is_judged:
            return self._without_interval
        return [label for label, pair in self.pairs.items() if pair.p_value is None]


def _list(ratios: Mapping[str, Estimate]) -> str:
    """Methods with their ratios, the largest changes first."""
    ranked = sorted(ratios, key=lambda label: abs(ratios[label].value - 1), reverse=True)
    return few([f"{label} ({_times(ratios[label])})" for label in ranked])


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} times{formats.brackets(ratio)}"


def _is_same(ratio: Estimate) -> bool:
    """True if nothing differs, in any sample."""
    interval = ratio.interval
    if interval is None:
        return False
    return abs(interval.low - 1) < _EXACT and abs(interval.high - 1) < _EXACT
