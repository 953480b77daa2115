"""Write the results of a comparison in sentences, which claim only what the tests support."""

from collections.abc import Mapping
from typing import NamedTuple

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors.safe_text import few
from specbench.judge.comparison import Comparison
from specbench.judge.pairs import CellPair, Metric, Pair
from specbench.log.header import RunHeader
from specbench.report import facts, formats

_EXACT = 1e-9
"""An interval that ends this close to 1 includes 1, since it may have been rounded."""
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
    """Sentences on one task or the mean over tasks: on vanilla's speed, then on the methods'
    speedups (or tokens/s if vanilla is not in both runs) and on MAT.

    Args:
        comparison: the comparison of a run, the subject, with the reference.
        letters: the letters of the two runs.
        temperature: the sampling temperature.
        task: the name of a task, or "mean" for the mean over tasks.
    """
    # method -> its numbers in both runs; the next line removes vanilla
    cells = {method: comparison.cell(method, temperature, task) for method in comparison.methods}
    vanilla = cells.pop(BASELINE, None)
    sentences = []
    if vanilla:
        sentences.append(_vanilla_sentence(comparison, letters, vanilla))
        is_compared = not isinstance(vanilla.tokens_per_s.ratio, Missing)
        # Without other methods, no further sentence would say why speed is not judged.
        if is_compared and not cells and not comparison.repetition.is_judged:
            sentences.append(no_verdict(comparison))
    if cells:
        speed_metric: Metric = "speedup" if vanilla else "tokens_per_s"
        metrics: tuple[Metric, ...] = (speed_metric, "mat")
        for metric in metrics:
            pairs_by_label = {
                comparison.subject.method(method).label: cell.pair(metric)
                for method, cell in cells.items()
            }
            sentences.append(_change_sentence(comparison, metric, pairs_by_label, letters.subject))
    return " ".join(sentences)


def _vanilla_sentence(comparison: Comparison, letters: Letters, vanilla: CellPair) -> str:
    """A sentence on vanilla's speed in one run relative to the other."""
    pair = vanilla.tokens_per_s
    if isinstance(pair.ratio, Missing):
        return f"Vanilla is not compared: {pair.ratio.reason}."
    times = f"{_times(pair.ratio)} as fast in {letters.subject} as in {letters.reference}"
    return f"Vanilla is {times}{_doubt(comparison, pair)}."


def no_verdict(comparison: Comparison) -> str:
    """A sentence on why no difference in speed is claimed, with the known spread of passes."""
    if comparison.repetition.is_one_run:  # both sides are the same run, which has one pass
        return "One pass does not show how much passes differ. Nothing is claimed: use --repeats 3."
    largest_sd = max(comparison.pass_spreads, default=0.0)  # 0 if no run has several passes
    spread_text = ""
    if largest_sd:
        percent = 1.96 * 100 * largest_sd  # 95 % of passes are within 1.96 standard deviations
        spread_text = f" Passes of a run differ by +/- {percent:.1f} % here."
    return (
        "Differences in speed are not judged: one run per side does not show how much runs differ "
        f"on a machine.{spread_text} Use several runs per side: `specbench run --runs 5`."
    )


def cross_sentence(comparison: Comparison, letters: Letters, key: CellKey) -> str:
    """A sentence on the speed of a method in the subject, relative to another method in the
    reference.

    `key` is the compared cell: the subject's method, a temperature, and a task or the mean.
    """
    pair = comparison.cells[key].tokens_per_s
    ratio = pair.ratio
    subject, reference = comparison.subject, comparison.reference  # headers of the runs
    subject_place, reference_place = _places(subject, reference, letters)
    reference_method = comparison.reference_method or BASELINE  # the reference's
    model_text = f"With {facts.model_label(subject)}, "  # both runs have this model
    subject_text = f"{subject.method(comparison.methods[0]).label}{subject_place}"
    reference_text = f"{reference.method(reference_method).label}{reference_place}"
    if isinstance(ratio, Missing):
        return f"{model_text}{subject_text} and {reference_text} are not compared: {ratio.reason}."
    interval = ratio.shown_interval
    # There is no interval if one prompt or task decides the number.
    no_interval_text = f" {formats.one_decides(len(comparison.tasks))}"
    interval_text = f" ± {interval.half_width:.2f}" if interval else no_interval_text
    mean_text = ", on average over the tasks" if len(comparison.tasks) > 1 else ""
    times = f"{ratio.value:.2f}{interval_text} times"
    main_clause = f"{model_text}{subject_text} is {times} as fast as {reference_text}{mean_text}"
    if not comparison.repetition.is_judged:  # too few runs or passes to judge a speed
        return f"{main_clause}. {no_verdict(comparison)}"
    doubt = _doubt(comparison, pair)
    # The two methods of one run may have been chosen from many after the results were known.
    if not doubt and comparison.repetition.is_one_run and not _is_same(ratio):
        doubt = (
            ". This test assumes that you chose the two methods before you saw the results; "
            "`report` corrects for all pairs of the run"
        )
    return f"{main_clause}{doubt}."


