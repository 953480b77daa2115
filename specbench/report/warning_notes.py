"""The warnings below a report: every reason to distrust its numbers, as notes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from specbench.analysis.costs import LEAST_SHARE, Roofline
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.serving import is_slow_client
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.warnings import RunWarning
from specbench.errors import first_line
from specbench.log.audit import MethodAudit
from specbench.log.header import RunHeader
from specbench.log.run import loads_of
from specbench.report import facts
from specbench.report.texts import Note, make_note

Numbers = dict[str, Any]
_STATES = {"interrupted": "interrupted", "running": "running", "failed": "failed_run"}


def warnings(run: RunMetrics) -> Iterable[Note]:
    """Every reason to distrust numbers of the run."""
    recorded = [("recorded", {"text": text}) for text in run.info.warnings]
    labels = run.info.methods.keys()
    of_heads = [one for one in recorded if one[1]["text"].partition(": ")[0] in labels]
    found: list[tuple[str, Mapping[str, Any]]] = [
        *([(_STATES[run.info.status], {})] if run.info.status in _STATES else ()),
        *([("incomplete", {"missing": run.missing_text})] if run.missing_text else ()),
        *_failed(run),
        *of_heads,  # before noise: acceptance itself may be wrong
        *((one.key, with_advice(one, run.info)) for one in run.warnings),
        *_differences(run),
        *_slow_baseline(run),
        *_served(run),
        *_others(run.info),
        *(one for one in recorded if one not in of_heads),
    ]
    return (make_note(key, run.info, **numbers) for key, numbers in found)


def with_advice(warning: RunWarning, info: RunHeader) -> Mapping[str, Any]:
    """The numbers of a warning, and for too few samples the options that give more."""
    if warning.key != "few_samples":
        return warning.numbers
    has_more = any(one.num_prompts < one.num_available for one in info.prompts)
    is_bundled = info.spec.values.prompts == "bundled"
    return {
        **warning.numbers,
        "limit": "--limit" if has_more else "",
        "more": "--prompts paper" if is_bundled else "",
    }


def _failed(run: RunMetrics) -> Iterable[tuple[str, Numbers]]:
    """Completions that failed, and lines that could not be read."""
    if failed := failures(run):
        errors = (overall.pooled.first_error for overall in run.overall.values())
        first = next((error for error in errors if error), "no reason given")
        methods = [{"method": method, "failed": number} for method, number in failed.items()]
        told = {"methods": methods, "error": first_line(first, most=len(first))}
        yield "failed_completions", told
    if run.left_out:
        yield "left_out", {"lines": len(run.left_out), "first": first_line(run.left_out[0])}


def _differences(run: RunMetrics) -> Iterable[tuple[str, Numbers]]:
    """Methods that failed the stored audit; lossless ones whose greedy output is not vanilla's."""
    for one in run.audit.results if run.audit else ():
        if one.status == "bug":
            failure = audit_failure(one)
            yield "failed_audit", {"method": one.method, "level": one.level, "failure": failure}
    for method, agreement in run.agreements.items():
        if run.info.method(method).is_lossless and (different := len(agreement.divergences)):
            counts = {"different": different, "compared": agreement.num_compared}
            told = {"method": method, **counts, "first_position": agreement.first_position}
            yield "different_output", told


def _slow_baseline(run: RunMetrics) -> Iterable[tuple[str, Numbers]]:
    """A baseline far below the memory bandwidth."""
    if not isinstance(roofline := run.roofline, Roofline):
        return
    kind = "gpu" if facts.is_on_gpu(run.info) else "cpu"
    measured = {"bandwidth": roofline.bandwidth, "block": roofline.block_bytes or None}
    shares = (one["share"] for one in bandwidth_shares(run, roofline))
    for share in [share for share in shares if share < LEAST_SHARE][:1]:
        told = {"share": share, "least": LEAST_SHARE, "cause": kind, "way": kind}
        yield "slow_baseline", {**told, **measured}


def _served(run: RunMetrics) -> Iterable[tuple[str, Numbers]]:
    """Reasons to distrust numbers of a run on servers."""
    slow = [(*key, one.client_share) for key, one in run.serving.items() if is_slow_client(one)]
    for temperature in dict.fromkeys(at for _, at, _ in slow):
        shares = {method: share for method, at, share in slow if at == temperature}
        told = {"share": max(shares.values()), "methods": [*shares]}
        yield "slow_client", {**told, "temperature": temperature}
    for (method, temperature), one in run.serving.items():
        where = {"method": method, "temperature": temperature}
        totals = (
            ("prefix_cache", "tokens", one.num_cached_tokens),
            ("retries", "requests", one.num_retries),
            ("interrupted_blocks", "blocks", one.num_interrupted),
            ("restarted", "blocks", one.num_restarted),
        )
        yield from ((key, {**where, name: number}) for key, name, number in totals if number)
        about = run.info.methods.get(method)
        asked = about.options.get("num_tokens") if about else None
        if isinstance(asked, int) and one.draft_length > asked:
            yield "long_drafts", {**where, "drafted": one.draft_length, "asked": asked}
        for task, counts in one.contradictions:
            yield "contradiction", {**where, "task": task, "counts": counts}
    fewest = min((one.in_flight.least_most for one in run.serving.values()), default=0)
    for load in loads_of(run.info.spec.values):
        if 0 < fewest < load.concurrency:
            about_load = {"load": load.text, "asked": load.concurrency}
            yield "few_prompts", {**about_load, "in_flight": fewest}


def _others(info: RunHeader) -> Iterable[tuple[str, Numbers]]:
    """Other programs on the machine, unless they may be servers or workers of the run."""
    nodes = [one.node for one in info.workers.values()]
    alone = {name: one.cpu for name, one in info.workers.items() if nodes.count(one.node) == 1}
    for name, cpu in {**({} if info.servers else {"": info.cpu}), **alone}.items():
        if cpu and cpu.others_warning:
            yield "busy", {"worker": name, "text": cpu.others_warning}


def failures(run: RunMetrics) -> Counter[str]:
    """The number of failed completions of the methods that have any."""
    found = Counter[str]()
    for (method, _), overall in run.overall.items():
        found[method] += overall.pooled.num_failed
    return +found


def bandwidth_shares(run: RunMetrics, roofline: Roofline) -> list[Numbers]:
    """Vanilla's share of the bandwidth at each temperature, where times are valid."""
    costs = {temperature: run.cost(BASELINE, temperature) for temperature in run.temperatures}
    return [
        {"temperature": temperature, "share": share.value}
        for temperature, cost in costs.items()
        if isinstance(cost.decode_speedup, Estimate)
        and isinstance(share := roofline.bandwidth_share(cost.step_s), Estimate)
    ]


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
