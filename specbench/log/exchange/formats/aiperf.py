"""Read and write AIPerf's `profile_export.jsonl`, which has each request's metrics and drafts."""

import json
from collections.abc import Iterator, Mapping, Sequence

from specbench.log.exchange.format import (
    FileContent,
    Format,
    MeasuredBlock,
    WrittenAnswers,
    answer_key,
    failed,
    rate_figure,
    steps_of,
    with_drafts,
)
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.exchange.summaries import request_times, statistic
from specbench.log.imported import ImportedFigure
from specbench.log.record import Amount, Whole
from specbench.log.run import NO_LOAD, BlockKey, block_key
from specbench.types import Record, Serving

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
"""Units of time, with their lengths in seconds."""
_TOKENS = {"tokens": 1.0}
"""The unit of counts, with its factor."""
_GAPS = "inter_chunk_latency"
"""The only metric that is a list. It has the times between the chunks of an answer."""
_TIMES = ("time_to_first_token", "inter_token_latency", _GAPS, "request_latency")
"""AIPerf's names for the times, in the order of the fields of `RequestTimes`."""
_DRAFTS = "spec_decode_acceptance"
"""The key of the object in a request that has the server's counts of drafts."""


def _read(source: SourceFile) -> FileContent:
    """Read the answers of a file, which has a JSON object per request. Requests of the warm-up are
    left out.

    The file's duration is the time from the first start of a request to the last end.

    Raises:
        UserError: a field is missing or wrong, or the times of a request are impossible.
    """
    requests = [
        request
        for request in source.entries
        if request.get("metadata.benchmark_phase", str, "profiling") == "profiling"
    ]
    if num_left_out := len(source.entries) - len(requests):
        # An oddity to show to the user. "" stands for the whole file.
        source.note("", f"{num_left_out} requests of the warm-up are left out")
    starts_ns = [request.get("metadata.request_start_ns", int) for request in requests]
    ends_ns = [request.get("metadata.request_end_ns", int) for request in requests]
    first_start_ns = min(starts_ns, default=0)
    duration_s = (max(ends_ns, default=0) - first_start_ns) / 1e9
    records = [
        _record(request, (start_ns - first_start_ns) / 1e9)
        for request, start_ns in zip(requests, starts_ns, strict=True)
    ]
    content = FileContent(
        records=records,
        counting="tokens: output_sequence_length; the first is the prefill's; steps: those after "
        "it - accepted draft tokens, if the server counts these",
        lacks=("texts", "token ids", "stop reasons", "the load"),
        blocks={NO_LOAD: MeasuredBlock(duration_s, counters={})},  # no load, no counters
    )
    content.figures += _figures(records, duration_s)
    return content


def _record(request: Fields, began_s: float) -> Record:
    """The record of a request, or a failed record if the request failed or was cancelled.

    `began_s` is the number of seconds from the start of the first request to the start of this one.
    A session is a chat, which is a prompt with its turns.

    Raises:
        UserError: a field is missing or wrong, or the time to the first token is 0 or longer than
            the time of the whole answer.
    """
    session_number = request.get("metadata.session_num", Whole)
    key = answer_key(f"session {session_number}", turn=request.get("metadata.turn_index", Whole, 0))
    error = request.get("error.message", str, "no message" if request.content.get("error") else "")
    if error or request.get("metadata.was_cancelled", bool, False):
        return failed(Record(key, "ok", prompt_tokens=0), error or "it was cancelled")
    (first_token_s,) = _amounts(request, "time_to_first_token", _SECONDS)
    (latency_s,) = _amounts(request, "request_latency", _SECONDS)  # of the whole answer
    if not 0 < first_token_s <= latency_s:
        raise request.error(
            f"the first token took {first_token_s:g} s, the request {latency_s:g} s"
        )
    (num_tokens,) = _amounts(request, "output_sequence_length", _TOKENS)
    (num_prompt_tokens,) = _amounts(request, "input_sequence_length", _TOKENS)
    has_gaps = _GAPS in request.get("metrics", dict)
    gaps_s = _amounts(request, _GAPS, _SECONDS) if has_gaps else ()  # between chunks
    record = Record(
        key,
        "ok",
        round(num_prompt_tokens),
        prefill_s=first_token_s,
        decode_s=latency_s - first_token_s,
        serving=Serving(began_s, gaps_s),
    )
    return with_drafts(record, round(num_tokens), request, f"{_DRAFTS}.")


