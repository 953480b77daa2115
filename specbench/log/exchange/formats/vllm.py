"""Read and write results of `vllm bench serve --save-detailed`, with lists over requests."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta

from specbench.errors import UserError
from specbench.log.exchange.format import (
    FileContent,
    Format,
    MeasuredBlock,
    WrittenAnswers,
    answer_key,
    failed,
    steps_of,
)
from specbench.log.exchange.source import REQUIRED, Fields, SourceFile
from specbench.log.exchange.summaries import printed_figure, request_times, statistic
from specbench.log.imported import ImportedFigure
from specbench.log.record import Amount, Whole
from specbench.log.run import Load, block_key
from specbench.types import ImportedCounts, Record, Serving

_ONE_STEP_S = 1e-3
"""Chunks of one step arrive within fewer seconds than this."""
_LISTS: dict[str, tuple[Any, Any]] = {
    "input_lens": (list[Whole], None),
    "output_lens": (list[Whole], None),
    "ttfts": (list[Amount], None),
    "itls": (list[list[Amount]], None),
    "generated_texts": (list[str], ""),
    "errors": (list[str], ""),
    "start_times": (list[Amount], 0.0),
}
"""Names of lists with an element per request -> the type, and the element to use if the list is
missing. None means that the list is required.
"""
_COUNTERS = {
    "num_drafts": "num_drafts",
    "num_draft_tokens": "draft_tokens",
    "num_accepted": "accepted_tokens",
}
"""Our names for the server's counters -> their names in the file without spec_decode_."""


def _read(source: SourceFile) -> FileContent:
    """Read the answers of a file, which has one JSON object with lists over requests.

    The load of all requests is a number of requests at once, or else a rate in requests per second.
    The rate "inf" means that all were sent at the start, and then the load has no rate.

    Raises:
        UserError: the file has two objects, or lists of different lengths, or a field is missing
            or wrong.
    """
    (benchmark, *more_benchmarks) = source.entries
    if more_benchmarks:
        raise more_benchmarks[0].error("a second result: split the file")
    num_answers = len(benchmark.get("output_lens", list[Whole]))
    # Name of a list -> its elements, one per request. The default is the element of all requests
    # if the file lacks the list, or None for a list that is required.
    lists = {
        name: benchmark.get(
            name, list_type, REQUIRED if default is None else [default] * num_answers
        )
        for name, (list_type, default) in _LISTS.items()
    }
    for name, elements in lists.items():
        if len(elements) != num_answers:
            raise benchmark.error(f"{name} has {len(elements)} requests, output_lens {num_answers}")
    concurrency = benchmark.get("max_concurrency", Whole, 0)
    rate = benchmark.get("request_rate", Amount | str, "inf")
    load = Load(concurrency, 0 if concurrency or isinstance(rate, str) else rate)
    first_start_s = min(lists["start_times"], default=0.0)
    records = [
        _record(index, load, first_start_s, elements_of_request)
        for index, elements_of_request in enumerate(zip(*lists.values(), strict=True))
    ]
    duration_s = benchmark.get("duration", Annotated[float, Meta(gt=0)])
    content = FileContent(
        records=records,
        counting="tokens: output_lens; steps: the server's drafts, of all requests together",
        lacks=("steps of single requests", "token ids", "stop reasons"),
        model=benchmark.get("model_id", str, ""),
        blocks={load: MeasuredBlock(duration_s, _counters(benchmark))},
    )
    content.figures += _figures(benchmark, records, duration_s)
    content.findings += _findings(benchmark, records, load)
    return content


def _record(index: int, load: Load, first_start_s: float, elements: Sequence[Any]) -> Record:
    """The record of a request. `elements` has the request's element of each list in `_LISTS`.

    `index` counts the requests from 0. `first_start_s` is the earliest start of a request.
    """
    # `gaps_s` are the seconds between chunks; `error` is empty if the request did not fail.
    prompt_tokens, tokens, first_s, gaps_s, answer_text, error, start_s = elements
    record = Record(
        answer_key(f"request {index}", **load._asdict()),
        "ok",
        prompt_tokens,
        text=answer_text,
        prefill_s=first_s,
        decode_s=sum(gaps_s),
        serving=Serving(start_s - first_start_s, tuple(gaps_s)),
        imported=ImportedCounts(tokens),
    )
    return failed(record, error) if error else record


def _counters(benchmark: Fields) -> dict[str, float]:
    """Our name for each of the server's counters -> its increase. Empty if the server counts no
    drafts.

    The counter "accepted_at_1" has the accepted draft tokens at position 1 of a draft, and so on.
    """
    increases: dict[str, float | None] = {
        our_name: benchmark.get(f"spec_decode_{name}", Amount, None)
        for our_name, name in _COUNTERS.items()
    }
    counters = {name: increase for name, increase in increases.items() if increase is not None}
    if "num_drafts" not in counters:
        return {}
    # For each position: accepted draft tokens / drafts.
    rates = benchmark.get("spec_decode_per_position_acceptance_rates", list[Amount], [])
    accepted_by_position = {
        f"accepted_at_{position}": rate * counters["num_drafts"]
        for position, rate in enumerate(rates, 1)
    }
    return counters | accepted_by_position


