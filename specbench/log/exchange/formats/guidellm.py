"""`benchmarks.json` of guidellm (version 2): requests with time stamps, and their statistics.

A latency is in seconds and other times in milliseconds. Times per token are weighted by tokens, and
`time_per_output_token_ms` includes the first token. A percentile is one of the values, without
interpolation. Version 0.8 keeps the metrics that vLLM sends with an answer, drafts included.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256

from specbench.log.exchange.format import (
    FileContent,
    Format,
    MeasuredBlock,
    answer_key,
    counts_from_drafts,
    failed,
)
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.exchange.summaries import printed_figure
from specbench.log.imported import ImportedFigure
from specbench.log.record import Amount, Whole
from specbench.log.run import Load
from specbench.types import Record, Serving

_STATISTICS = {"mean": None, "median": 0.5, "percentiles.p90": 0.9, "percentiles.p99": 0.99}
"""Names of statistics -> the share of values up to a percentile, or None for the mean."""
_NOT_RECOMPUTED = "output_tokens_per_second and requests_per_second are rates between events"
_TIMINGS = "info.timings"
"""The path of a request's time stamps, in seconds."""
_DRAFTS = "response_metrics.speculative_decoding"
"""The path of the server's counts of drafts for a request."""
_TOKENS = "tokens: the server's; the first is the prefill's"


def _read(source: SourceFile) -> FileContent:
    """Read the answers of a file, which has a JSON object with a list of benchmarks at different
    loads.

    A load is a number of streams (requests at once), or else a rate of requests per second. The
    steps follow from the server's counts of drafts, if it sent them. `lacks` names what is unknown.

    Raises:
        UserError: two benchmarks have the same load, or a field is missing or wrong.
    """
    content = FileContent(
        records=[],
        counting=f"{_TOKENS}; steps: not reported",
        lacks=("steps", "token ids", "stop reasons"),
        version=source.entries[0].get("metadata.guidellm_version", str),
        findings=[_NOT_RECOMPUTED],
    )
    for benchmark in source.entries[0].each("benchmarks"):
        streams = benchmark.get("config.strategy.streams", Whole, 0)
        load = Load(streams, 0 if streams else benchmark.get("config.strategy.rate", Amount, 0))
        if load in content.blocks:
            raise benchmark.error(f"a second benchmark of {load.text or 'one load'}")
        records = [*_records(benchmark, load)]
        content.records += records
        # a block: answers that the server worked on without a break
        content.blocks[load] = MeasuredBlock(benchmark.get("duration", Amount), counters={})
        content.figures += _figures(benchmark, records)
    if any(record.imported and record.imported.num_steps for record in content.records):
        content.counting = f"{_TOKENS}; steps: those after it - accepted draft tokens"
        content.lacks = content.lacks[1:]  # without "steps"
    return content


def _records(benchmark: Fields, load: Load) -> Iterator[Record]:
    """Yield the answers of a benchmark at this load. Requests that errored come last.

    The file lists requests in the order in which they ended. So an answer's sample id is a hash of
    what was sent, with a number that counts the requests with this hash.

    Raises:
        UserError: the time stamps of a request are not in order, or a field is missing or wrong.
    """
    done, errored = benchmark.each("requests.successful"), benchmark.each("requests.errored", [])
    starts_s = [request.get(f"{_TIMINGS}.request_start", Amount) for request in done]
    num_equal: Counter[str] = Counter()  # hash -> the requests so far that have it
    for index, request in enumerate((*done, *errored)):
        digest = sha256(request.get("request_args", str).encode()).hexdigest()[:12]
        num_equal[digest] += 1
        turn = request.get("info.turn_index", Whole, 0)
        key = answer_key(f"prompt {digest} {num_equal[digest]}", turn=turn, **load._asdict())
        if index >= len(done):  # one of those that errored
            reason = request.get("info.error", str, "no message")
            yield failed(Record(key, "ok", prompt_tokens=0), reason)
            continue
        start_s, first_s, last_s, end_s = (
            request.get(f"{_TIMINGS}.{name}", Amount)
            for name in (
                "request_start",
                "first_token_iteration",
                "last_token_iteration",
                "request_end",
            )
        )
        if not start_s < first_s <= last_s <= end_s:
            raise request.error("its time stamps are not in order")
        yield Record(
            key,
            "ok",
            request.get("input_metrics.text_tokens", Whole, 0),
            text=request.get("output", str, ""),
            prefill_s=first_s - start_s,
            decode_s=last_s - first_s,
            serving=Serving(began_s=start_s - min(starts_s)),  # since the earliest start in `done`
            imported=counts_from_drafts(  # with the steps, if accepted tokens were counted
                request.get("output_metrics.text_tokens", Whole, 0),
                num_accepted=request.get(f"{_DRAFTS}.num_accepted_draft_tokens", Whole, None),
                num_drafts=request.get(f"{_DRAFTS}.num_spec_steps", Whole, 0),
                total_s=end_s - start_s,
            ),
        )


def _figures(benchmark: Fields, records: Sequence[Record]) -> Iterator[ImportedFigure]:
    """Yield guidellm's statistics of the successful requests, recomputed from the records.

    Each comes with the file's number, and a difference is noted as an oddity of the file. A request
    counts once in the latencies and in the times to the first token. In the times per token, it
    counts once per token, or (inter-token latency) once per token after the first. A kind of time
    without values gives nothing.
    """
    done = [record for record in records if record.is_ok]
    times_by_name = {
        "request_latency": [record.imported.total_s or 0.0 for record in done if record.imported],
        "time_to_first_token_ms": [1e3 * (record.prefill_s or 0.0) for record in done],
        "inter_token_latency_ms": [
            1e3 * (record.decode_s or 0.0) / (record.num_tokens - 1)
            for record in done
            for _ in range(record.num_tokens - 1)
        ],
        "time_per_output_token_ms": [
            1e3 * (record.wall_s or 0.0) / record.num_tokens
            for record in done
            for _ in range(record.num_tokens)
        ],
    }
    for time_name, times in times_by_name.items():
        # A percentile is the smallest of the times such that at least `share` of all times are not
        # above it. `share` is None for the mean.
        for statistic_name, share in _STATISTICS.items() if times else ():
            number = sum(times) / len(times)
            if share is not None:
                number = sorted(times)[math.ceil(share * len(times)) - 1]
            unit = "ms" if time_name.endswith("_ms") else "s"
            path = f"metrics.{time_name}.successful.{statistic_name}"
            yield printed_figure(benchmark, path, number, unit)


FORMAT = Format(
    title="benchmarks.json of guidellm",
    tool="guidellm",
    arithmetic="times per token are weighted by tokens; time_per_output_token_ms is the time to "
    "the last token / all tokens",
    matches=lambda first_value: first_value.has("metadata", "benchmarks"),
    read=_read,
)
