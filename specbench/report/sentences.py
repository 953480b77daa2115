"""Sentences about the numbers of a run: the verdict, and notes that have no room in a table.

A function returns an empty text if there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from specbench.analysis.latency import Percentiles
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.ranking import Ranking, is_claimed
from specbench.analysis.roofline import EXPERTS, IN_CACHE, LEAST_SHARE, Roofline
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.log.audit import MethodAudit, StoredAudit
from specbench.report import facts, formats

SPEEDUPS = {
    "ours": "vanilla's time per token / the method's, prefill included, over the same samples.",
    "paper": "the published formula: mean tokens/s of the samples / vanilla's mean tokens/s. Every "
    "sample has the same weight, however short it is.",
}
STEP_COST = (
    "decode time of a step / that of a vanilla step, over the completions of all tasks. Draft, "
    "verify, commit and host are its parts, if they were measured."
)
LIMIT = (
    "MAT * target bytes / (target + draft bytes): the decode speedup if a step took only the time "
    "to read its weights from memory."
)


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
        sentences = [
            f"No method is faster than vanilla; {_label(run, first)} comes closest ({times})."
        ]
        if _is_tested(best) and not is_claimed(ranking.against_baseline[first]):
            sentences.append("That is not a significant difference.")
        others = []
    else:
        is_ahead = all(is_claimed(ranking.against_best[method]) for method in others)
        here = "" if run.scope.kind == "runs" else " in this run"
        verb = f"is the fastest{here}, at" if is_ahead else "has the highest speedup,"
        doubt = _doubt(best, ranking.against_baseline[first], " from vanilla")
        sentences = [f"{_label(run, first)} {verb} {times}{doubt}."]
    if others:
        ratio = ranking.ratios[others[0]]
        lead = f"It is {ratio.value:.2f}x as fast as {_label(run, others[0])}, the next"
        doubt = _doubt(ratio, ranking.against_best[others[0]])
        sentences.append(f"{lead}{formats.brackets(ratio)}{doubt}.")
    if best.interval is not None and best.machine is None:
        sentences.append(ONE_PASS)
    return " ".join(sentences)


ONE_PASS = (
    "Nothing is claimed from one pass: it does not show how far the machine's passes differ. "
    "Use --repeats 3, or --runs 5."
)


def _is_tested(value: Estimate) -> bool:
    return value.interval is not None and value.machine is not None


def _doubt(value: Estimate, p_value: float | None, than: str = "") -> str:
    """The doubt about a difference, as the end of a sentence; empty if it is significant."""
    if value.interval is None:
        return "; too few samples for an interval"
    if not _is_tested(value) or is_claimed(p_value):
        return ""
    return f": not significantly different{than}" if than else ": not a significant difference"


def formula_text(run: RunMetrics) -> str:
    """The largest differences that the other speedup formula would make."""
    changes: dict[str, float] = {}
    for key, cell in run.cells.items():
        ours, paper = cell.our_speedup, cell.paper_speedup
        if not key.task or key.method == BASELINE:
            continue
        if isinstance(ours, Estimate) and isinstance(paper, Estimate):
            cell_name = f"{_label(run, key.method)} on {run.info.task_title(key.task)}"
            ratio = paper.value / ours.value
            changes[cell_name] = (1 / ratio if run.arithmetic == "paper" else ratio) - 1
    if not changes:
        return ""
    low, high = (find(changes, key=lambda name: changes[name]) for find in (min, max))
    span = f"{_more(changes[low])} ({low})"
    if low != high:
        span = f"between {span} and {_more(changes[high])} ({high})"
    if run.arithmetic == "paper":
        return f"total time per token, the default, would give {span}."
    return f"the published one, the ratio of mean tokens/s, would give {span}: --arithmetic paper."


def _more(change: float) -> str:
    return f"{abs(change) * 100:.1f} % {'more' if change >= 0 else 'less'}"


def lossless_text(run: RunMetrics) -> str:
    """The number of greedy completions in which each method gave vanilla's tokens."""
    labels: dict[str, list[str]] = {}
    for method, agreement in run.agreements.items():
        count = f"{agreement.num_identical} of {agreement.num_compared}"
        first = agreement.first_position
        where = "" if first is None else f" (first difference at token {first})"
        labels.setdefault(count, []).append(_label(run, method) + where)
    parts = [f"in {count} completions: {', '.join(names)}" for count, names in labels.items()]
    return f"identical to vanilla's greedy tokens {'; '.join(parts)}." if parts else ""