def _places(subject: RunHeader, reference: RunHeader, letters: Letters) -> tuple[str, str]:
    """The places of the two measurements, each with a space before it.

    They are " on the MACHINE" if the machines differ, " in LETTER" if only the runs do, and empty
    for one run.
    """
    if subject == reference:
        return "", ""
    subject_device = subject.device_phrase.partition(",")[0]
    reference_device = reference.device_phrase.partition(",")[0]
    if subject_device != reference_device:
        return f" on the {subject_device}", f" on the {reference_device}"
    return f" in {letters.subject}", f" in {letters.reference}"


def _doubt(comparison: Comparison, pair: Pair) -> str:
    """The end of a sentence on a difference in speed that says why it is doubtful. It is empty if
    the difference is not judged, if it is claimed, or if there is no difference.
    """
    if not comparison.repetition.is_judged or isinstance(pair.ratio, Missing):
        return ""
    if pair.ratio.interval is None:
        return f"; {_TOO_FEW_SAMPLES}"
    if pair.is_claimed or _is_same(pair.ratio):
        return ""
    if pair.p_value is None:  # too few passes or runs have most of their requests
        return f"; {_TOO_FEW_WHOLE}"
    if pair.is_alone:
        return ": significant on its own, but not after correcting for all comparisons"
    return ": not a significant difference"


def _change_sentence(
    comparison: Comparison, metric: Metric, pairs: Mapping[str, Pair], subject: str
) -> str:
    """A sentence on the methods for which a change of a metric is claimed, or on why no change can
    be claimed.

    Args:
        comparison: the comparison of a run, the subject, with the reference.
        metric: the metric.
        pairs: label of a method -> the metric in both runs.
        subject: the letter of the subject.
    """
    name = _NAMES[metric]
    all_ratios = {label: pair.ratio for label, pair in pairs.items()}
    ratios = {label: ratio for label, ratio in all_ratios.items() if isinstance(ratio, Estimate)}
    if not ratios:
        reasons = {ratio.reason for ratio in all_ratios.values() if isinstance(ratio, Missing)}
        return f"{name} is not compared: {', '.join(sorted(reasons))}."
    is_judged = metric == "mat" or comparison.repetition.is_judged
    # methods without a ratio, or with too few samples for an interval of the ratio
    without_interval = [
        label for label in pairs if label not in ratios or ratios[label].interval is None
    ]
    unjudged = [label for label, pair in pairs.items() if pair.p_value is None]
    if not is_judged:  # then no method has a test
        unjudged = without_interval
    unjudged_text = f"; not judged: {', '.join(unjudged)}" if unjudged else ""
    if all(map(_is_same, ratios.values())):
        return f"{name} is the same in both{unjudged_text}."
    if not is_judged:  # a speed, with too few runs or passes
        return no_verdict(comparison)
    claimed = {label: ratio for label, ratio in ratios.items() if pairs[label].is_claimed}
    if not claimed:
        if len(without_interval) == len(pairs):
            return f"{name}: {_TOO_FEW_SAMPLES}."
        if len(unjudged) == len(pairs):  # too few passes or runs are complete
            return f"{name} is {_TOO_FEW_WHOLE}."
        return f"{name} does not differ significantly for any method{unjudged_text}."
    higher = {label: ratio for label, ratio in claimed.items() if ratio.value > 1}
    lower = {label: ratio for label, ratio in claimed.items() if ratio.value < 1}
    directions = []
    if higher:
        directions.append(f"higher in {subject} for {_list(higher)}")
    if lower:
        directions.append(f"lower in {subject} for {_list(lower)}")
    has_others = len(claimed) + len(unjudged) < len(pairs)  # methods without a claimed change
    others_text = "; the others do not differ significantly" if has_others else ""
    return f"{name} is {' and '.join(directions)}{others_text}{unjudged_text}."


def _list(ratios: Mapping[str, Estimate]) -> str:
    """Methods with their ratios, from the largest change to the smallest."""
    ranked = sorted(ratios, key=lambda label: abs(ratios[label].value - 1), reverse=True)
    return few([f"{label} ({_times(ratios[label])})" for label in ranked])


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} times{formats.brackets(ratio)}"


def _is_same(ratio: Estimate) -> bool:
    """True if no sample differs."""
    interval = ratio.interval
    if interval is None:
        return False
    return abs(interval.low - 1) < _EXACT and abs(interval.high - 1) < _EXACT
