"""Make the warnings below a report. Each is a reason to distrust numbers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from specbench.analysis.grouping import group_by
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.roofline import LEAST_SHARE, Roofline
from specbench.analysis.serving import ServingMetrics, is_slow_client
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.warnings import RunWarning
from specbench.errors import first_line
from specbench.log.audit import MethodAudit
from specbench.log.header import RunHeader
from specbench.log.run import loads_of
from specbench.log.usage import CpuUse
from specbench.machine.environment import BUSY_AT_START, with_one_start
from specbench.report import facts
from specbench.report.texts import Note, Numbers, make_notes

_STATES = {"interrupted": "interrupted", "running": "running", "failed": "failed_run"}
"""The key of the warning for each status of a run that is not complete."""


class _Warning(NamedTuple):
    """A warning before its sentence is made."""

    key: str
    """The key of the warning's entry in `texts.toml`."""
    numbers: Numbers
    """The numbers in the sentence."""


def warnings(run: RunMetrics) -> Iterable[Note]:
    """Yield every reason to distrust the run. Methods with the same reason share a note."""
    # (key, sentence) -> warnings. The sentence is "" if the warning has numbers instead.
    warnings_of = group_by(
        _warnings(run), key=lambda warning: (warning.key, warning.numbers.get("text", ""))
    )
    for (key, _), similar in warnings_of.items():
        yield from make_notes(key, run.info, [warning.numbers for warning in similar])


def _warnings(run: RunMetrics) -> Iterator[_Warning]:
    """Yield all warnings about a run, the gravest first.

    Each has a key of `texts.toml`, and numbers for the text. The warnings in the header `run.info`
    are sentences that the run recorded. `run.warnings` were computed from its records.
    """
    if run.info.status in _STATES:  # the run is not complete
        yield _Warning(_STATES[run.info.status], {})
    if run.missing_text:  # the records that it lacks, in words
        yield _Warning("incomplete", {"missing": run.missing_text})
    yield from _failed(run)  # completions that failed, and lines that could not be read
    recorded = with_one_start(run.info.warnings)  # sentences; some begin with "METHOD: "
    method_warnings = [text for text in recorded if text.partition(": ")[0] in run.info.methods]
    yield from _recorded(method_warnings)  # grave, since a method's acceptance may be wrong
    for computed in run.warnings:
        # If there were too few samples, the numbers have advice on how to get more.
        yield _Warning(computed.key, with_advice(computed, run.info))
    yield from _failed_audits(run)  # methods whose output is not the target's
    yield from _different_outputs(run)  # lossless methods whose greedy tokens differ from vanilla's
    yield from _slow_baseline(run)
    yield from _slow_client(run)
    # The throughput, latencies and counters of each method's server, if there are servers.
    for (method, temperature), server_metrics in run.serving.items():
        yield from _of_server(run.info, method, temperature, server_metrics)
    yield from _few_prompts(run)  # fewer prompts than requests at once
    busy_warnings = [*_other_programs(run.info)]
    yield from busy_warnings
    # The load before the run is left out if the load during it is shown, since both have one cause.
    unneeded = [text for text in recorded if busy_warnings and text.startswith(BUSY_AT_START)]
    unneeded += method_warnings  # yielded above
    yield from _recorded([text for text in recorded if text not in unneeded])


def _recorded(texts: Sequence[str]) -> Iterator[_Warning]:
    """Yield the warnings that a run recorded, which are sentences."""
    for text in texts:
        yield _Warning("recorded", {"text": text})


def with_advice(warning: RunWarning, info: RunHeader) -> Numbers:
    """Return the numbers of a warning's sentence. If samples were too few, "more" has advice.

    The advice says how to get enough prompts: options of the command, or a number of prompts.
    """
    if warning.key != "few_samples":
        return warning.numbers
    num_needed = warning.numbers["needed"]  # prompts per task
    # The prompts per task that the run's source has, for the task with the fewest. 0 if unknown.
    num_available = min((prompts.num_available for prompts in info.prompts), default=0)
    if num_needed <= num_available:
        advice = f"--limit {num_needed}"
    elif info.spec.values.prompts == "bundled" and not info.imported:
        advice = f"--prompts paper --limit {num_needed}"
    else:
        advice = f"about {num_needed} prompts per task"
    return {**warning.numbers, "more": advice}


