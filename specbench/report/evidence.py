"""Notes on what the table has no room for: sameness, the other formula, latency, acceptance."""

from __future__ import annotations

from collections.abc import Iterable

from specbench.analysis.latency import Percentiles
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.stats import Estimate, Value

_OURS = (
    "vanilla's time per token / the method's, prefill included, over the same samples. "
    "Intervals are 95 %, by cluster bootstrap over samples ({drawn})."
)
_PAPER = (
    "the published formula: mean tokens/s of the samples / vanilla's mean tokens/s, so that every "
    "sample counts alike, however short. Intervals are 95 %, by cluster bootstrap over samples "
    "({drawn})."
)


def speedup_definition(run: RunMetrics, drawn: str) -> str:
    """What the table's speedup is."""
    return (_PAPER if run.arithmetic == "paper" else _OURS).format(drawn=drawn)


def formula_text(run: RunMetrics) -> str:
    """How far the arithmetic not shown is from the one shown, over all cells."""
    gaps: dict[str, float] = {}
    for key, cell in run.cells.items():
        ours, paper = cell.our_speedup, cell.paper_speedup
        if not key.task or key.method == BASELINE:
            continue
        if isinstance(ours, Estimate) and isinstance(paper, Estimate):
            place = (
                f"{run.info.method(key.method).label} on {run.info.columns.get(key.task, key.task)}"
            )
            ratio = paper.value / ours.value
            gaps[place] = (1 / ratio if run.arithmetic == "paper" else ratio) - 1
    if not gaps:
        return ""
    low, high = min(gaps, key=lambda place: gaps[place]), max(gaps, key=lambda place: gaps[place])
    span = f"{_more(gaps[low])} ({low})"
    if low != high:
        span = f"between {span} and {_more(gaps[high])} ({high})"
    if run.arithmetic == "paper":
        return f"Total time per token, the default, would give {span}."
    return f"The published one, the ratio of mean tokens/s, would give {span}: --arithmetic paper."


def _more(change: float) -> str:
    return f"{abs(change) * 100:.1f} % {'more' if change >= 0 else 'less'}"


def lossless_text(run: RunMetrics) -> str:
    """In how many greedy completions each method gave vanilla's tokens."""
    counts: dict[str, list[str]] = {}
    for method, agreement in run.agreements.items():
        count = f"{agreement.num_identical} of {agreement.num_compared}"
        first = agreement.first_position
        where = "" if first is None else f" (first difference at token {first})"
        counts.setdefault(count, []).append(run.info.method(method).label + where)
    parts = [f"in {count} completions: {', '.join(names)}" for count, names in counts.items()]
    return f"Vanilla's greedy tokens {'; '.join(parts)}." if parts else ""


def difference_texts(run: RunMetrics) -> Iterable[str]:
    """Lossless methods whose greedy output is not vanilla's everywhere."""
    for method, agreement in run.agreements.items():
        info = run.info.method(method)
        if info.is_lossless and agreement.divergences:
            yield (
                f"{info.label} should give vanilla's tokens at temperature 0, and does in "
                f"{agreement.num_identical} of {agreement.num_compared} completions, the first "
                f"difference at token {agreement.first_position}: a near-tie of the numerics, or a "
                f"bug. `specbench audit` on the run's folder tells which."
            )


def latency_text(run: RunMetrics) -> str:
    """The median and the 90th percentile, of all tasks together, at each temperature."""
    parts = []
    for temperature in run.temperatures:
        listed = []
        for method in run.methods:
            times = run.pooled(method, temperature).latency
            if isinstance(times.first_token.p50, Estimate):
                both = f"{_times(times.first_token)} + {_times(times.per_token)}"
                listed.append(f"{run.info.method(method).label} {both}")
        if listed:
            parts.append(_at(run, temperature) + ", ".join(listed))
    if not parts:
        return ""
    return f"median (90 %) ms to the first token + per token after it: {'; '.join(parts)}."


def depth_text(run: RunMetrics) -> str:
    """How deep guesses are accepted, over all tasks, at each temperature."""
    parts = []
    for temperature in run.temperatures:
        listed = []
        for method in run.methods:
            if positions := run.pooled(method, temperature).positions:
                shares = " ".join(_percent(position.unconditional) for position in positions)
                listed.append(f"{run.info.method(method).label} {shares}")
        if listed:
            parts.append(_at(run, temperature) + ", ".join(listed))
    if not parts:
        return ""
    return f"% of steps that accept a guess at depth 1, 2, ...: {'; '.join(parts)}."


def _at(run: RunMetrics, temperature: float) -> str:
    return f"T={temperature:g}: " if len(run.temperatures) > 1 else ""


def _times(times: Percentiles) -> str:
    return _ms(times.p50) + (f" ({_ms(times.p90)})" if isinstance(times.p90, Estimate) else "")


def _ms(value: Value) -> str:
    return f"{value.value * 1e3:.3g}" if isinstance(value, Estimate) else "–"


def _percent(share: Estimate) -> str:
    return f"{share.value * 100:.0f}" if share.value >= 0.005 else "<1"
