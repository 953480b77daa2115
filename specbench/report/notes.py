"""The notes below a report: the origin of the numbers, their definitions, gaps and warnings.

Gathers the numbers of each note; `texts.toml` has its sentence.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from specbench.analysis.costs import EXPERTS, IN_CACHE, Roofline
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.ranking import is_alone
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.analysis.stats.scope import PROMPTS_ONLY
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.log.usage import Span
from specbench.methods import described
from specbench.report import facts, formats
from specbench.report.texts import Note, make_note
from specbench.report.warning_notes import Numbers, bandwidth_shares, failures, warnings

_MOST_WARNINGS = 3
_GIST = 150
"""Characters of a warning on a short screen: two lines."""


def notes(runs: Sequence[RunMetrics], names: Sequence[str]) -> tuple[Note, ...]:
    """Facts, definitions, then gaps and warnings per run. What not all runs share begins with
    the run's name.
    """
    told: list[Note] = []
    own: list[Note] = []
    facts_of = [[*_facts(run), *_bounds(run)] for run in runs]
    shared = set.intersection(*map(set, facts_of)) if facts_of else ()
    for run, name, found in zip(runs, names, facts_of, strict=True):
        prefix = f"{name}: " if len(runs) > 1 else ""
        own += [replace(one, text=prefix + one.text) for one in (*_gaps(run), *warnings(run))]
        told += [
            one if one.key == "run" or one in shared else replace(one, text=prefix + one.text)
            for one in found
        ]
    own.sort(key=lambda one: one.is_warning)
    return tuple(dict.fromkeys([*told, *_definitions(runs), *own]))


def short_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Notes of the default screen: gaps, definitions, and the first sentence of each warning."""
    gaps = [one for one in notes if one.key in ("cpu_trees", "alone", "missing", "lossy")]
    warnings = [one for one in notes if one.is_warning]
    num_more = len(warnings) - _MOST_WARNINGS
    kept = [replace(one, text=_gist(one)) for one in (*gaps, *warnings[:_MOST_WARNINGS])]
    scope = next((one.numbers["scope"] for one in notes if one.key == "intervals"), "")
    more = [make_note("more_warnings", number=num_more)] if num_more > 0 else []
    return (make_note("short_speedup", scope=scope), make_note("short_mat"), *kept, *more)


def _gist(one: Note) -> str:
    """The first sentence, and those after it as long as there is room; of failures all."""
    text, end = one.text, one.text.find(". ")
    while 0 <= (following := text.find(". ", end + 1)) < _GIST:
        end = following
    is_whole = end < 0 or len(text) <= _GIST or one.key == "failed_completions"
    return text if is_whole else text[: end + 1]


def scope_text(runs: Sequence[RunMetrics]) -> str:
    """The scope of the intervals of times: "over prompts and 3 passes"."""
    texts = dict.fromkeys(run.scope.text for run in runs)
    return " or ".join(text if text == PROMPTS_ONLY else f"over {text}" for text in texts)


def _facts(run: RunMetrics) -> Iterable[Note]:
    info, about, spec = run.info, run.info.environment, run.info.spec.values
    settings = {
        "id": info.id,
        "status": info.status,
        "model": info.model.name,
        "precision": info.model.precision,
        "device": spec.device,
        "prompts": spec.prompts,
        "max_new_tokens": spec.max_new_tokens,
        "seed": spec.seed,
    }
    found: list[tuple[str, Numbers]] = [
        ("machine", {"device": info.device_phrase}),
        ("software", {"software": about.software_phrase, "commit": about.commit_phrase}),
        ("run", settings),
        ("servers", {"servers": _servers(info)}),
        ("workers", {"workers": facts.workers(info)}),
        ("steps", _execution(info)),
        ("one_pass", {"is_one": not spec.backend and not info.servers and spec.repeats == 1}),
        ("threads", _threads(run)),
        _samples(run),
        ("lossless", {"counts": _agreements(run)}),
        *([_audit(run.audit)] if run.audit else ()),
        (f"formula_{run.arithmetic}", {"changes": _formula(run)}),
        *([_memory(run, run.roofline)] if isinstance(run.roofline, Roofline) else ()),
        ("cpu_trees", _slow_on_cpu(run)),
        ("processor", _processor(info)),
        ("gpu", _gpu(info)),
    ]
    return (make_note(key, info, **numbers) for key, numbers in found if any(numbers.values()))


