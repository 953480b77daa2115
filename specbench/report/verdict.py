"""What a table's block says, in one or two sentences: who wins, and how sure that is."""

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.stats import Estimate, Missing, quotient


def verdict(run: RunMetrics, temperature: float) -> str:
    """The fastest method against vanilla and against the next one, by the mean over tasks."""
    means = {
        method: overall.speedup
        for (method, at), overall in run.overall.items()
        if at == temperature and method != BASELINE
    }
    known = {m: value for m, value in means.items() if isinstance(value, Estimate)}
    if not known:
        reasons = {value.reason for value in means.values() if isinstance(value, Missing)}
        return f"No speedup to report: {', '.join(sorted(reasons)) or 'only vanilla was run'}."
    ranked = sorted(known, key=lambda method: known[method].value, reverse=True)
    where = " on average" if len(run.tasks) > 1 else ""
    sentences = [_against_vanilla(run.info.method(ranked[0]).label, known[ranked[0]], where)]
    if len(ranked) > 1:
        ratio = quotient(known[ranked[0]], known[ranked[1]])
        sentences.append(_against_next(run.info.method(ranked[1]).label, ratio))
    return " ".join(sentences)


def _against_vanilla(label: str, speedup: Estimate, where: str) -> str:
    times = f"{speedup.value:.2f} times vanilla's speed{where}{_interval(speedup)}"
    if speedup.interval is None:
        return f"{label} is the fastest, at {times}, but of too few samples to be sure."
    if 1.0 in speedup.interval:
        return f"{label} is the fastest method, at {times}: not told apart from vanilla."
    if speedup.value <= 1:
        return f"No method is faster than vanilla; {label} is the fastest, at {times}."
    return f"{label} is the fastest, at {times}."


def _against_next(label: str, ratio: Estimate) -> str:
    times = f"{ratio.value:.2f} times its speed{_interval(ratio)}"
    if ratio.interval is None:
        return f"{label} is next ({times}); too few samples to tell the two apart."
    if 1.0 in ratio.interval:
        return f"{label} is next ({times}): the two are not told apart."
    return f"{label} is next ({times})."


def _interval(estimate: Estimate) -> str:
    interval = estimate.interval
    return f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
