"""The numbers of a method on a server at one load: throughput, latency, goodput and acceptance.

Names and definitions are as in `vllm bench serve`: TTFT is the time to the first token,
TPOT the time per token after it, ITL the time between arrivals of tokens, E2E the time of the
whole request. Times are the client's. Throughputs are sums over blocks / the blocks'
durations. Interrupted blocks are left out: their rest ran at a lower load.

- MAT, where a server does not list its steps: (tokens - 1) / steps, with the steps that its counts
  imply (see `served_steps`).
- The engine's MAT: 1 + accepted draft tokens / drafts. Steps without a draft do not count, and
  tokens accepted beyond the end of an answer do.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate, chain, count, takewhile
from typing import Any

import numpy as np

from specbench.analysis.cells import NOT_RUN, Percentiles, percentiles
from specbench.analysis.records import BASELINE, CELL_KEY, RecordTable
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.backend import BlockHeader
from specbench.log.header import RunHeader
from specbench.log.run import BlockKey, block_key
from specbench.types import Record

NO_COUNTS = Missing("the server reports no drafts")
NO_LIMITS = Missing("no --goodput")
NO_BLOCKS = Missing("no block of vanilla at this load")
OTHERS = Missing("the server's counters count other requests too")
HAS_FAILED = Missing("requests failed, and the server's counters count them")
INTERRUPTED = Missing("all blocks were interrupted")
_MOST_CLIENT = 0.02
"""Share of a latency that the client may take."""
_LEAST_OWN = 0.98
"""Least share of a server's counted tokens that must be this run's."""

Limits = Mapping[str, float]
"""Most seconds of a good request by the name of the time: ttft, tpot, e2e."""


@dataclass(frozen=True, slots=True)
class Times:
    """Mean and percentiles of times in seconds."""

    mean: Value
    percentiles: Percentiles


@dataclass(frozen=True, slots=True)
class InFlight:
    """Requests that a server worked on at once: mean over time, and the most.

    `least_most` is the most in the block that had the fewest.
    """

    mean: float = 0.0
    most: int = 0
    least_most: int = 0


@dataclass(frozen=True, slots=True)
class ServingMetrics:
    """A method at one load, over all tasks. Throughputs are per second.

    `least_mat` is the MAT if every answer that may have taken one step more has.
    `draft_length` is the mean of the tokens of a draft, by the server's counters.
    `contradictions` are pairs of a task and what contradicts itself in the counts of its
    blocks. `num_restarted` counts the blocks in which a server that has counters lost them.
    """

    ttft: Times
    tpot: Times
    itl: Times
    e2e: Times
    request_throughput: Value
    output_throughput: Value
    total_throughput: Value
    goodput: Value
    throughput_ratio: Value
    engine_mat: Value
    in_flight: InFlight = InFlight()
    least_mat: Value = NO_COUNTS
    draft_length: float = 0.0
    acceptance_rates: tuple[float, ...] = ()
    contradictions: tuple[tuple[str, str], ...] = ()
    client_share: float = 0.0
    num_cached_tokens: int = 0
    num_retries: int = 0
    num_interrupted: int = 0
    num_restarted: int = 0


def measure_serving(
    header: RunHeader, table: RecordTable, bootstrap: Bootstrap, limits: Limits
) -> dict[tuple[str, float], ServingMetrics]:
    """The numbers of every method at every temperature; empty without blocks."""
    rows: dict[Any, IntArray] = table.frame.groupby(CELL_KEY[:2], observed=True).indices
    blocks: dict[tuple[str, float], list[BlockHeader]] = defaultdict(list)
    for block in header.blocks:
        blocks[block.method, block.temperature].append(block)
    draws, none = Draws(bootstrap, "blocks"), np.empty(0, dtype=np.intp)
    found = {}
    for key, own in blocks.items():
        baseline = blocks.get((BASELINE, key[1]), [])
        found[key] = _measure(own, table, rows.get(key, none), baseline, draws, limits)
    return found


def mat_of_blocks(blocks: Iterable[BlockHeader]) -> Value:
    """MAT from the server's counters, for servers that report no draft of a single request."""
    own = [block for block in blocks if "num_accepted" in block.counters]
    if not own:
        return NO_COUNTS
    if problem := _counters_problem(own):
        return problem
    emitted = sum(block.num_tokens - block.num_requests for block in own)
    steps = max(emitted - _total(own, "num_accepted"), _total(own, "num_drafts"))
    return Estimate(emitted / steps) if steps > 0 else NO_COUNTS


