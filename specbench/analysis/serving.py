"""Compute a method's numbers on a server at one load: throughput, latency, goodput, acceptance.

Names and definitions are as in `vllm bench serve`: TTFT is the time to the first token,
TPOT the time per token after it, ITL the time between arrivals of tokens, E2E the time of the
whole request. Times are the client's, except decode times of answers that arrived in a burst (see
`decode_times`): their TPOT and ITL are the server's, or left out. Throughputs are sums over blocks
/ the blocks' durations. Interrupted blocks are left out, since their rest ran at a lower load.

MAT is computed from the steps that a server lists, or that its counts imply (see `served_steps`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from specbench.analysis.cells import NOT_RUN
from specbench.analysis.grouping import group_by
from specbench.analysis.in_flight import NONE_IN_FLIGHT, InFlight, requests_in_flight
from specbench.analysis.latency import Percentiles, percentiles, seconds_between_arrivals
from specbench.analysis.prompts_read import NO_PROMPTS, OTHER_PROMPTS, PromptsRead, prompts_read
from specbench.analysis.records import BASELINE, CELL_KEY, RecordTable
from specbench.analysis.server_counters import (
    NO_COUNTS,
    LengthShare,
    acceptance_rates,
    counter_total,
    draft_lengths,
    drafting_share,
    engine_mat,
    mean_draft_length,
)
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.analysis.throughput import throughput, throughput_ratio, total_throughput
from specbench.log.backend import BlockHeader
from specbench.log.header import RunHeader
from specbench.log.run import block_key
from specbench.types import Serving

NO_GOODPUT = Missing("no --goodput")
_MOST_CLIENT = 0.02
"""The largest share of a request's time that the client's own work and wait may take."""
_MOST_UTILISATION = 0.99
"""The largest utilisation of the client that is assumed, so that the wait stays finite."""

LatencyBounds = Mapping[str, float]
"""Name of a time (ttft, tpot or e2e) -> its longest seconds in a good request."""


@dataclass(frozen=True, slots=True)
class Times:
    """The mean and percentiles of times, in seconds."""

    mean: Value
    percentiles: Percentiles


@dataclass(frozen=True, slots=True)
class ServingMetrics:
    """A method's numbers at one load, over all tasks. Throughputs are per second."""

    ttft: Times
    tpot: Times
    itl: Times
    e2e: Times
    request_throughput: Value
    output_throughput: Value
    total_throughput: Value
    goodput: Value

    throughput_ratio: Value
    """Output throughput / vanilla's."""

    engine_mat: Value
    in_flight: InFlight = NONE_IN_FLIGHT

    least_mat: Value = NO_COUNTS
    """The MAT if every answer that may have taken one more step did take it."""

    draft_length: float = 0.0
    """The mean number of tokens of a draft, from the server's counters; 0 if they are unknown."""

    drafting_share: float | None = None
    """The share of steps with a draft; None if it is unknown."""

    draft_lengths: tuple[LengthShare, ...] = ()
    """The lengths of drafts, the most frequent first; empty if the server does not list them."""

    acceptance_rates: tuple[float, ...] = ()
    """Accepted tokens at each draft position / drafts [positions]."""

    contradictions: tuple[tuple[str, str], ...] = ()
    """Pairs of a task and a sentence about a contradiction in the counts of its blocks."""

    client_share: float = 0.0
    """The client's own share of a request's time, from 0 to 1."""

    prompts: PromptsRead = NO_PROMPTS
    num_cached_tokens: int = 0
    num_retries: int = 0
    num_interrupted: int = 0

    num_restarted: int = 0
    """The number of blocks without counters, if other blocks of the method have some; else 0."""