def _figures(
    benchmark: Fields, records: Sequence[Record], duration_s: float
) -> Iterator[ImportedFigure]:
    """Yield the statistics of times and the totals in a file, each with the number that follows
    from the records, or (for the acceptance length) from the server's counters.

    A field such as "mean_ttft_ms" has a statistic ("mean") of a time ("ttft") in milliseconds.
    `duration_s` are the seconds of the whole benchmark. A total is recomputed even if the file
    lacks it.
    """
    done = [record for record in records if record.is_ok]
    # Seconds to the first token, per later token, between chunks and of the whole request.
    times = dict(zip(("ttft", "tpot", "itl", "e2el"), request_times(done), strict=True))
    for name in benchmark.content:
        statistic_name, _, time_name = name.removesuffix("_ms").partition("_")
        statistic_s = statistic(statistic_name, times.get(time_name, ()))
        if statistic_s is not None:  # None: the field is not a statistic of a time
            yield printed_figure(benchmark, name, 1e3 * statistic_s, "ms")
    tokens = sum(record.num_tokens for record in done)
    all_tokens = tokens + sum(record.prompt_tokens for record in done)
    totals = {
        "completed": float(len(done)),
        "total_output_tokens": tokens,
        "request_throughput": len(done) / duration_s,
        "output_throughput": tokens / duration_s,
        "total_token_throughput": all_tokens / duration_s,
    }
    counters = _counters(benchmark)
    if counters.get("num_drafts"):
        mat = 1 + counters.get("num_accepted", 0.0) / counters["num_drafts"]
        totals["spec_decode_acceptance_length"] = mat
    for name, number in totals.items():
        yield printed_figure(benchmark, name, number)


def _findings(benchmark: Fields, records: Sequence[Record], load: Load) -> Iterator[str]:
    """Yield sentences about what the file's numbers count: times between chunks of one step,
    requests at once, and draft tokens that the end of an answer cut. Each of the first two is left
    out if the file has no such case, and the last one if the server counts no drafts.
    """
    # Seconds between chunks, of all requests that did not fail.
    gaps_s = request_times(records).between
    num_within_step = sum(gap_s < _ONE_STEP_S for gap_s in gaps_s)
    if num_within_step:
        yield (
            f"{num_within_step} of {len(gaps_s)} times between chunks lie within one step; ITL "
            "includes them"
        )
    most_requests = benchmark.get("max_concurrent_requests", Amount, 0)
    if most_requests > load.concurrency > 0:
        yield (
            f"max_concurrent_requests is {most_requests:g} at {load.concurrency} requests at once: "
            "it counts all requests within a second, not those in flight"
        )
    counters = _counters(benchmark)  # empty if the server counts no drafts
    if counters:
        # A step with a draft emits its accepted tokens and one more. No step emits the first token.
        num_emitted = round(counters["num_drafts"] + counters.get("num_accepted", 0.0))
        num_tokens = sum(record.num_tokens - 1 for record in records if record.is_ok)
        yield (
            f"drafts and accepted tokens add up to {num_emitted} for {num_tokens} tokens after "
            f"the first: {max(0, num_emitted - num_tokens)} were cut off; the acceptance rate is "
            "in percent, the rates by position are shares"
        )


def _write(written: WrittenAnswers) -> str:
    """The text of a file with these answers, which has one JSON object with totals, and lists with
    an element per request. Times are in seconds. The answers are those of one method in one pass at
    one load (`written.load`).

    The duration is that of the answers' blocks in the run's header, with a block per task. Without
    blocks, it is the sum of the answers' times. The counters of drafts are left out if the steps
    are unknown.
    """
    records, load = written.records, written.load
    done = [record for record in records if record.is_ok]
    # If the run was interrupted within a block, its parts are blocks with the same key.
    keys = {block_key(record.key) for record in records}
    blocks = [block for block in written.header.blocks if block_key(block) in keys]
    block_s = sum(block.duration_s for block in blocks)
    duration_s = block_s or sum(record.wall_s or 0.0 for record in done)
    tokens = sum(record.num_tokens for record in done)
    benchmark: dict[str, Any] = {
        "model_id": written.header.model.label,
        "max_concurrency": load.concurrency or None,
        "request_rate": load.request_rate or "inf",
        "duration": duration_s,
        "completed": len(done),
        "total_input_tokens": sum(record.prompt_tokens for record in done),
        "total_output_tokens": tokens,
        "request_throughput": len(done) / duration_s if duration_s else 0.0,
        "output_throughput": tokens / duration_s if duration_s else 0.0,
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.num_tokens for record in records],
        "ttfts": [record.prefill_s or 0.0 for record in records],
        "itls": [_gaps_s(record) for record in records],
        "start_times": [record.serving.began_s if record.serving else 0.0 for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error or "" for record in records],
    }
    with suppress(UserError):  # `steps_of` raises it if the steps of an answer are unknown
        steps = [steps_of(record) for record in done]
        num_steps = sum(counts.num_steps for counts in steps)
        num_emitted = sum(counts.num_emitted for counts in steps)
        benchmark |= {
            "spec_decode_num_drafts": num_steps,  # each step counts as a draft
            "spec_decode_accepted_tokens": num_emitted - num_steps,
        }
    return json.dumps(benchmark) + "\n"


def _gaps_s(record: Record) -> list[float]:
    """Seconds between chunks. If they are unknown, the decode time is divided equally among
    steps.
    """
    gaps_s = record.serving.gaps_s if record.serving else ()
    num_steps = max(len(record.accept_lengths), 1)
    return [*gaps_s] or [(record.decode_s or 0.0) / num_steps] * num_steps


FORMAT = Format(
    title="vllm bench serve with --save-detailed",
    tool="vLLM",
    arithmetic="throughputs are totals / duration; times are statistics over requests; the "
    "acceptance length is 1 + accepted tokens / drafts",
    matches=lambda first_value: first_value.has(
        "duration", "completed", "output_lens", "ttfts", "itls"
    ),
    read=_read,
    write=_write,
    needs_times=True,
    ending="json",
)