def _slow_on_cpu(run: RunMetrics) -> Numbers:
    """True if a method is slower than vanilla on a CPU although it accepts more, not on
    servers, with those of them that say why they are slow there whatever their settings.
    """
    if facts.is_on_gpu(run.info) or run.info.servers:
        return {}
    slow = [
        (method, temperature, run.cost(method, temperature))
        for (method, temperature), one in run.overall.items()
        if isinstance(one.speedup, Estimate) and isinstance(one.mat, Estimate)
        if one.speedup.value < 1 < one.mat.value
    ]
    reasons = {name: about.slow_on_cpu for name, about in described().items()}
    by_nature = [
        {"method": method, "temperature": t, "why": why, "mat": cost.mat, "cost": cost.relative}
        for method, t, cost in slow
        if (why := reasons.get(method.partition(":")[0]))
    ]
    return {"is_slower": bool(slow), "methods": by_nature}


def _servers(info: RunHeader) -> list[Numbers]:
    return [
        {"method": label, "software": one.software_phrase, "url": one.url, "protocol": one.protocol}
        for label, one in info.servers.items()
    ]


def _execution(info: RunHeader) -> Numbers:
    """The execution of the steps, the commonest first, and the kernels, with the reasons."""
    methods: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for spelling, about in info.execution.items():
        methods[about.mode, about.reason].append(spelling)
    modes = [
        {"mode": mode, "reason": reason, "methods": own}
        for (mode, reason), own in sorted(methods.items(), key=lambda item: -len(item[1]))
    ]
    modes[:1] = [{**first, "methods": []} for first in modes[:1]]
    if not modes or not info.kernels:
        return {"modes": modes}
    return {"modes": modes, "kernels": info.kernels.name, "reason": info.kernels.reason}


def _threads(run: RunMetrics) -> Numbers:
    """The methods that decode with other CPU threads than vanilla, and the number of prefills.

    Each has its decode speedup with vanilla's number at each temperature, from the steps that
    were timed with both.
    """
    found = run.info.threads
    if not found or not (found.own or found.of_prefill != found.num):
        return {}
    methods = []
    for method, num in found.own.items():
        step_s = found.method_step_s.get(method, {})
        own, common = step_s.get(str(num)), step_s.get(str(found.num))
        speedups = [
            overall.decode_speedup.value * own / common
            for (name, _), overall in run.overall.items()
            if name == method and isinstance(overall.decode_speedup, Estimate) and own and common
        ]
        methods.append({"method": method, "speedups": speedups})
    return {"number": found.num, "prefill": found.of_prefill, "methods": methods}


def _samples(run: RunMetrics) -> tuple[str, Numbers]:
    pooled = [cell for overall in run.overall.values() if (cell := overall.pooled).num_done]
    if not pooled:
        return "no_samples", {"done": [0]}
    samples, done = [cell.num_samples for cell in pooled], [cell.num_done for cell in pooled]
    ends = {"samples": [min(samples), max(samples)], "done": [min(done), max(done)]}
    return "samples", {**ends, "failed": sum(failures(run).values())}


def _agreements(run: RunMetrics) -> list[Numbers]:
    """The number of greedy completions in which each method gave vanilla's tokens."""
    methods: dict[tuple[int, int], list[Numbers]] = defaultdict(list)
    for method, one in run.agreements.items():
        about = {"method": method, "first_position": one.first_position}
        methods[one.num_identical, one.num_compared].append(about)
    return [
        {"identical": identical, "compared": compared, "methods": own}
        for (identical, compared), own in methods.items()
    ]


def audit_note(audit: StoredAudit) -> Note:
    """The result of a stored audit, and what it would have found."""
    key, numbers = _audit(audit)
    return make_note(key, **numbers)


def _audit(audit: StoredAudit) -> tuple[str, Numbers]:
    failed = len({one.method for one in audit.results if one.status == "bug"})
    about = {"date": audit.created[:10], "dtype": audit.dtype, "smallest_tv": audit.smallest_tv}
    about["unknown"] = None if audit.records_sha256 else "it has no hash of the records"
    return "audit_failed" if failed else "audit_passed", {"failed": failed, **about}


def _formula(run: RunMetrics) -> list[Numbers]:
    """The smallest and the largest change that the other speedup formula would make."""
    changes: list[Numbers] = []
    for key, cell in run.cells.items():
        ours, paper = cell.our_speedup, cell.paper_speedup
        if not key.task or key.method == BASELINE:
            continue
        if isinstance(ours, Estimate) and isinstance(paper, Estimate):
            ratio = paper.value / ours.value
            change = (1 / ratio if run.arithmetic == "paper" else ratio) - 1
            changes.append({"method": key.method, "task": key.task, "change": change})
    changes.sort(key=lambda one: one["change"])
    return changes if len(changes) < 2 else [changes[0], changes[-1]]


_NO_LIMITS = {IN_CACHE: "memory_in_cache", EXPERTS: "memory_of_experts", None: "memory"}


def _memory(run: RunMetrics, roofline: Roofline) -> tuple[str, Numbers]:
    """The memory bandwidth and what follows from it."""
    return _NO_LIMITS[roofline.no_bound], {
        "bandwidth": roofline.bandwidth,
        "block": roofline.block_bytes or None,
        "target_bytes": roofline.target_bytes,
        "cache_bytes": roofline.cache_bytes,
        "kv_share": roofline.kv_share,
        "used": bandwidth_shares(run, roofline),
    }


