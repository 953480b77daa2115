"""Make the notes about the machine, settings and samples of a run, and about findings.

This module gathers the numbers of each note, and `texts.toml` has the sentences.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import structs

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.roofline import ABOVE, EXPERTS, IN_CACHE, Roofline
from specbench.analysis.stats.estimates import Estimate
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.log.machine import Threads
from specbench.log.usage import Span
from specbench.report import facts, server_notes
from specbench.report.cpu_notes import slow_on_cpu
from specbench.report.texts import Note, Numbers, make_note
from specbench.report.warning_notes import bandwidth_shares, bandwidth_way, failures

_MEMORY_NOTES = {
    IN_CACHE: "memory_in_cache",
    EXPERTS: "memory_of_experts",
    ABOVE: "memory_above",
    None: "memory",
}
"""Reason why there is no bandwidth bound -> key of the note about memory."""


def fact_notes(run: RunMetrics) -> Iterable[Note]:
    """Yield the notes about the facts of a run. Notes without a number are left out."""
    for key, numbers in _facts(run):
        if any(numbers.values()):
            yield make_note(key, run.info, **numbers)


def _facts(run: RunMetrics) -> Iterator[tuple[str, Numbers]]:
    """Yield keys of notes in `texts.toml`, with the values for their texts, in a report's order."""
    info = run.info  # the header of the run
    environment = info.environment  # hardware and software
    spec = info.spec.values  # the settings in effect
    # After a single local pass, it is not known if a method reuses answers of earlier passes.
    is_one_local_pass = not spec.backend and not info.servers and spec.repeats == 1
    yield "machine", {"device": info.device_phrase}
    yield "software", {"software": environment.software_phrase, "commit": environment.commit_phrase}
    yield "run", _settings(info)  # the settings that a report prints
    yield "thinking", facts.thinking(info)  # the thinking mode, if the template has one
    yield "servers", {"servers": _servers(info)}  # the methods' servers, if there are any
    yield "server_use", server_notes.server_use(run)  # memory and energy of servers on this machine
    yield "arrangement", server_notes.arrangement(info)  # if servers ran together
    yield "workers", {"workers": facts.workers(info)}  # the processes of a cluster, if any
    yield "steps", _execution(info)  # how steps were executed, and the kernels
    yield "draft_weights", {"methods": facts.draft_weights(info)}  # facts about their layers
    yield "one_pass", {"is_one": is_one_local_pass}
    yield "threads", _threads(run)  # CPU threads
    yield samples(run)  # samples and completions
    yield "copied_prompts", {"tasks": facts.copied_prompts(info)}  # prompts with several ids
    yield "prompts_read", {"methods": facts.prompt_offsets(run)}  # server's tokens - ours
    yield "drafting", {"methods": facts.drafting_shares(run)}  # shares of steps with a draft
    # True if nothing shows whether vanilla's server drafted.
    yield "unseen_drafts", {"is_unseen": facts.is_baseline_unseen(run)}
    yield "lossless", {"counts": _agreements(run)}  # completions that have vanilla's tokens
    if run.audit:  # the stored audit of the output, if there is one
        yield _audit(run.audit)
    yield f"formula_{run.arithmetic}", {"changes": _formula(run)}  # with the other formula
    if isinstance(run.roofline, Roofline):  # the memory bandwidth is known
        yield _memory(run, run.roofline)
    yield "cpu_trees", slow_on_cpu(run)  # methods that are slower than vanilla on a CPU
    yield "processor", _processor(info)  # load and clock
    yield "gpu", _gpu(info)  # clocks, temperature and power
    yield "energy", _energy(info)  # of each method while it ran alone


def _settings(info: RunHeader) -> Numbers:
    spec = info.spec.values
    return {
        "id": info.id,
        "status": info.status,
        "model": info.model.name,
        "precision": info.model.precision,
        "device": spec.device,
        "prompts": spec.prompts,
        "max_new_tokens": spec.max_new_tokens,
        "seed": spec.seed,
    }


def _servers(info: RunHeader) -> list[Numbers]:
    return [
        {
            "method": label,
            "software": server.software_phrase,
            "url": server.url,
            "protocol": server.protocol,
        }
        for label, server in info.servers.items()
    ]


