"""Write the verdict on a run: which method is the fastest, and how certain this is."""

from math import comb

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.ranking import Ranking, is_alone, is_claimed
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.report import formats

_NOT_DIFFERENT = "not a significant difference"
_NOT_DIFFERENT_FROM_VANILLA = "not significantly different from vanilla"
ONE_PASS = "Nothing is claimed from one pass: it does not show how much the machine's speed varies."


def verdict(run: RunMetrics, temperature: float) -> str:
    """Return sentences about the fastest method: its speedup over vanilla, and its lead.

    Speedups are means over tasks at the temperature.
    """
    # The methods with a speedup and their tests, the fastest first, without vanilla.
    ranking = run.rankings.get(temperature, Ranking())
    if not ranking.methods:
        return _no_speedup(run, temperature)  # a sentence with the reasons
    fastest = ranking.methods[0]
    speedup = ranking.speedups[fastest]  # over vanilla
    sentences = _fastest(run, ranking) if speedup.value > 1 else _none_is_faster(run, ranking)
    # `machine` is the variance between passes or runs. It is None after a single pass, whose
    # interval covers only prompts, as `ONE_PASS` says.
    if speedup.shown_interval is not None and speedup.machine is None:
        sentences.append(ONE_PASS)
    return " ".join(sentences)


def _no_speedup(run: RunMetrics, temperature: float) -> str:
    """Return a sentence with the reasons why no method has a speedup at this temperature."""
    reasons = {
        overall.speedup.reason
        for (method, method_temperature), overall in run.overall.items()
        if method_temperature == temperature
        and method != BASELINE
        and isinstance(overall.speedup, Missing)
    }
    return f"No speedup to report: {', '.join(sorted(reasons)) or 'only vanilla was run'}."


def _none_is_faster(run: RunMetrics, ranking: Ranking) -> list[str]:
    """Return sentences for a run in which vanilla is the fastest. They name the closest method.

    A second sentence says if the difference is not significant, unless there are too few samples
    for a claim (`interval` is None). `ranking` has all methods but vanilla and their tests, the
    fastest first.
    """
    closest = ranking.methods[0]
    speedup = ranking.speedups[closest]  # over vanilla, at most 1
    label = run.info.method(closest).label  # the name in tables
    # For example "0.93x on average [0.90, 0.96]". `_average` is empty for one task, and `brackets`
    # is empty without an interval.
    speedup_text = f"{speedup.value:.2f}x{_average(run)}{formats.brackets(speedup)}"
    sentences = [f"No method is faster than vanilla; {label} comes closest ({speedup_text})."]
    # For example ": not a significant difference". It is empty if the difference is significant, or
    # if it was not tested.
    doubt = _doubt_against_vanilla(run, ranking, _NOT_DIFFERENT)
    if speedup.interval and doubt:
        sentences.append(f"That is {doubt.removeprefix(': ')}.")
    return sentences


def _fastest(run: RunMetrics, ranking: Ranking) -> list[str]:
    """Return sentences about the speedup of the fastest method over vanilla and over the next.

    `ranking` has all methods but vanilla and their tests, the fastest first. A method "is the
    fastest" only if its tests against vanilla and all other methods are significant.
    """
    fastest, *others = ranking.methods  # others in the order of their speed
    speedup = ranking.speedups[fastest]  # over vanilla, above 1
    # The p-values of "as fast as vanilla", and of "as fast as the fastest" for each other method.
    # They are None if this was not tested.
    p_values = (ranking.against_baseline[fastest], *ranking.against_best.values())
    if not all(map(is_claimed, p_values)):
        claim = "has the highest speedup,"
    elif run.scope.kind == "runs":  # `run` is a pool of runs; otherwise the kind is "passes"
        claim = "is the fastest, at"  # the interval covers the variance between runs
    else:
        claim = "is the fastest in this run, at"
    # such as "1.42x vanilla's speed on average [1.38, 1.46]"
    speedup_text = f"{speedup.value:.2f}x vanilla's speed{_average(run)}{formats.brackets(speedup)}"
    # The end of the sentence. It is empty if the speedup is significant, or has an interval but no
    # test.
    doubt = _doubt_against_vanilla(run, ranking, _NOT_DIFFERENT_FROM_VANILLA)
    sentences = [f"{run.info.method(fastest).label} {claim} {speedup_text}{doubt}."]
    if others:
        sentences.append(_over_next(run, ranking, others[0]))  # the speed / the next method's
    return sentences


def _over_next(run: RunMetrics, ranking: Ranking, method: str) -> str:
    """Return a sentence about the fastest method's speed / that of the next method (`method`)."""
    ratio = ranking.ratios[method]
    # The fastest method is chosen by the data, so its lead is tested among all pairs, vanilla
    # included.
    num_pairs = comb(len(ranking.methods) + 1, 2)
    doubt = _doubt(run, ratio, ranking.against_best[method], num_pairs, _NOT_DIFFERENT)
    label = run.info.method(method).label
    interval = formats.brackets(ratio)
    return f"It is {ratio.value:.2f}x as fast as the next, {label}{interval}{doubt}."


def _average(run: RunMetrics) -> str:
    return " on average" if len(run.tasks) > 1 else ""


def _doubt_against_vanilla(run: RunMetrics, ranking: Ranking, not_significant: str) -> str:
    """Return the doubt about the fastest method's speedup, as the end of a sentence."""
    fastest = ranking.methods[0]
    speedup = ranking.speedups[fastest]
    p_value = ranking.against_baseline[fastest]
    return _doubt(run, speedup, p_value, len(ranking.methods), not_significant)


def _doubt(
    run: RunMetrics,
    ratio: Estimate,
    p_value: float | None,
    num_comparisons: int,
    not_significant: str,
) -> str:
    """Return the doubt that a ratio of speeds differs from 1, as the end of a sentence.

    An example is "; too few samples for a claim". The text is empty if the difference is
    significant, or if it was not tested although the ratio has an interval.

    Args:
        run: the numbers of the run.
        ratio: the ratio of two methods' speeds.
        p_value: of "the ratio is 1", corrected for `num_comparisons`; None if not tested.
        num_comparisons: the number of tests that were corrected together.
        not_significant: the words for a difference that is not significant.
    """
    if ratio.shown_interval is None:  # there is no interval, because of a single prompt or task
        return f" {formats.one_decides(len(run.tasks))}"
    if ratio.interval is None:  # the interval is wide; it is shown but supports no claim
        return "; too few samples for a claim"
    if p_value is None or is_claimed(p_value):
        return ""
    if is_alone(ratio, p_value):  # only the interval shows a difference
        return f": {alone_text(num_comparisons)}"
    return f": {not_significant}"


def alone_text(num_comparisons: int) -> str:
    """Return the words for a difference that an interval shows, but the corrected test does not."""
    return f"significant on its own, but not after correcting for {num_comparisons} comparisons"
