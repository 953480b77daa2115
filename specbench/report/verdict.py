"""The verdict on a run at one temperature, in sentences."""

from math import comb

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.ranking import Ranking, is_alone, is_claimed
from specbench.analysis.stats.bootstrap import Estimate, Missing
from specbench.report import formats


def verdict(run: RunMetrics, temperature: float) -> str:
    """The fastest method against vanilla and against the next one, by the mean over tasks."""
    ranking = run.rankings.get(temperature, Ranking())
    if not ranking.methods:
        reasons = {
            overall.speedup.reason
            for (method, at), overall in run.overall.items()
            if at == temperature and method != BASELINE and isinstance(overall.speedup, Missing)
        }
        return f"No speedup to report: {', '.join(sorted(reasons)) or 'only vanilla was run'}."
    first, *others = ranking.methods
    best = ranking.speedups[first]
    where = " on average" if len(run.tasks) > 1 else ""
    times = f"{best.value:.2f}x vanilla's speed{where}{formats.brackets(best)}"
    if best.value <= 1:
        times = times.replace("x vanilla's speed", "x")
        label = run.info.method(first).label
        sentences = [f"No method is faster than vanilla; {label} comes closest ({times})."]
        doubt = _doubt(best, ranking.against_baseline[first], len(ranking.methods))
        if best.interval and doubt:
            sentences.append(f"That is {doubt.removeprefix(': ')}.")
        others = []
    else:
        p_values = (ranking.against_baseline[first], *ranking.against_best.values())
        is_ahead = all(map(is_claimed, p_values))
        here = "" if run.scope.kind == "runs" else " in this run"
        verb = f"is the fastest{here}, at" if is_ahead else "has the highest speedup,"
        doubt = _doubt(best, ranking.against_baseline[first], len(ranking.methods))
        doubt = doubt.replace("a significant difference", "significantly different from vanilla")
        sentences = [f"{run.info.method(first).label} {verb} {times}{doubt}."]
    if others:
        ratio = ranking.ratios[others[0]]
        lead = f"It is {ratio.value:.2f}x as fast as {run.info.method(others[0]).label}, the next"
        doubt = _doubt(ratio, ranking.against_best[others[0]], comb(len(ranking.methods) + 1, 2))
        sentences.append(f"{lead}{formats.brackets(ratio)}{doubt}.")
    if best.interval is not None and best.machine is None:
        sentences.append(ONE_PASS)
    return " ".join(sentences)


ONE_PASS = (
    "Nothing is claimed from one pass: it does not show how far the machine's passes differ. "
    "Use --repeats 3, or --runs 5."
)


def _doubt(value: Estimate, p_value: float | None, number: int) -> str:
    """The doubt about a difference, one of this number, as the end of a sentence; empty if it is
    significant, or not tested.
    """
    if value.interval is None:
        return "; too few samples for an interval"
    if p_value is None or is_claimed(p_value):
        return ""
    if is_alone(value, p_value):
        return f": alone a difference, not among {number} comparisons"
    return ": not a significant difference"