def _measure(
    blocks: Sequence[BlockHeader],
    table: RecordTable,
    rows: IntArray,
    baseline: Sequence[BlockHeader],
    draws: Draws,
    limits: Limits,
) -> ServingMetrics:
    """The numbers from a method's blocks, and vanilla's, and from the method's rows."""
    served = table.served
    emitted = sum(served.emitted[row] for row in rows)
    most_steps = sum(served.steps[row] + served.more[row] for row in rows)
    texts = [(one.task, served.contradictions.get(block_key(one))) for one in blocks]
    done_rows = rows[[table.records[row].is_ok for row in rows]]
    done = [table.records[row] for row in done_rows]
    ttft, decode_s, e2e, num_tokens, prompt_tokens = table.values(
        done_rows, "prefill_s", "decode_s", "wall_s", "num_tokens", "prompt_tokens"
    )
    tpot = decode_s / np.maximum(num_tokens - 1, 1)
    gaps = chain.from_iterable(record.serving.gaps_s for record in done if record.serving)
    per_block = partial(_throughput, blocks, draws)
    drafts = _total(blocks, "num_drafts")
    times = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    is_good = np.all([times[name] <= limit for name, limit in limits.items()], axis=0)
    share_good = float(is_good.sum() / max(len(rows), 1))
    requests = per_block(lambda block: block.num_requests)
    # A run that was interrupted has a share of only some records.
    goodput = Estimate(requests.value * share_good) if isinstance(requests, Estimate) else requests
    output = per_block(lambda block: block.num_tokens)
    tokens = int((num_tokens + prompt_tokens).sum())
    scaled = 0.0
    if isinstance(output, Estimate) and num_tokens.any():
        scaled = output.value / int(num_tokens.sum())
    return ServingMetrics(
        ttft=_times(ttft),
        tpot=_times(tpot[num_tokens > 1]),
        itl=_times(np.array([*gaps])),
        e2e=_times(e2e),
        request_throughput=per_block(lambda block: block.num_requests - block.num_failed),
        output_throughput=output,
        total_throughput=Estimate(tokens * scaled) if scaled else NOT_RUN,
        goodput=goodput if limits else NO_LIMITS,
        throughput_ratio=_ratio(blocks, baseline, draws),
        engine_mat=_engine_mat(blocks, done),
        in_flight=_in_flight(blocks, done),
        least_mat=Estimate(emitted / most_steps) if most_steps else NO_COUNTS,
        draft_length=_total(blocks, "num_draft_tokens") / drafts if drafts else 0.0,
        acceptance_rates=_acceptance_rates(blocks),
        contradictions=tuple((task, text) for task, text in texts if text),
        client_share=_client_share(blocks, e2e),
        num_cached_tokens=int(_total(blocks, "num_cached_tokens")),
        num_retries=sum(record.serving.num_retries for record in done if record.serving),
        num_interrupted=sum(block.num_before > 0 for block in blocks),
        num_restarted=sum(not one.counters for one in blocks if any(b.counters for b in blocks)),
    )


def _throughput(
    blocks: Sequence[BlockHeader], draws: Draws, amount: Callable[[BlockHeader], float]
) -> Value:
    """The throughput of an amount of a block, with an interval over blocks.

    A block in which everything failed counts with its time, and leaves no interval.
    """
    whole = [block for block in blocks if not block.num_before]
    if blocks and not whole:
        return INTERRUPTED
    used = [block for block in whole if block.duration_s > 0]
    top = np.array([[amount(block)] for block in used], dtype=np.float64)
    if not top.any():
        return NOT_RUN
    ratio = Ratio(top, np.array([[block.duration_s] for block in used]))
    return draws.estimate(ratio) if top.all() else ratio.estimate