def lossy_text(run: RunMetrics) -> str:
    """Decode-only speedups of lossy methods above temperature 0, where answers differ in length:
    the prefill's share of the time depends on the length.
    """
    parts = [
        f"{_label(run, method)} {overall.decode_speedup.value:.2f}x at T={temperature:g}"
        for (method, temperature), overall in run.overall.items()
        if temperature > 0 and not run.info.method(method).is_lossless
        if isinstance(overall.decode_speedup, Estimate)
    ]
    return f"Answers differ in length; decoding alone: {', '.join(parts)}." if parts else ""


def difference_warnings(run: RunMetrics) -> Iterable[str]:
    """Lossless methods whose greedy output differs from vanilla's."""
    for method, agreement in run.agreements.items():
        info = run.info.method(method)
        if info.is_lossless and agreement.divergences:
            num_different = agreement.num_compared - agreement.num_identical
            yield (
                f"{info.label} should give vanilla's tokens at temperature 0, but differs in "
                f"{num_different} of {agreement.num_compared} completions, first at token "
                f"{agreement.first_position}. The cause is a numerical near-tie or a bug: run "
                "`specbench audit` on the run's folder to find out."
            )


def audit_text(audit: StoredAudit | None) -> str:
    """The result of a stored audit, and what it would have found; empty without one."""
    if audit is None:
        return ""
    num_failed = len({one.method for one in audit.results if one.status == "bug"})
    count = "1 method" if num_failed == 1 else f"{num_failed} methods"
    result = f"{count} failed" if num_failed else "no bug found"
    found = audit.smallest_tv
    power = "" if found is None else f"; a total variation of {found:.3f} would have been found"
    return f"{result} on {audit.created[:10]} ({audit.dtype}){power}."


def audit_warnings(run: RunMetrics) -> Iterable[str]:
    """Methods that failed the stored audit."""
    for one in run.audit.results if run.audit else ():
        if one.status == "bug":
            yield (
                f"{_label(run, one.method)} failed the audit at T={one.level:g}: "
                f"{audit_failure(one)}. Its output is not the target's: `specbench audit` on the "
                "run's folder shows every test."
            )


def audit_failure(result: MethodAudit) -> str:
    """The clearest failed test of a method in words."""
    if result.fault:
        return result.fault.rstrip(".")
    if not result.failures:
        return "the test is not stored"
    test = min(result.failures, key=lambda one: one.p_value or 0.0)
    bound = ""
    if test.p_value is not None:
        bound = f" (p = {test.p_value:.2g})"
    elif test.limit is not None:
        bound = f" (limit {test.limit:.3g})"
    return f"{test.subject}, {test.name}: {test.effect:.3g} {test.unit}".rstrip() + bound


def latency_text(run: RunMetrics) -> str:
    """Median and 90th percentile over all tasks, at each temperature."""

    def text(method: str, temperature: float) -> str:
        times = run.pooled(method, temperature).latency
        if not isinstance(times.first_token.p50, Estimate):
            return ""
        return f"{_times(times.first_token)} + {_times(times.per_token)}"

    listed = _by_temperature(run, text)
    return f"median (p90) ms to the first token + per token after it: {listed}." if listed else ""


