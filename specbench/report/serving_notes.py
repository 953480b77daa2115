"""Notes of a report on servers: facts, definitions and warnings. Computes no number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.serving import is_slow_client
from specbench.analysis.stats.bootstrap import Estimate
from specbench.log.header import RunHeader
from specbench.log.loads import loads_of
from specbench.report import formats

DEFINITIONS = (
    "Times are the client's. TTFT: to the first token. TPOT: per token after it. ITL: between "
    "arrivals of tokens. E2E: the whole request. Throughputs are over the time from the first "
    "request to the last answer. The speedup compares requests at the same load. A block, the "
    "requests of a method on a task at a load, is one sample of the machine."
)
ENGINE_MAT = "1 + accepted draft tokens / drafts, as the server counts them."

LEAST_MAT = "No count of the server says whether an end token was a draft, which takes a step more."


def servers_text(info: RunHeader) -> str:
    """The servers with their software and the form of requests; empty without any."""
    return "; ".join(
        f"{info.method(label).label}: {one.software} at {one.url}, {one.protocol}"
        for label, one in info.servers.items()
    )


def definitions(runs: Sequence[RunMetrics]) -> Iterable[tuple[str, str]]:
    """Label and text of the definitions that tables of servers need."""
    metrics = [one for run in runs for one in run.serving.values()]
    if metrics:
        yield "Load", DEFINITIONS
    if any(isinstance(one.engine_mat, Estimate) for one in metrics):
        yield "Engine's MAT", ENGINE_MAT
    for run in runs:
        for (method, temperature), one in run.serving.items():
            mat, least = run.pooled(method, temperature).mat, one.least_mat
            if formats.mat(mat) != formats.mat(least) and isinstance(mat, Estimate):
                label = run.info.method(method).label
                yield "MAT's bound", f"{label}: at least {formats.mat(least)}. {LEAST_MAT}"
    for limits in dict.fromkeys(run.info.spec.values.goodput for run in runs):
        if limits:
            yield "Goodput", f"requests per second that keep {limits} (milliseconds)."


def warnings(run: RunMetrics) -> Iterable[str]:
    """Reasons to distrust numbers of a run on servers."""
    for (method, temperature), one in run.serving.items():
        label = run.info.method(method).label
        where = f"{label} at T={temperature:g}" if len(run.temperatures) > 1 else label
        if is_slow_client(one):
            yield (
                f"The client itself takes {one.client_share * 100:.0f} % of the latency of "
                f"{where}, which makes the server look slower than it is. Run the client on an "
                "idle machine, or at a lower load."
            )
        if one.num_cached_tokens:
            yield (
                f"The server of {where} took {one.num_cached_tokens} prompt tokens from its prefix "
                "cache, so that its times to the first token are too short. Turn the cache off."
            )
        if one.num_retries:
            yield (
                f"The server of {where} refused {one.num_retries} requests at first; they were "
                "sent again, and their times include the waits before. Lower the load."
            )
        if one.num_interrupted:
            yield (
                f"{one.num_interrupted} blocks of {where} were interrupted and went on later: they "
                "are not in its throughput, and some of their requests met a lower load."
            )
        about = run.info.methods.get(method)
        most = about.options.get("num_tokens") if about else None
        if isinstance(most, int) and one.draft_length > most:
            yield (
                f"The server of {where} drafted {one.draft_length:.0f} tokens at once on average, "
                f"and was asked for {most}: it is not the method that its label names."
            )
        for task, text in one.contradictions:
            yield (
                f"{where} has no MAT on {task}: counts contradict each other ({text}). See the "
                "server's version and its log."
            )
        if isinstance(one.engine_mat, Estimate) and one.engine_mat.value == 1:
            yield (
                f"The server of {where} accepted no draft token. Check its draft weights: some "
                "engines leave out parts that they do not know without saying so."
            )
    fewest = min((one.in_flight.least_most for one in run.serving.values()), default=0)
    for load in loads_of(run.info.spec.values):
        if 0 < fewest < load.concurrency:
            yield (
                f"{load.text} were at most {fewest} in some blocks. Use {load.concurrency} prompts "
                "a task or more, or a lower --concurrency."
            )


def load_text(run: RunMetrics) -> str:
    """The loads that were asked for, and the requests that were in flight."""
    text = ", ".join(load.text for load in loads_of(run.info.spec.values))
    found = [one.in_flight for one in run.serving.values() if one.in_flight.most > 1]
    if not found:
        return text
    mean, most = sum(one.mean for one in found) / len(found), max(one.most for one in found)
    return f"{text} ({mean:.1f} in flight, at most {most})"