def _execution(info: RunHeader) -> Numbers:
    """Return how methods' steps were executed, and the kernels of the layers, for a note.

    `modes` lists each mode ("graph" for CUDA graphs, "eager" for operations one by one) with its
    methods and a reason, which may be None. The methods of the most common mode, which comes first,
    are not named. `kernels` is the name of the kernels, and `reason` is why they are not
    specbench's own, or None. Both are left out if the header has no kernels or modes.
    """
    # (mode, reason for the mode or None) -> methods with their options
    methods_by_mode: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for spelling, execution in info.execution.items():
        methods_by_mode[execution.mode, execution.reason].append(spelling)
    commonest_first = sorted(
        methods_by_mode.items(), key=lambda mode_and_methods: len(mode_and_methods[1]), reverse=True
    )
    modes: list[Numbers] = [
        # The commonest mode has no names: it has all methods that no other mode names.
        {"mode": mode, "reason": reason, "methods": spellings if rank > 0 else []}
        for rank, ((mode, reason), spellings) in enumerate(commonest_first)
    ]
    if not modes or not info.kernels:
        return {"modes": modes}
    return {"modes": modes, "kernels": info.kernels.name, "reason": info.kernels.reason}


def _threads(run: RunMetrics) -> Numbers:
    """Return the numbers of CPU threads of vanilla's steps, of all prefills, and of other methods.

    `methods` are those whose number differs from vanilla's. They also have their decode speedups
    with vanilla's number, for each temperature, if steps were timed with both numbers. The result
    is empty if all numbers are equal.
    """
    threads = run.info.threads
    if not threads or not (threads.own or threads.of_prefill != threads.num):
        return {}
    methods = [
        {"method": method, "speedups": _with_common_threads(run, threads, method, num)}
        for method, num in threads.own.items()
    ]
    return {"number": threads.num, "prefill": threads.of_prefill, "methods": methods}


def _with_common_threads(run: RunMetrics, threads: Threads, method: str, num: int) -> list[float]:
    """Return a method's decode speedups with vanilla's number of threads, at each temperature.

    `num` is the method's own number. The list is empty if a step was not timed with both numbers.
    """
    step_s = threads.method_step_s.get(method, {})  # the seconds of a step, by number of threads
    measured_s = step_s.get(str(num))
    common_s = step_s.get(str(threads.num))
    if not measured_s or not common_s:
        return []
    # speedup = vanilla's time per token / (step_s / MAT); MAT does not depend on threads
    return [
        overall.decode_speedup.value * measured_s / common_s
        for (name, _), overall in run.overall.items()
        if name == method and isinstance(overall.decode_speedup, Estimate)
    ]


def samples(run: RunMetrics) -> tuple[str, Numbers]:
    """Return the key of the note about samples and completions, and its numbers.

    "samples" and "done" have the smallest and the largest number of all methods and temperatures.
    """
    # the numbers of each method and temperature over all tasks
    cells = [overall.pooled for overall in run.overall.values() if overall.pooled.num_done]
    if not cells:
        return "no_samples", {"done": [0]}
    nums_samples = [cell.num_samples for cell in cells]
    nums_done = [cell.num_done for cell in cells]
    return "samples", {
        "samples": [min(nums_samples), max(nums_samples)],
        "done": [min(nums_done), max(nums_done)],
        "failed": sum(failures(run).values()),
        "repeated": run.num_repeated or None,
    }


def _agreements(run: RunMetrics) -> list[Numbers]:
    """Return the number of greedy completions in which each method gave vanilla's tokens.

    Methods with the same numbers share an entry. `first_position` is None without a difference.
    """
    # (identical completions, compared completions) -> methods
    methods_by_counts: dict[tuple[int, int], list[Numbers]] = defaultdict(list)
    for method, agreement in run.agreements.items():
        counts = (agreement.num_identical, agreement.num_compared)
        methods_by_counts[counts].append(
            {"method": method, "first_position": agreement.first_position}
        )
    return [
        {"identical": identical, "compared": compared, "methods": methods}
        for (identical, compared), methods in methods_by_counts.items()
    ]


def audit_note(audit: StoredAudit) -> Note:
    """Return the note about a stored audit: its result, and the smallest error it would find."""
    key, numbers = _audit(audit)
    return make_note(key, **numbers)


