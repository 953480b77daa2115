"""Count how many honest runs of servers are refused or accused, and how many lies are found.

    python -m benchmarks.honest_servers [RUNS] [LIES]

Each run is a complete run folder of two servers in simulated time: vanilla and a method. Loads,
request rates, acceptance, schedules of draft tokens, noise, drift of the machine, refusals and
failures are drawn at random. A server may report counters, counts in its answers, both, or neither.
A third of the methods look up drafts, and some of these find none at all. The output has a line for
each kind of honest run with the number refused or accused, and a line for each lie with the number
found.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from scipy.signal import lfilter

from benchmarks.served_tuning import Case
from specbench.analysis.baseline_drafts import count_baseline_drafts
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Missing
from specbench.analysis.tables import tabled
from specbench.errors import UserError
from specbench.judge.sources import check_sources_alone
from specbench.log.run import Run
from specbench.measure.plan import make_plan
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.settings.load_table import LoadTable
from specbench.types import BASELINE
from specbench.zoo import TINY
from tests.support.virtual_server import PLAIN_TABLE, Clock, VirtualServer, virtual_servers
from tests.support.watching import Watcher

NUM_RUNS = 200
NUM_LIES = 20
"""Number of runs for each lie."""
TASKS = ("gsm8k", "mt_bench")
REQUESTS = 24
"""Requests that a method gets in one pass at one load: eight prompts of one turn and eight of two.
"""
LOADS = ((1,), (4,), (8,), (1, 4, 8))
RATES = ((2.0,), (2.0, 8.0))
"""Requests per second."""
UNSEEN = "cannot be seen"
"""The finding if vanilla's server reports no counts of drafts. It does not accuse a server."""
DRIFT_S = 60.0
"""Seconds in which the correlation of the machine's speed falls to 1/e."""
NUM_SECONDS = 10_000
"""Number of seconds for which the machine's speed is drawn. A longer run repeats these speeds."""
EXPECTED = {
    "busy",
    "few_samples",
    "not_significant",
    "throttling",
    "disagreement",
    "survived",
    "failed_completions",
    "retries",
    "interrupted_blocks",
    "few_prompts",
}
"""Warnings about the sample, the machine, or the open behaviour of a server. All others accuse."""


class Seen(NamedTuple):
    """Evidence of drafts that a server reports."""

    has_counters: bool
    """True if the server has counters of all drafts since its start."""
    has_counts: bool
    """True if each answer has counts of its drafts, and the server identifies itself as vLLM."""


COUNTERS = Seen(has_counters=True, has_counts=False)
COUNTS = Seen(has_counters=False, has_counts=True)
NOTHING = Seen(has_counters=False, has_counts=False)
BOTH = Seen(has_counters=True, has_counts=True)
LIES = {
    "baseline drafts": (COUNTERS, COUNTS, BOTH),
    "baseline drafts from a later request on": (COUNTERS, BOTH),
    "both labels on one server": (COUNTERS, COUNTS, BOTH),
    "swapped addresses": (COUNTERS, COUNTS, BOTH),
    "drafts stop": (COUNTS, BOTH),
    "drafts stop, one request at a time": (COUNTERS, COUNTS, BOTH),
    "drafting steps cheaper than plain ones": (COUNTS, BOTH),
    "baseline drafts, unseen": (NOTHING,),
}
"""Each lie, with the values of `Seen` that its runs may have.

The first lie also covers a checkpoint that speculates without being asked. The servers of the last
lie show nothing.
"""
CLOSED = ("drafting steps cheaper than plain ones", "drafts stop, one request at a time")
"""Lies whose runs never have a request rate."""