def _amounts(request: Fields, name: str, units: Mapping[str, float]) -> tuple[float, ...]:
    """The numbers of a metric, multiplied by the factor of its unit in `units`. `_GAPS` has the
    times between chunks, and any other metric has a single number.

    Raises:
        UserError: the metric is missing, or its unit is not in `units`, or its form is wrong.
    """
    unit = request.get(f"metrics.{name}.unit", str)
    content = request.get(f"metrics.{name}.value", Amount | list[Amount])  # a number or a list
    if unit not in units:
        raise request.error(f"metrics.{name}: expected {', '.join(units)}, found unit {unit!r}")
    is_list = name == _GAPS
    if is_list != isinstance(content, list):
        raise request.error(f"metrics.{name}: expected {'a list' if is_list else 'a number'}")
    return tuple(number * units[unit] for number in (content if is_list else [content]))


def _figures(records: Sequence[Record], duration_s: float) -> Iterator[ImportedFigure]:
    """Yield the numbers that AIPerf prints, which are the mean and percentiles of each kind of time
    in milliseconds, and the output tokens per second. A kind of time that no record has is left
    out.

    `duration_s` are the seconds from the first start of a request to the last end. If they are 0,
    there are no tokens per second.
    """
    for time_name, seconds in zip(_TIMES, request_times(records), strict=True):
        for statistic_name in ("avg", "p50", "p99"):  # mean, median and 99th percentile
            statistic_s = statistic(statistic_name, seconds)  # None without any time
            if statistic_s is not None:
                figure_name = f"{time_name} {statistic_name}"
                # The rule says in words what the number is computed from.
                yield rate_figure(figure_name, 1e3 * statistic_s, rule="its requests", unit="ms")
    if duration_s > 0:
        tokens = sum(record.num_tokens for record in records)
        rule = "tokens / (the last end - the first start)"
        yield rate_figure("output_token_throughput", tokens / duration_s, rule)


def _write(written: WrittenAnswers) -> str:
    """The text of a file with these answers. Each line has the JSON object of a request.

    A prompt with its turns is a session. Answers of our engine (`serving` is None) have no start
    time, so each begins at the end of the answer before it. Answers of a server have a start time
    within their block, which is the requests of a task. Each block begins at the end of the block
    before it.

    Raises:
        UserError: the steps of an answer are unknown.
    """
    lines = []
    sessions: dict[tuple[str, str], int] = {}  # (task, sample id) -> number of the session
    # Block -> its start, in seconds after the start of the first block.
    block_starts_s: dict[BlockKey, float] = {}
    last_end_s = 0.0  # of the answers so far
    for record in written.records:
        block_start_s = block_starts_s.setdefault(block_key(record.key), last_end_s)
        began_s = block_start_s + record.serving.began_s if record.serving else last_end_s
        ended_s = began_s + (record.wall_s or 0.0)
        last_end_s = max(last_end_s, ended_s)
        steps = steps_of(record)  # both counts are 0 if the answer failed
        gaps_s = record.serving.gaps_s if record.serving else ()
        metrics = {  # name -> (number or list of numbers, unit)
            "time_to_first_token": (1e3 * (record.prefill_s or 0.0), "ms"),
            "request_latency": (1e3 * (record.wall_s or 0.0), "ms"),
            "inter_chunk_latency": ([1e3 * gap_s for gap_s in gaps_s], "ms"),
            "output_sequence_length": (record.num_tokens, "tokens"),
            "input_sequence_length": (record.prompt_tokens, "tokens"),
        }
        line = {
            "metadata": {
                "session_num": sessions.setdefault(
                    (record.key.task, record.key.sample_id), len(sessions)
                ),
                "conversation_id": record.key.sample_id,
                "turn_index": record.key.turn,
                "request_start_ns": round(1e9 * began_s),
                "request_end_ns": round(1e9 * ended_s),
                "benchmark_phase": "profiling",
            },
            "metrics": {
                name: {"value": amount, "unit": unit} for name, (amount, unit) in metrics.items()
            },
            "error": None if record.is_ok else {"message": record.error},
            _DRAFTS: {
                "num_spec_steps": steps.num_steps,
                "num_accepted_draft_tokens": steps.num_emitted - steps.num_steps,
                "per_step_accepted": [length - 1 for length in record.accept_lengths],
            },
        }
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)


FORMAT = Format(
    title="profile_export.jsonl of AIPerf",
    tool="AIPerf",
    arithmetic="statistics over requests; inter_token_latency is (latency - first token) / "
    "(tokens - 1); throughput is tokens / duration",
    matches=lambda first_value: first_value.has("metadata", "metrics"),
    read=_read,
    write=_write,
    needs_times=True,
)