def _audit(audit: StoredAudit) -> tuple[str, Numbers]:
    failed = {result.method for result in audit.results if result.status == "bug"}
    numbers = {
        "failed": len(failed),
        "date": audit.created[:10],
        "dtype": audit.dtype,
        "smallest_tv": audit.smallest_tv,
        "unknown": None if audit.records_sha256 else "the audit has no hash of the records",
    }
    return "audit_failed" if failed else "audit_passed", numbers


def _formula(run: RunMetrics) -> list[Numbers]:
    """Return the smallest and largest relative change that the other speedup formula would make.

    A cell is a method at a temperature on a task. It has two speedups: `our_speedup` is the ratio
    of times per token, and `paper_speedup` is the ratio of mean tokens/s. The run uses one of them.
    The change is the other speedup / the used speedup - 1; the smallest one may be negative. There
    are two changes, each with its cell, or fewer if fewer than two cells have both speedups.
    """
    changes: list[Numbers] = []
    for key, cell in run.cells.items():
        if not key.task or key.method == BASELINE:  # the cell is for all tasks, or for vanilla
            continue
        our_speedup = cell.our_speedup
        paper_speedup = cell.paper_speedup
        if isinstance(our_speedup, Estimate) and isinstance(paper_speedup, Estimate):
            paper_to_our = paper_speedup.value / our_speedup.value
            # `arithmetic` is the formula of the run: "ours" or "paper"
            other_to_used = 1 / paper_to_our if run.arithmetic == "paper" else paper_to_our
            subject = {name: getattr(key, name) for name in ("method", "temperature", "task")}
            changes.append({**subject, "change": other_to_used - 1})
    changes.sort(key=lambda numbers: numbers["change"])
    return changes if len(changes) < 2 else [changes[0], changes[-1]]


def _memory(run: RunMetrics, roofline: Roofline) -> tuple[str, Numbers]:
    """Return the key of the note about memory, and the numbers in its sentence."""
    least = roofline.least_bandwidth  # the lowest bandwidth measured before or after the run
    return _MEMORY_NOTES[roofline.no_bound], {
        "bandwidth": roofline.bandwidth,
        "way": bandwidth_way(run, roofline),
        "least": least if 0 < least < roofline.bandwidth else None,
        "block": roofline.block_bytes or None,
        "copies": roofline.copy_bandwidth or None,
        "nominal": roofline.nominal_bandwidth or None,
        "target_bytes": roofline.target_bytes,
        "cache_bytes": roofline.cache_bytes,
        "kv_share": roofline.kv_share,
        "used": bandwidth_shares(run, roofline),
    }


def _processor(info: RunHeader) -> Numbers:
    """Return the clock and, in a run without servers, the share of other programs."""
    if info.cpu is None:
        return {}
    clock = {"clock": _span(info.cpu.clock_mhz)}
    if info.servers:
        return clock
    others = info.cpu.share_of_others
    return {"others": others.mean, "others_most": others.max, **clock}


def _gpu(info: RunHeader) -> Numbers:
    if info.gpu is None:
        return {}
    return {
        "clock": _span(info.gpu.sm_clock_mhz),
        "memory_clock": _span(info.gpu.memory_clock_mhz),
        "temperature_c": _span(info.gpu.temperature_c),
        "power": _span(info.gpu.power_w),
    }


def _energy(info: RunHeader) -> Numbers:
    """Return how the energy of methods was measured, and why some methods have none."""
    metered = [energy for energy in info.energy if energy.joules_per_token is not None]
    methods_by_reason: dict[str, list[str]] = defaultdict(list)
    for energy in info.energy:
        if energy.absent:
            methods_by_reason[energy.absent].append(energy.method)
    return {
        "meters": [*dict.fromkeys(name for energy in metered for name in energy.meters)],
        "seconds": min((energy.duration_s for energy in metered), default=None),
        "idle": max((energy.idle_w for energy in metered), default=0.0) or None,
        "tick": max((energy.tick_j for energy in metered), default=0.0) or None,
        "absent": [
            {"reason": reason, "methods": [*dict.fromkeys(methods)]}
            for reason, methods in methods_by_reason.items()
        ],
    }


def _span(span: Span | None) -> Numbers | None:
    return structs.asdict(span) if span else None