@dataclass(frozen=True)
class Draw:
    """The drawn properties of a run on two servers. A run without a `lie` is honest."""

    case: Case
    method: str
    spec: RunSpec
    table: LoadTable
    find_share: float
    shows: Seen
    noise: float
    drift: float
    """Standard deviation of the logarithm of the machine's speed."""
    refused_share: float
    failed_share: float
    seed: int
    lie: str = ""

    @classmethod
    def drawn(cls, generator: np.random.Generator, lie: str = "") -> Draw:
        """Draw a run of any kind. If a lie is given, draw a run in which it could be seen."""
        has_rate = generator.random() < 0.25 and lie not in CLOSED
        rates = RATES[generator.integers(len(RATES))] if has_rate else ()
        loads = () if rates else LOADS[generator.integers(len(LOADS))]
        if lie == "drafts stop, one request at a time":
            loads = (1,)
        shown = LIES.get(lie, (COUNTERS, COUNTS, NOTHING, BOTH))
        is_lookup = not lie and generator.random() < 1 / 3
        num_tokens = int(generator.integers(1, 6))
        schedule = [(1, num_tokens), (4, num_tokens - 1), (6, 0)]
        has_schedule = not lie and not is_lookup and generator.random() < 0.25
        return cls(
            case=Case.drawn(generator),
            method="ngram" if is_lookup else "eagle3",
            spec=RunSpec(
                "tiny",
                backend="server",
                urls=("http://a.test", "http://b.test"),
                labels=(BASELINE, "ngram" if is_lookup else "eagle3"),
                tasks=TASKS,
                concurrency=loads,
                request_rates=rates,
                repeats=int(generator.integers(1, 3)),
                max_new_tokens=64,
                seed=int(generator.integers(1000)),
            ),
            table=LoadTable.of(schedule if has_schedule else schedule[:1]),
            find_share=float(generator.choice((0.0, 0.05, 0.5))) if is_lookup else 1.0,
            shows=shown[generator.integers(len(shown))],
            noise=float(generator.uniform(0.02, 0.2)),
            drift=float(generator.choice((0.0, 0.01, 0.02))),
            refused_share=float(generator.choice((0.0, 0.0, 0.05))),
            failed_share=float(generator.choice((0.0, 0.0, 0.03))),
            seed=int(generator.integers(2**31)),
            lie=lie,
        )

    @property
    def kinds(self) -> Iterator[str]:
        """The kinds of honest runs that this run belongs to."""
        yield "all"
        yield "request rates" if self.spec.request_rates else "requests at once"
        if self.shows == NOTHING:
            yield "neither counters nor counts"
        if self.find_share == 0:
            yield "no drafts at all"
        if len(self.table.starts) > 1:
            yield "schedules down to K=0"
        if self.drift:
            yield "drift"
        if self.failed_share:
            yield "failures, repeated"
        if self.refused_share:
            yield "refusals"


def drifting(generator: np.random.Generator, drift: float) -> FloatArray:
    """Factors by which the machine's drift lengthens times, one per second.

    Their logarithms have the standard deviation `drift` and a correlation time of DRIFT_S seconds.
    """
    correlation = math.exp(-1 / DRIFT_S)  # of one second with the next
    steps = generator.normal(0, drift * math.sqrt(1 - correlation**2), NUM_SECONDS)
    first = generator.normal(0, drift)
    # logs[0] = first, logs[i] = correlation * logs[i - 1] + steps[i - 1]
    logs: FloatArray = lfilter([1.0], [1.0, -correlation], [first, *steps])
    return np.exp(logs)


def servers_of(draw: Draw, codec: ChatCodec) -> dict[str, VirtualServer]:
    """The servers of a run, by address. They are honest, or behave as the run's lie says."""
    clock = Clock()
    generator = np.random.default_rng(draw.seed)
    drift = drifting(generator, draw.drift)

    def server(table: LoadTable, **more: Any) -> VirtualServer:
        return VirtualServer(
            clock,
            codec,
            generator,
            step_s=draw.case.step_s,
            accepted=draw.case.accepted,
            table=table,
            **draw.shows._asdict(),
            slowness=lambda now_s: float(drift[int(now_s) % len(drift)]),
            noise=draw.noise,
            refused_share=draw.refused_share,
            failed_share=draw.failed_share,
            **more,
        )

    plain = server(PLAIN_TABLE)
    drafting = server(draw.table, find_share=draw.find_share)
    num_loads = len(draw.spec.concurrency) + len(draw.spec.request_rates)
    middle = num_loads * (draw.spec.repeats or 1) * REQUESTS // 2
    match draw.lie:
        case "baseline drafts" | "baseline drafts, unseen":
            plain = server(draw.table)
        case "baseline drafts from a later request on":
            plain = server(draw.table, is_drafting=lambda number: number >= middle)
        case "both labels on one server":
            plain = drafting
        case "swapped addresses":
            plain, drafting = drafting, plain
        case "drafts stop" | "drafts stop, one request at a time":
            drafting.is_drafting = lambda number: number < middle
        case "drafting steps cheaper than plain ones":
            num_tokens = draw.table.at(1)
            plain.step_s = lambda _, load: 2 * draw.case.step_s(num_tokens, load)
    return dict(zip(draw.spec.urls, (plain, drafting), strict=True))