def measure_serving(
    header: RunHeader, table: RecordTable, bootstrap: Bootstrap, bounds: LatencyBounds
) -> dict[tuple[str, float], ServingMetrics]:
    """Compute the numbers of each method's server over all tasks, by method and temperature.

    `header` and `table` have one load only, and the table has a row per record. The result is empty
    if the run has no blocks; a block is a group of requests that a server completed together.
    A request is good if its latencies are within `bounds`, in seconds. `bootstrap` has the seed and
    the number of resamples of blocks.
    """
    key_columns = CELL_KEY[:2]  # method and temperature
    # numbers of records, and blocks, by method and temperature
    rows_by_key: dict[Any, IntArray] = table.frame.groupby(key_columns, observed=True).indices
    blocks_by_key = group_by(header.blocks, key=lambda block: (block.method, block.temperature))
    draws = Draws(bootstrap, "blocks")
    metrics = {}
    for key, blocks in blocks_by_key.items():
        rows = rows_by_key.get(key, np.empty(0, dtype=np.intp))
        _, temperature = key
        baseline_blocks = blocks_by_key.get((BASELINE, temperature), [])
        metrics[key] = _measure(blocks, table, rows, baseline_blocks, draws, bounds)
    return metrics


def _measure(
    blocks: Sequence[BlockHeader],
    table: RecordTable,
    rows: IntArray,
    baseline_blocks: Sequence[BlockHeader],
    draws: Draws,
    bounds: LatencyBounds,
) -> ServingMetrics:
    """Compute the numbers of a method's server at a temperature, from its blocks and its answers.

    `rows` are the numbers of the method's records, `baseline_blocks` vanilla's blocks. `draws`
    resamples blocks. `bounds` has the longest times of a good request (empty for no goodput).
    """
    done_rows = rows[[table.records[row].is_ok for row in rows]]  # completed
    done = [table.records[row] for row in done_rows]
    answers = [record.serving for record in done if record.serving]  # the servers' numbers
    # For each done row: seconds to the first token, after it and in all; output and prompt tokens.
    ttft_s, decode_s, e2e_s, num_tokens, prompt_tokens = table.values(
        done_rows, "prefill_s", "decode_s", "wall_s", "num_tokens", "read_tokens"
    )
    # prompt tokens (server's count - ours), and vanilla's row if it read another prompt, or -1
    prompt_columns = table.values(done_rows, "prompt_offset", "other_row")
    prompts = prompts_read(table.records, done_rows, *prompt_columns)  # as servers read them
    tpot_s = decode_s / np.maximum(num_tokens - 1, 1)  # per token after the first; NaN if left out
    has_tpot = (num_tokens > 1) & ~np.isnan(tpot_s)
    over_blocks = partial(throughput, blocks, draws)  # sum of an amount / seconds of the blocks
    output_throughput = over_blocks(lambda block: block.num_tokens)
    goodput: Value = NO_GOODPUT
    if bounds:
        # Requests/s * share of good requests. Requests without a record only keep up the load.
        seconds_by_name = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
        num_unknown = int(np.isnan(tpot_s).sum()) if "tpot" in bounds else 0  # TPOT left out
        share_good = _share_good(seconds_by_name, bounds, len(rows) - num_unknown)
        goodput = _scaled(over_blocks(lambda block: block.num_requests), share_good)
    ratio = throughput_ratio(blocks, baseline_blocks, draws)
    return ServingMetrics(
        ttft=_times(ttft_s),
        tpot=_times(tpot_s[has_tpot]),
        itl=_times(seconds_between_arrivals(table, done_rows)),
        e2e=_times(e2e_s),
        request_throughput=over_blocks(lambda block: block.num_requests - block.num_failed),
        output_throughput=output_throughput,
        total_throughput=total_throughput(output_throughput, num_tokens, prompt_tokens),
        goodput=goodput,
        throughput_ratio=OTHER_PROMPTS if prompts.num_other else ratio,
        engine_mat=engine_mat(blocks, done),
        in_flight=requests_in_flight(blocks, done),
        least_mat=_least_mat(table, rows),
        draft_length=mean_draft_length(blocks),
        drafting_share=drafting_share(blocks, done, table.columns["mat_steps"][done_rows]),
        draft_lengths=draft_lengths(done, table.columns["mat_steps"][done_rows]),
        acceptance_rates=acceptance_rates(blocks, done),
        contradictions=_contradictions(table, blocks),
        client_share=_client_share(blocks, e2e_s),
        prompts=prompts,
        num_cached_tokens=_num_cached_tokens(blocks, answers),
        num_retries=sum(answer.num_retries for answer in answers),
        num_interrupted=sum(block.num_before > 0 for block in blocks),
        num_restarted=_num_restarted(blocks),
    )