def _processor(info: RunHeader) -> Numbers:
    """The load by other programs and the clock. Servers are other programs too."""
    if info.cpu is None:
        return {}
    others = info.cpu.share_of_others
    load = {} if info.servers else {"others": others.mean, "others_most": others.max}
    return {**load, "clock": _span(info.cpu.clock_mhz)}


def _gpu(info: RunHeader) -> Numbers:
    if info.gpu is None:
        return {}
    return {
        "clock": _span(info.gpu.sm_clock_mhz),
        "memory_clock": _span(info.gpu.memory_clock_mhz),
        "temperature_c": _span(info.gpu.temperature_c),
        "power": _span(info.gpu.power_w),
    }


def _span(span: Span | None) -> Numbers | None:
    return structs.asdict(span) if span else None


def _definitions(runs: Sequence[RunMetrics]) -> Iterable[Note]:
    draws = sorted({(run.bootstrap.num_resamples, run.bootstrap.seed) for run in runs})
    for arithmetic in dict.fromkeys(run.arithmetic for run in runs):
        yield make_note(f"speedup_{arithmetic}")
    yield make_note(
        "intervals",
        scope=scope_text(runs),
        draws=[{"resamples": number, "seed": seed} for number, seed in draws],
        kinds=[*dict.fromkeys(run.scope.kind for run in runs if run.scope.is_estimated)],
    )
    served = [one for run in runs for one in run.serving.values()]
    costs = [one.relative for run in runs for one in run.costs.values()]
    rooflines = [run.roofline for run in runs]
    needed = {
        "mat": True,
        "cost": any(isinstance(cost, Estimate) for cost in costs),
        "limit": any(isinstance(one, Roofline) and one.no_bound is None for one in rooflines),
        "mean": any(len(run.tasks) > 1 for run in runs),
        "load": bool(served),
        "engine_mat": any(isinstance(one.engine_mat, Estimate) for one in served),
    }
    yield from (make_note(key) for key, is_needed in needed.items() if is_needed)
    for limits in dict.fromkeys(run.info.spec.values.goodput for run in runs):
        if served and limits:
            yield make_note("goodput", limits=limits)
    if tests := _alone(runs):
        yield make_note("alone", tests=tests)
    lossy = [run for run in runs if any(not one.is_lossless for one in run.info.method_labels)]
    yield from (make_note("lossy", run.info, decoding=_lossy_decoding(run)) for run in lossy)


def _bounds(run: RunMetrics) -> Iterable[Note]:
    """The least MAT of methods on a server whose answers do not list their steps."""
    for (method, temperature), one in run.serving.items():
        mat, least = run.pooled(method, temperature).mat, one.least_mat
        if isinstance(mat, Estimate) and formats.mat(mat) != formats.mat(least):
            where = {"method": method, "temperature": temperature}
            yield make_note("least_mat", run.info, **where, least=least)


def _alone(runs: Sequence[RunMetrics]) -> list[int]:
    """The numbers of tests in columns where an interval alone shows a difference."""
    return [
        sum(p_value is not None for p_value in one.against_baseline.values())
        for run in runs
        for one in (*run.rankings.values(), *run.task_rankings.values())
        if any(is_alone(value, one.against_baseline[m]) for m, value in one.speedups.items())
    ]


def _lossy_decoding(run: RunMetrics) -> list[Numbers]:
    """Decode-only speedups of lossy methods above temperature 0, where answers differ in length:
    the prefill's share of the time depends on the length.
    """
    return [
        {"method": method, "temperature": temperature, "speedup": overall.decode_speedup.value}
        for (method, temperature), overall in run.overall.items()
        if temperature > 0 and not run.info.method(method).is_lossless
        if isinstance(overall.decode_speedup, Estimate)
    ]


def _gaps(run: RunMetrics) -> Iterable[Note]:
    """One note per reason. A reason that all cells of a method share names the method alone."""
    where: dict[str, list[Numbers]] = defaultdict(list)
    for method in run.methods:
        cells = {key: cell for key, cell in run.cells.items() if key.method == method and key.task}
        reasons = {
            key: value.reason
            for key, cell in cells.items()
            for value in (cell.mat, cell.speedup)
            if isinstance(value, Missing)
        }
        if len(reasons) == len(cells) and len(set(reasons.values())) == 1:
            where[next(iter(reasons.values()))].append({"method": method})
            continue
        for key, reason in reasons.items():
            about = {"method": method, "task": key.task, "temperature": key.temperature}
            where[reason].append(about)
    for reason, found in where.items():
        yield make_note("missing", run.info, reason=reason, cells=found)