def completed(draw: Draw, codec: ChatCodec, folder: Path) -> Run:
    """Make the whole run, and repeat failed requests once. Raises UserError if it is refused."""
    servers = servers_of(draw, codec)
    clock = next(iter(servers.values())).clock
    with virtual_servers(clock, servers):
        run = run_plan(make_plan(draw.spec, is_offline=True), folder, Watcher(), given=())
        if any(not record.is_ok for record in run.records):
            plan = make_plan(draw.spec, is_offline=True)
            run = run_plan(
                plan, folder, Watcher(), given=(), repeats_failed=True, is_forced=True
            )  # even if this checkout has changed meanwhile
    if len(draw.table.starts) == 1:
        return run
    # As if the run had started the server: a running server does not report its schedule.
    rows = f'{{"num_speculative_tokens_per_batch_size": {draw.table.vllm_rows()}}}'
    command = ("--speculative-config", rows.replace("(", "[").replace(")", "]"))
    headers = run.header.servers
    started_server = structs.replace(headers[draw.method], command=command)
    all_headers = {**headers, draw.method: started_server}
    return replace(run, header=structs.replace(run.header, servers=all_headers))


def findings(draw: Draw, codec: ChatCodec) -> set[str]:
    """The findings against a run's servers: a refusal, warnings, and tasks without numbers."""
    with TemporaryDirectory() as folder:
        try:
            run = completed(draw, codec, Path(folder) / "run")
        except UserError as error:
            return {"refused for drafts" if "drafts" in error.message else error.message}
        accusations: set[str] = set()
        if count_baseline_drafts(run.header, run.records) is None:
            accusations.add(UNSEEN)
        for load in run.loads:
            run_at_load = run.at(load)
            accusations |= {*_against(measure(run_at_load, Bootstrap(200)), draw.method)}
            if any(check.status == "failed" for check in check_sources_alone(tabled(run_at_load))):
                accusations.add("source of speed")
        return accusations


def _against(metrics: RunMetrics, method: str) -> Iterator[str]:
    """Yield the warnings that accuse, and a finding if a task has no numbers for lack of drafts."""
    yield from {warning.key for warning in metrics.warnings} - EXPECTED
    cells = [metrics.cell(method, 0.0, task) for task in TASKS]
    reasons = [cell.mat.reason for cell in cells if isinstance(cell.mat, Missing)]
    if any("no drafts after" in reason or "no drafts in" in reason for reason in reasons):
        yield "drafts stopped"
    if any("drafted nothing" in reason for reason in reasons):
        yield "nothing drafted"


def is_named(draw: Draw, accusations: set[str]) -> bool:
    """True if the run has a finding. UNSEEN counts only if the servers show nothing."""
    return bool(accusations if draw.shows == NOTHING else accusations - {UNSEEN})


def main(num_runs: int = NUM_RUNS, num_lies: int = NUM_LIES) -> None:
    """Print how many honest runs were refused or accused, and how many lies were found."""
    codec = load_codec(TINY / "target", find_model("tiny"), "auto")
    generator = np.random.default_rng(0)
    num_of_kind: Counter[str] = Counter()
    num_accused: Counter[str] = Counter()
    num_findings: Counter[str] = Counter()
    for _ in range(num_runs):
        draw = Draw.drawn(generator)
        accusations = findings(draw, codec) - {UNSEEN}
        num_findings.update(accusations)
        num_of_kind.update(draw.kinds)
        if accusations:
            num_accused.update(draw.kinds)
    for kind, number in num_of_kind.items():
        print(f"honest, {kind}: {num_accused[kind]} of {number} refused or accused")
    print(f"findings against honest runs: {dict(num_findings) or 'none'}", flush=True)
    for lie in LIES:
        num_findings = Counter()
        num_named = 0
        for _ in range(num_lies):
            draw = Draw.drawn(generator, lie)
            accusations = findings(draw, codec)
            num_findings.update(accusations)
            num_named += is_named(draw, accusations)
        print(f"{lie}: {num_named} of {num_lies} named, {dict(num_findings)}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