def _in_flight(blocks: Sequence[BlockHeader], done: Iterable[Record]) -> InFlight:
    """The requests at once in blocks that were measured in one go."""
    whole = {block_key(block): block.duration_s for block in blocks if not block.num_before}
    events: dict[BlockKey, list[tuple[float, int]]] = defaultdict(list)
    for record in done:
        if record.serving and record.wall_s and (key := block_key(record.key)) in whole:
            began = record.serving.began_s
            events[key] += [(began, 1), (began + record.wall_s, -1)]
    most = [max(accumulate(step for _, step in sorted(own))) for own in events.values()]
    seconds = sum(time * -step for own in events.values() for time, step in own)
    duration_s = sum(whole[key] for key in events)
    return InFlight(seconds / duration_s, max(most), min(most)) if duration_s else InFlight()


def _ratio(blocks: Sequence[BlockHeader], baseline: Sequence[BlockHeader], draws: Draws) -> Value:
    """Output tokens/s / vanilla's, over the blocks of the same tasks and repeats."""
    ours, theirs = (
        {(one.task, one.repeat): one for one in side if one.num_tokens and not one.num_before}
        for side in (blocks, baseline)
    )
    pairs = [(block, theirs[key]) for key, block in ours.items() if key in theirs]
    if not pairs:
        return NO_BLOCKS
    top = np.array([[own.num_tokens, other.duration_s] for own, other in pairs])
    bottom = np.array([[own.duration_s, other.num_tokens] for own, other in pairs])
    return draws.estimate(Ratio(top, bottom))


def _engine_mat(blocks: Sequence[BlockHeader], done: Sequence[Record]) -> Value:
    """1 + accepted / drafts, as counted for each answer, else by the server's counters."""
    own = [record.serving for record in done if record.serving and record.serving.num_drafts]
    drafts = sum(one.num_drafts or 0 for one in own)
    accepted = float(sum(one.num_accepted or 0 for one in own))
    if not drafts:
        counted = [block for block in blocks if block.counters.get("num_drafts")]
        if counted and (problem := _counters_problem(counted)):
            return problem
        drafts, accepted = int(_total(counted, "num_drafts")), _total(counted, "num_accepted")
    return Estimate(1 + accepted / drafts) if drafts else NO_COUNTS


def _total(blocks: Iterable[BlockHeader], name: str) -> float:
    """The increase of a counter of the server in these blocks."""
    return sum(block.counters.get(name, 0.0) for block in blocks)


def _acceptance_rates(blocks: Sequence[BlockHeader]) -> tuple[float, ...]:
    """Accepted tokens at each draft position / drafts [positions], by the server's counters.

    Empty without counters, or if they count other requests too.
    """
    drafts = _total(blocks, "num_drafts")
    if not drafts or _counters_problem(blocks):
        return ()
    known = {name for block in blocks for name in block.counters}
    names = takewhile(known.__contains__, (f"accepted_at_{place}" for place in count(1)))
    return tuple(_total(blocks, name) / drafts for name in names)


def _counters_problem(blocks: Sequence[BlockHeader]) -> Missing | None:
    """The reason why counters include more than the blocks' answers; None if they do not."""
    if any(block.num_failed for block in blocks):
        return HAS_FAILED
    own = sum(block.num_tokens for block in blocks)
    counted = sum(block.counters.get("num_tokens", block.num_tokens) for block in blocks)
    return OTHERS if own < _LEAST_OWN * counted else None


def _client_share(blocks: Sequence[BlockHeader], e2e: FloatArray) -> float:
    """The client's own part of a request's time: its work, and the wait while it is busy.

    The wait is as in a queue with one server (M/M/1): work / (1 - utilisation).
    """
    client_s = sum(block.client_s for block in blocks)
    duration_s = sum(block.duration_s for block in blocks)
    if not len(e2e) or not duration_s or not e2e.sum():
        return 0.0
    utilisation = min(client_s / duration_s, 0.99)
    return float(client_s / (1 - utilisation) / e2e.sum())


def _times(seconds: FloatArray) -> Times:
    mean = Estimate(float(seconds.mean())) if len(seconds) else NOT_RUN
    return Times(mean, percentiles(seconds))


TIMES = tuple(field.name for field in fields(ServingMetrics))[:4]
"""The names of the times: ttft, tpot, itl, e2e."""


def is_slow_client(metrics: ServingMetrics) -> bool:
    """True if the client itself takes a share of latencies that shows."""
    return metrics.client_share > _MOST_CLIENT