def depth_text(run: RunMetrics) -> str:
    """The share of steps that accept a guess at each depth, over all tasks."""

    def text(method: str, temperature: float) -> str:
        positions = run.pooled(method, temperature).acceptance_by_depth
        return " ".join(_percent(position.unconditional) for position in positions)

    listed = _by_temperature(run, text)
    return f"% of steps that accept a guess at depth 1, 2, ...: {listed}." if listed else ""


def _by_temperature(run: RunMetrics, text: Callable[[str, float], str]) -> str:
    parts = []
    for temperature in run.temperatures:
        texts = {method: text(method, temperature) for method in run.methods}
        listed = [f"{_label(run, method)} {shown}" for method, shown in texts.items() if shown]
        if listed:
            at = f"T={temperature:g}: " if len(run.temperatures) > 1 else ""
            parts.append(at + ", ".join(listed))
    return "; ".join(parts)


def _times(times: Percentiles) -> str:
    return _ms(times.p50) + (f" ({_ms(times.p90)})" if isinstance(times.p90, Estimate) else "")


def _ms(value: Value) -> str:
    return f"{value.value * 1e3:.3g}" if isinstance(value, Estimate) else formats.NONE


def _percent(share: Estimate) -> str:
    return f"{share.value * 100:.0f}" if share.value >= 0.005 else "<1"


def has_limits(run: RunMetrics) -> bool:
    """True if memory sets a limit to the run's speedups."""
    return isinstance(run.roofline, Roofline) and run.roofline.no_limit is None


def memory_text(run: RunMetrics) -> str:
    """The memory bandwidth and what follows from it; empty if it was not measured."""
    roofline = run.roofline
    if isinstance(roofline, Missing):
        return ""
    read = formats.num_bytes(roofline.target_bytes)
    bandwidth = f"{formats.num_bytes(roofline.bandwidth)}/s measured"
    if roofline.no_limit == IN_CACHE:
        cache = formats.num_bytes(roofline.cache_bytes)
        return (
            f"{bandwidth}. A step of the target reads {read} of weights, much of it from a cache "
            f"of {cache}, so that memory sets no limit here. It does for larger models."
        )
    if roofline.no_limit == EXPERTS:
        return f"{bandwidth}. The experts that a step reads are unknown: no limit is given."
    shares = [
        f"{share.value * 100:.0f} %"
        + (f" at T={temperature:g}" if len(run.temperatures) > 1 else "")
        for temperature, share in _bandwidth_shares(run, roofline)
    ]
    used = f"; vanilla reads them at {', '.join(shares)} of the bandwidth" if shares else ""
    return (
        f"{bandwidth}. A step of the target reads {read} of weights{used}. Keys and values, "
        f"{roofline.kv_share * 100:.1f} % more, are not counted."
    )


def memory_warnings(run: RunMetrics) -> Iterable[str]:
    """A baseline far below the memory bandwidth."""
    if isinstance(run.roofline, Missing):
        return
    for _, share in _bandwidth_shares(run, run.roofline):
        if share.value < LEAST_SHARE:
            cause = "The host" if facts.is_on_gpu(run.info) else "Computation or the host"
            yield (
                f"Vanilla uses {share.value * 100:.0f} % of the memory bandwidth, less than "
                f"{LEAST_SHARE * 100:.0f} %. {cause} limits its speed. A slow baseline "
                "inflates every speedup."
            )
            return


def _bandwidth_shares(run: RunMetrics, roofline: Roofline) -> Iterable[tuple[float, Estimate]]:
    """Vanilla's share of the bandwidth at each temperature, where times are valid."""
    for temperature in run.temperatures:
        cost = run.cost(BASELINE, temperature)
        share = roofline.bandwidth_share(cost.step_s)
        if isinstance(share, Estimate) and isinstance(cost.decode_speedup, Estimate):
            yield temperature, share


def _label(run: RunMetrics, method: str) -> str:
    return run.info.method(method).label