def _failed(run: RunMetrics) -> Iterator[_Warning]:
    """Yield warnings about completions that failed, and lines that could not be read."""
    if num_by_method := failures(run):
        errors = (overall.pooled.first_error for overall in run.overall.values())  # text or None
        first_error = next((error for error in errors if error), "no reason given")
        yield _Warning(
            "failed_completions",
            {
                "methods": [{"method": name, "failed": num} for name, num in num_by_method.items()],
                "error": first_line(first_error, most=len(first_error)),
            },
        )
    if run.left_out:  # lines that could not be read, with reasons
        numbers = {"lines": len(run.left_out), "first": first_line(run.left_out[0])}
        yield _Warning("left_out", numbers)


def _failed_audits(run: RunMetrics) -> Iterator[_Warning]:
    """Yield a warning for each method that failed the stored audit."""
    for audit in run.audit.results if run.audit else ():
        if audit.status == "bug":
            failure = audit_failure(audit)
            numbers = {"method": audit.method, "level": audit.level, "failure": failure}
            yield _Warning("failed_audit", numbers)


def _different_outputs(run: RunMetrics) -> Iterator[_Warning]:
    """Yield a warning for each lossless method whose greedy output differs from vanilla's."""
    for method, agreement in run.agreements.items():
        num_different = len(agreement.divergences)
        if num_different and run.info.method(method).is_lossless:
            numbers = {
                "method": method,
                "different": num_different,
                "compared": agreement.num_compared,
                "first_position": agreement.first_position,
            }
            yield _Warning("different_output", numbers)


def _slow_baseline(run: RunMetrics) -> Iterator[_Warning]:
    """Yield a warning if vanilla uses far less than the memory bandwidth, which inflates speedups.

    It is about the first temperature at which the used share is below `LEAST_SHARE`. Its key is
    "slow_baseline". The key is "busy_baseline" if other programs used the processor, since the
    cause is then unclear.
    """
    roofline = run.roofline  # the memory bandwidth, and the bytes that steps read
    if not isinstance(roofline, Roofline):  # the reason why the bandwidth is unknown
        return
    # `bandwidth` is the largest that was measured. Shares are computed with the smallest, if it is
    # known, since memory may have been slower during the run. They may be a little above 1.
    largest_to_least = roofline.bandwidth / (roofline.least_bandwidth or roofline.bandwidth)
    # a share for each temperature
    shares = [numbers["share"] * largest_to_least for numbers in bandwidth_shares(run, roofline)]
    low_shares = [share for share in shares if share < LEAST_SHARE]
    if low_shares and run.info.cpu and run.info.cpu.others_warning:
        others = run.info.cpu.share_of_others.mean
        yield _Warning("busy_baseline", {"share": low_shares[0], "others": others})
    elif low_shares:
        device = "gpu" if facts.is_on_gpu(run.info) else "cpu"
        numbers = {
            "share": low_shares[0],
            "least": LEAST_SHARE,
            "cause": device,  # selects the words for the likely cause
            "way": bandwidth_way(run, roofline),  # how the bandwidth was measured
            "bandwidth": roofline.least_bandwidth or roofline.bandwidth,  # bytes/s
            "block": roofline.block_bytes or None,  # bytes that were read or copied to measure it
        }
        yield _Warning("slow_baseline", numbers)


def _slow_client(run: RunMetrics) -> Iterator[_Warning]:
    """Yield a warning for each temperature about methods whose latency is partly the client's."""
    slow = {key: server for key, server in run.serving.items() if is_slow_client(server)}
    for temperature in dict.fromkeys(temperature for _, temperature in slow):
        shares = {
            method: server.client_share
            for (method, slow_temperature), server in slow.items()
            if slow_temperature == temperature
        }
        numbers = {
            "share": max(shares.values()),
            "methods": [*shares],
            "temperature": temperature,
        }
        yield _Warning("slow_client", numbers)


def _of_server(
    info: RunHeader, method: str, temperature: float, server: ServingMetrics
) -> Iterator[_Warning]:
    """Yield warnings about the server of a method at a temperature.

    `server` has its metrics. A block is the requests of a method on a task at a load in one pass. A
    `_Warning` is a key in `texts.toml` and the numbers of its sentence.
    """
    where = {"method": method, "temperature": temperature}
    if server.num_cached_tokens:  # prompt tokens that came from its prefix cache
        yield _Warning("prefix_cache", {**where, "tokens": server.num_cached_tokens})
    prompts = server.prompts  # what is known of the prompts that the server read
    if prompts.num_uncounted:
        yield _Warning("uncounted_prompts", {**where, "answers": prompts.num_uncounted})
    if prompts.first_other:  # counts of the first prompt that vanilla's server read differently
        numbers = {"requests": prompts.num_other, **prompts.first_other._asdict()}
        yield _Warning("other_prompts", {**where, **numbers})
    if server.num_retries:  # how often it refused a request, which was then sent again
        yield _Warning("retries", {**where, "requests": server.num_retries})
    if server.num_interrupted:  # blocks that continued after an interruption of the run
        yield _Warning("interrupted_blocks", {**where, "blocks": server.num_interrupted})
    if server.num_restarted:  # blocks in which its counters were lost
        yield _Warning("restarted", {**where, "blocks": server.num_restarted})
    header = info.methods.get(method)  # the method's name and options
    # The number of draft tokens that the method's option asks for, or None without the option.
    asked_length = header.options.get("num_tokens") if header else None
    # `draft_length` is the mean number of draft tokens, from the server's counters.
    if isinstance(asked_length, int) and server.draft_length > asked_length:
        numbers = {**where, "drafted": server.draft_length, "asked": asked_length}
        yield _Warning("long_drafts", numbers)
    # Pairs of a task and a contradiction between its counts, in words.
    for task, counts in server.contradictions:
        yield _Warning("contradiction", {**where, "task": task, "counts": counts})