def _share_good(times: Mapping[str, FloatArray], bounds: LatencyBounds, num_asked: int) -> float:
    """Compute the share of `num_asked` requests, including failed ones, that kept all bounds.

    The keys are names of times. `times` [completions] and `bounds` are in seconds.
    """
    is_good = np.all([times[name] <= bound_s for name, bound_s in bounds.items()], axis=0)
    return float(is_good.sum() / max(num_asked, 1))


def _scaled(value: Value, factor: float) -> Value:
    """Multiply a number by a factor; the product has no interval."""
    return Estimate(value.value * factor) if isinstance(value, Estimate) else value


def _num_cached_tokens(blocks: Sequence[BlockHeader], answers: Sequence[Serving]) -> int:
    """Count prompt tokens that came from a cache, from the server's counters or else answers."""
    num_counted = int(counter_total(blocks, "num_cached_tokens"))
    return num_counted or sum(answer.cached_prompt_tokens or 0 for answer in answers)


def _least_mat(table: RecordTable, rows: IntArray) -> Value:
    """Compute the MAT if every answer that may have taken one more step did take it."""
    served = table.served
    num_emitted = sum(served.emitted[row] for row in rows)
    most_steps = sum(served.steps[row] + served.more[row] for row in rows)
    return Estimate(num_emitted / most_steps) if most_steps else NO_COUNTS


def _contradictions(
    table: RecordTable, blocks: Sequence[BlockHeader]
) -> tuple[tuple[str, str], ...]:
    """List pairs of a task and a sentence about a contradiction in the counts of its blocks."""
    contradictions = table.served.contradictions  # key of a block -> sentence
    return tuple(
        (block.task, contradictions[block_key(block)])
        for block in blocks
        if block_key(block) in contradictions
    )


def _num_restarted(blocks: Sequence[BlockHeader]) -> int:
    """Count the blocks without counters, if other blocks of the method have some; else 0."""
    num_without = sum(not block.counters for block in blocks)
    return num_without if num_without < len(blocks) else 0


def _client_share(blocks: Sequence[BlockHeader], e2e_s: FloatArray) -> float:
    """Estimate the client's own share of the requests' time, from 0 to 1; 0 without requests.

    The client is modelled as a queue with one server (M/M/1), in which working and waiting
    together take work / (1 - utilisation). `e2e_s` has the seconds of each completed request.
    """
    client_s = sum(block.client_s for block in blocks)  # CPU seconds
    duration_s = sum(block.duration_s for block in blocks)
    if not duration_s or not e2e_s.sum():  # the sum is 0 without requests
        return 0.0
    utilisation = min(client_s / duration_s, _MOST_UTILISATION)
    return float(client_s / (1 - utilisation) / e2e_s.sum())


def _times(seconds: FloatArray) -> Times:
    mean = Estimate(float(seconds.mean())) if len(seconds) else NOT_RUN
    return Times(mean, percentiles(seconds))


TIMES = ("ttft", "tpot", "itl", "e2e")
"""The fields of `ServingMetrics` that are times."""


def is_slow_client(metrics: ServingMetrics) -> bool:
    """Check if the client itself takes a noticeable share of the latencies."""
    return metrics.client_share > _MOST_CLIENT
