"""Faults of a run's records that only several lines together, or the header, can show.

Faults of single lines are found while they are read (`log.store`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice

from specbench.log.backend import BlockHeader
from specbench.log.header import RunHeader
from specbench.log.run import BlockKey, block_key
from specbench.log.time_faults import find_time_faults
from specbench.types import Record, RecordKey, RequestKey, seed_of

_SLACK = 1.001
"""Largest ratio of a sum of times to their whole: times are stored rounded."""
_CLOCK_S = 2.0
"""Error of a run's duration in seconds: its start and end are whole seconds."""


def find_faults(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each thing that `specbench run` cannot have written.

    Faults of single records come first, in the order of the records.
    """
    # Lines of an imported run were checked when they were read. Only this rule is for them, too.
    if header.imported:
        yield from _miscounted_blocks(header.blocks, records)
        return
    yield from _faults_of_records(header, records)
    yield from _dates_in_the_future(header)
    if header.status == "complete":
        yield from _missing_records(header, records)
    if not header.blocks:
        yield from _too_short_runs(header, records)
    yield from _miscounted_blocks(header.blocks, records)
    yield from _left_out_prompts(header, records)
    yield from find_time_faults(records, header.threads)


def find_wrong_numbers(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each fault that makes numbers of a report wrong. Of faults of single records,
    the first one stands for all.
    """
    faults = ((record.key, fault) for record in records for fault in _size_faults(record, header))
    for key, fault in islice(faults, 1):
        yield f"{_answer_text(key)}: {fault}"
    yield from _left_out_prompts(header, records)
    yield from find_time_faults(records, header.threads)


def _answer_text(key: RecordKey) -> str:
    """An answer in words, which are followed by a colon and its fault."""
    request_text = f"{key.sample_id}, turn {key.turn}, repeat {key.repeat}"
    return f"{key.method} on {request_text} at T={key.temperature:g}"


def _faults_of_records(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each fault of a record: method, request and temperature, then the fault.

    `eos_ids` are the end tokens that answers stopped at, `budget` the most tokens of an answer,
    or None. A record's key names its method and its request: task, sample, turn of the chat from
    0, pass over the prompts (`repeat`) and so on.
    """
    run_seed = header.spec.values.seed
    budget = header.spec.values.max_new_tokens
    eos_ids = {
        record.token_ids[-1]
        for record in records
        if _may_end_with_eos(record) and record.stop_reason == "eos"
    }
    prompt_lengths: dict[tuple[str, str], int] = {}  # tokens of first turns, by task and sample
    for record in records:
        key = record.key
        faults = [*_size_faults(record, header)]
        if record.is_ok:
            faults += [*_time_faults(record), *_end_faults(record, eos_ids, budget)]
            # A record that was merged from another run (its `origin`) had another repeat there,
            # and a seed that followed from it.
            if not record.origin and record.seed != seed_of(run_seed, key.request):
                faults.append(f"the seed {record.seed} does not follow from the run's, {run_seed}.")
        if record.is_ok and not key.turn:
            num_prompt_tokens = record.prompt_tokens
            first_length = prompt_lengths.setdefault((key.task, key.sample_id), num_prompt_tokens)
            if num_prompt_tokens != first_length:
                faults.append(
                    f"its prompt has {num_prompt_tokens} tokens, in others {first_length}."
                )
        yield from (f"{_answer_text(key)}: {fault}" for fault in faults)


def _time_faults(record: Record) -> Iterator[str]:
    """A sentence for each time that is not positive, and for parts of the decoding that took longer
    than the whole.

    All times are in seconds. `prefill_s` lasts until the first token, and `decode_s` from it to the
    last; both are None if the answer failed. `phases` has the parts of a step, summed over the
    steps, if they were timed. `draft_prefill_s` is the part of `decode_s` in which the drafter read
    the prompt, or None.
    """
    if record.prefill_s is None or record.decode_s is None:
        return
    if record.prefill_s <= 0:
        yield f"prefill_s is {record.prefill_s:g}, but reading a prompt takes time."
    # A server (`serving`) may send all tokens at once.
    if record.decode_s <= 0 and record.accept_lengths and record.serving is None:
        yield f"decode_s is {record.decode_s:g}, but it has steps."
    seconds_by_part = {"draft_prefill_s": record.draft_prefill_s or 0.0}
    if record.phases:
        seconds_by_part["the sum of the phases"] = sum(asdict(record.phases).values())
    for part_name, seconds in seconds_by_part.items():
        if seconds > record.decode_s * _SLACK:  # a factor just above 1: sums are rounded
            yield f"{part_name} is {seconds:g} s, more than decode_s, {record.decode_s:g}."


def _may_end_with_eos(record: Record) -> bool:
    """True if the last token of the answer may be an end token of the model."""
    return record.is_ok and record.serving is None and bool(record.token_ids)


def _end_faults(record: Record, eos_ids: set[int], budget: int | None) -> Iterator[str]:
    """A sentence if an answer goes on after an end token, or does not fit its stop reason.

    `eos_ids` are the end tokens, `budget` is the largest number of tokens, None if unknown. The
    stop reason is "eos" (an end token), "budget", or "length": the end of the model's context.
    """
    reason = record.stop_reason
    if reason is None:
        yield "it has no stop_reason."
    if reason == "budget" and budget is not None and record.num_tokens != budget:
        yield f"it stopped at {record.num_tokens} tokens of a budget of {budget}."
    # Not an answer that failed or is empty, nor one of a server.
    if not _may_end_with_eos(record):
        return
    *earlier_ids, last_id = record.token_ids
    early_eos = eos_ids.intersection(earlier_ids)
    if early_eos:
        yield f"it goes on after the end token {min(early_eos)}."
    if reason != "eos" and last_id in eos_ids:
        yield f"it ends with {last_id}, an end token, but says {reason}."


def _size_faults(record: Record, header: RunHeader) -> Iterator[str]:
    """A sentence for each of these: there is no prompt, the ends of tokens do not fit the text,
    trees are larger than the method's options allow, or (dynamic trees) deeper.

    `token_ends` counts the characters of the text up to the end of each token. Per step of the
    record, `num_nodes` are its tree's nodes and `accept_lengths` the tokens that it emitted.
    """
    if record.is_ok and record.prompt_tokens <= 0:
        yield "prompt_tokens is 0, but the target reads at least one token."
    token_ends = record.token_ends
    is_ordered = list(token_ends) == sorted(token_ends)
    if token_ends and (not is_ordered or token_ends[-1] != len(record.text)):
        yield "token_ends do not lead through its text."
    method = header.methods.get(record.key.method)
    if method is None:
        return
    # Older headers do not have the most nodes: those of dynamic trees are an option.
    allowed_nodes = method.most_nodes or method.options.get("total_tokens", 0)
    num_nodes = max(record.num_nodes, default=0)  # of the largest tree
    if allowed_nodes and num_nodes > allowed_nodes:
        yield f"a tree of {num_nodes} nodes, with {allowed_nodes} allowed."
    if not {"total_tokens", "depth"} <= method.options.keys():
        return
    levels = method.options["depth"] + 1  # EAGLE counts the levels below the first one
    accept_length = max(record.accept_lengths, default=0)  # of the step with the most tokens
    if accept_length > levels + 1:  # a token of each level, and the bonus token
        yield f"a step of {accept_length} tokens from trees of {levels} levels."


def _dates_in_the_future(header: RunHeader) -> Iterator[str]:
    """Dates that are more than a day ahead of this machine's clock."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for name, date in (("created", header.created), ("finished", header.finished)):
        with suppress(ValueError, TypeError):  # `_too_short_runs` names such a date
            if date and datetime.fromisoformat(date) > tomorrow:
                yield f"{name} is in the future: {date}."


def _missing_records(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each way in which a complete run lacks records: of the header's count, of the
    requests that other methods answered, and of the prompts.

    The header's `num_records` is None if unknown; its `prompts` describe each task's prompts. A
    record's key is its method and its request: task, sample id, turn, pass over the prompts, etc.
    """
    if header.num_records is not None and len(records) != header.num_records:
        yield f"The run is complete, but has {len(records)} of {header.num_records} records."
    requests_by_method: dict[str, set[RequestKey]] = defaultdict(set)
    sample_ids_by_task: dict[str, set[str]] = defaultdict(set)
    for record in records:
        requests_by_method[record.key.method].add(record.key.request)
        sample_ids_by_task[record.key.task].add(record.key.sample_id)
    every_request = set().union(*requests_by_method.values())
    for method, requests in requests_by_method.items():
        num_requests, num_lacking = len(every_request), len(every_request) - len(requests)
        if num_lacking:
            lacking = f"{num_lacking} of the {num_requests} requests"
            yield f"{method} lacks {lacking} that others answered."
    for prompts in header.prompts:
        num_samples = len(sample_ids_by_task[prompts.task])
        num_prompts = prompts.num_prompts
        if num_samples != num_prompts:
            yield f"{prompts.task} has records of {num_samples} of its {num_prompts} prompts."


def _left_out_prompts(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each task that lacks prompts although no option leaves any out, and one if a
    complete run has records of another number of passes than it says.

    A run without `limit` and `sample` has all prompts of a source. A merged run (`origins`) may
    have been put together from parts.
    """
    spec_values = header.spec.values
    if header.origins:
        return
    if not spec_values.limit and not spec_values.sample:
        for prompts in header.prompts:
            # Of a data set on the Hub, a card may take the first rows, and leave out empty ones.
            is_whole_source = prompts.source != "hub"
            if is_whole_source and prompts.num_prompts != prompts.num_available:
                yield (
                    f"{prompts.task} has {prompts.num_prompts} of {prompts.num_available} prompts, "
                    "but the run has no limit."
                )
    num_passes = len({record.key.repeat for record in records})
    asked_passes = spec_values.repeats or 1  # with until_ci, the most
    is_whole = header.status == "complete" and not spec_values.until_ci
    if is_whole and num_passes and num_passes != asked_passes:
        yield f"The run has {asked_passes} passes, but records of {num_passes}."


def _too_short_runs(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence if a run took less time than a worker's answers, which come one after the other,
    or if its times are wrong. A merged run took the time of all its runs.

    Starts (`created`) and ends (`finished`) are texts in ISO 8601; an unfinished run's end is None.
    """
    parts_of_run = header.origins or [header]  # `origins`: the runs that it was merged from
    try:
        durations_s = [
            _seconds_between(part_of_run.created, part_of_run.finished)
            for part_of_run in parts_of_run
            if part_of_run.finished is not None
        ]
    except (ValueError, TypeError):
        yield "created or finished is not a time in ISO 8601."
        return
    if any(seconds < 0 for seconds in durations_s):
        yield f"The run ended at {header.finished}, before it began at {header.created}."
        return
    if len(durations_s) < len(parts_of_run):  # not finished
        return
    # Seconds of all answers of each worker, "" without any: workers answer side by side.
    answers_s: dict[str, float] = defaultdict(float)
    for record in records:
        answers_s[record.worker] += record.wall_s or 0.0  # None if the answer failed
    longest_s = max(answers_s.values(), default=0.0)
    run_s = sum(durations_s)
    if longest_s > run_s + _CLOCK_S * len(parts_of_run):  # starts and ends are whole seconds
        yield f"The answers took {longest_s:.0f} s, but the whole run only {run_s:.0f} s."


def _seconds_between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def _miscounted_blocks(blocks: Sequence[BlockHeader], records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each block of a server whose counts of requests and tokens differ from the
    sums of its records. A block has the requests of one method and task that a server completed
    together. The key of a block is its method, temperature, task, pass over the prompts and load.
    """
    num_requests: Counter[BlockKey] = Counter()  # of the records, by the key of their block
    num_tokens: Counter[BlockKey] = Counter()  # of the records' answers, by the same key
    for record in records:
        key = block_key(record.key)
        num_requests[key] += 1
        num_tokens[key] += record.num_tokens
    num_blocks = Counter(map(block_key, blocks))  # blocks by their key
    for block in blocks:
        key = block_key(block)
        # The block was measured in parts: `num_before` requests before an interruption.
        if num_blocks[key] > 1 or block.num_before:
            continue
        counts = num_requests[key], num_tokens[key]  # those of its records
        if (block.num_requests, block.num_tokens) != counts:
            yield (
                f"The block of {block.method} on {block.task} counts {block.num_requests} requests "
                f"and {block.num_tokens} tokens, its records {counts[0]} and {counts[1]}."
            )