def _few_prompts(run: RunMetrics) -> Iterator[_Warning]:
    """Yield a warning for each load with more requests at once than there were prompts."""
    # The smallest of the blocks' largest numbers of requests at once, or 0 if unknown.
    fewest = min((server.in_flight.least_most for server in run.serving.values()), default=0)
    for load in loads_of(run.info.spec.values):
        if 0 < fewest < load.concurrency:
            numbers = {"load": load.text, "asked": load.concurrency, "in_flight": fewest}
            yield _Warning("few_prompts", numbers)


def _other_programs(info: RunHeader) -> Iterator[_Warning]:
    """Yield a warning for each machine on which other programs used the processor during the run.

    Machines with servers, or with several workers of the run, are left out, because these would
    count as other programs. A worker is a process of a cluster that completes samples.
    """
    # The use of the processor during the run, by the name of the worker, or "" for this process. It
    # is None if it was not sampled.
    cpu_by_worker: dict[str, CpuUse | None] = {} if info.servers else {"": info.cpu}
    # `node` is the id of the worker's machine.
    num_workers_by_node = Counter(worker.node for worker in info.workers.values())
    cpu_by_worker |= {
        name: worker.cpu
        for name, worker in info.workers.items()
        if num_workers_by_node[worker.node] == 1
    }
    for name, cpu in cpu_by_worker.items():
        if cpu and cpu.others_warning:  # a sentence, or None if other programs used little
            yield _Warning("busy", {"worker": name, "text": cpu.others_warning})


def failures(run: RunMetrics) -> Mapping[str, int]:
    """Return the number of failed completions of each method that has any."""
    num_failed = Counter[str]()
    for (method, _), overall in run.overall.items():
        num_failed[method] += overall.pooled.num_failed
    return {method: number for method, number in num_failed.items() if number}


def bandwidth_way(run: RunMetrics, roofline: Roofline) -> str:
    """Return how the bandwidth was measured: by reads, or by copies in older runs on a GPU."""
    return "reads" if roofline.copy_bandwidth or not facts.is_on_gpu(run.info) else "copies"


def bandwidth_shares(run: RunMetrics, roofline: Roofline) -> list[Numbers]:
    """Return the share of the bandwidth that vanilla used at each temperature with valid times."""
    shares: list[Numbers] = []
    for temperature in run.temperatures:
        cost = run.cost(BASELINE, temperature)
        share = roofline.bandwidth_share(cost.step_s)
        if isinstance(cost.decode_speedup, Estimate) and isinstance(share, Estimate):
            shares.append({"temperature": temperature, "share": share.value})
    return shares


def audit_failure(audit: MethodAudit) -> str:
    """Return why a method failed its audit, in words: an error, or its clearest failed test.

    The clearest test is one with a limit instead of a p-value, or else the one with the lowest
    p-value. A test looks for a difference from the target's output, and `effect` is its size.
    """
    if audit.fault:  # the error that ended the method's answers, or ""
        return audit.fault.rstrip(".")
    if not audit.failures:  # the failed tests
        return "the test is not stored"
    test = min(audit.failures, key=lambda failure: failure.p_value or 0.0)
    # The subject is what was tested, such as "tokens". The unit of the effect may be "".
    effect = f"{test.effect:.3g} {test.unit}".rstrip()
    effect_text = f'the test "{test.subject}: {test.name}" has an effect of {effect}'
    if test.p_value is not None:
        return f"{effect_text} (p = {test.p_value:.2g})"
    if test.limit is not None:  # the largest effect that passes
        return f"{effect_text} (allowed: {test.limit:.3g})"
    return effect_text
