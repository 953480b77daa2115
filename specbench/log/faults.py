"""Find faults of a run's records that show only in several lines together, or with the header.

Faults of single lines are found while the lines are read (`log.store`).
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
"""The largest allowed ratio of a sum of times to the whole time. Stored times are rounded."""
_CLOCK_S = 2.0
"""The possible error of a run's duration, whose start and end are stored in whole seconds."""


def find_faults(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each fault that no run written by `specbench run` has. Faults of single
    records come first, in the order of the records.
    """
    if header.imported:  # only runs that specbench measured have the other faults
        yield from _miscounted_blocks(header.blocks, records)
        return
    yield from _faults_of_records(header, records)
    yield from _dates_in_the_future(header)
    if header.status == "complete":
        yield from _missing_records(header, records)
    if not header.blocks:  # answers of a server, which come in blocks, overlap in time
        yield from _too_short_runs(header, records)
    yield from _miscounted_blocks(header.blocks, records)
    yield from _left_out_prompts(header, records)
    # Times that no honest clock gives, or steps far slower than in the trials before the run.
    yield from find_time_faults(records, header.threads)


def find_wrong_numbers(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each fault that makes numbers of a report wrong. Of the faults of single
    records, only the first is given.
    """
    faults = ((record.key, fault) for record in records for fault in _size_faults(record, header))
    for key, fault in islice(faults, 1):
        yield f"{_answer_text(key)}: {fault}"
    yield from _left_out_prompts(header, records)
    yield from find_time_faults(records, header.threads)


def _answer_text(key: RecordKey) -> str:
    """The method, request and temperature of an answer in words. Turn and pass count from 1."""
    request_text = f"{key.sample_id}, turn {key.turn + 1}, pass {key.repeat + 1}"
    return f"{key.method} on {request_text} at T={key.temperature:g}"


def _faults_of_records(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each fault of a record, after its method, request and temperature.

    A record's key has the method and the request: task, sample id, turn of the chat (from 0), pass
    over the prompts (`repeat`, from 0) and so on.
    """
    run_seed = header.spec.values.seed
    budget = header.spec.values.max_new_tokens  # maximum tokens of an answer; None if unknown
    eos_ids = {  # the end tokens at which answers of this run stopped
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
            # A record of a merged run (`origin` is set) may have had another pass number (`repeat`)
            # in its first run, from which its seed follows.
            if not record.origin and record.seed != seed_of(run_seed, key.request):
                faults.append(
                    f"seed {record.seed} does not follow from the run's seed, {run_seed}."
                )
        # The prompt of a first turn is the same for all methods and passes.
        if record.is_ok and not key.turn:
            prompt_key = key.task, key.sample_id
            first_length = prompt_lengths.setdefault(prompt_key, record.prompt_tokens)
            if record.prompt_tokens != first_length:
                faults.append(
                    f"its prompt has {record.prompt_tokens} tokens, but {first_length} in others."
                )
        yield from (f"{_answer_text(key)}: {fault}" for fault in faults)


def _time_faults(record: Record) -> Iterator[str]:
    """Yield a sentence for each time that must be positive and is not, and for each part of
    decoding that took longer than all of decoding.

    All times are in seconds. `prefill_s` is the time until the first token, and `decode_s` is the
    time from the first token to the last. Both are None if the answer failed. `phases` has the
    parts of a step, summed over the steps, if they were timed. `draft_prefill_s` is the part of
    `decode_s` in which the drafter read the prompt, or None.
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
    """Yield a sentence for each contradiction between the end of an answer and its stop reason, and
    one if the answer continues after an end token.

    `eos_ids` are the end tokens. `budget` is the maximum length of an answer, None if unknown. A
    stop reason is "eos" (an end token), "budget", or "length" (the end of the model's context).
    """
    reason = record.stop_reason
    if reason is None:
        yield "it has no stop_reason."
    if reason == "budget" and budget is not None and record.num_tokens != budget:
        yield f"it stopped at {record.num_tokens} tokens of a budget of {budget}."
    # The following checks are not for answers that failed, are empty, or come from a server.
    if not _may_end_with_eos(record):
        return
    *earlier_ids, last_id = record.token_ids
    early_eos = eos_ids.intersection(earlier_ids)
    if early_eos:
        yield f"it continues after the end token {min(early_eos)}."
    if reason != "eos" and last_id in eos_ids:
        yield f"it ends with {last_id}, an end token, but its stop_reason is {reason}."


def _size_faults(record: Record, header: RunHeader) -> Iterator[str]:
    """Yield a sentence for each of these faults: the prompt is empty, the ends of tokens do not fit
    the text, a draft tree has more nodes than the method's options allow, or a step emitted more
    tokens than a path of a dynamic tree can have.

    `token_ends` has the characters of the text up to the end of each token [tokens]. `num_nodes`
    has the nodes of each step's tree, and `accept_lengths` its emitted tokens [steps].
    """
    if record.is_ok and record.prompt_tokens <= 0:
        yield "prompt_tokens is 0, but the target reads at least one token."
    token_ends = record.token_ends
    is_ordered = list(token_ends) == sorted(token_ends)
    if token_ends and (not is_ordered or token_ends[-1] != len(record.text)):
        yield "token_ends do not match its text."
    method = header.methods.get(record.key.method)
    if method is None:
        return
    # `most_nodes` is 0 in older headers, and if the options do not set it. For dynamic trees, an
    # option also has the number.
    allowed_nodes = method.most_nodes or method.options.get("total_tokens", 0)  # 0 if unknown
    num_nodes = max(record.num_nodes, default=0)  # of the largest tree
    if allowed_nodes and num_nodes > allowed_nodes:
        yield f"a tree has {num_nodes} nodes, but {allowed_nodes} are allowed."
    if not {"total_tokens", "depth"} <= method.options.keys():  # not a method with dynamic trees
        return
    levels = method.options["depth"] + 1  # EAGLE's option does not count the first level
    accept_length = max(record.accept_lengths, default=0)  # of the step with the most tokens
    if accept_length > levels + 1:  # a token of each level, and the bonus token
        yield f"a step emitted {accept_length} tokens from a tree of {levels} levels."


def _dates_in_the_future(header: RunHeader) -> Iterator[str]:
    """Yield a sentence for each date that is more than a day ahead of this machine's clock."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for name, date in (("created", header.created), ("finished", header.finished)):
        with suppress(ValueError, TypeError):  # `_too_short_runs` reports a malformed date
            if date and datetime.fromisoformat(date) > tomorrow:
                yield f"{name} is in the future: {date}."


def _missing_records(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each count of a complete run that is wrong: of all its records, of the
    requests that a method answered (others answered more), or of a task's prompts with records.

    The header's `num_records` is None if unknown, and its `prompts` has an element per task.
    """
    if header.num_records is not None and len(records) != header.num_records:
        yield f"The run is complete, but has {len(records)} of {header.num_records} records."
    requests_by_method: dict[str, set[RequestKey]] = defaultdict(set)
    sample_ids_by_task: dict[str, set[str]] = defaultdict(set)
    for record in records:
        requests_by_method[record.key.method].add(record.key.request)
        sample_ids_by_task[record.key.task].add(record.key.sample_id)
    all_requests = set().union(*requests_by_method.values())
    for method, requests in requests_by_method.items():
        num_lacking = len(all_requests) - len(requests)
        if num_lacking:
            yield (
                f"{method} lacks {num_lacking} of the {len(all_requests)} requests that others "
                "answered."
            )
    for prompts in header.prompts:
        num_samples = len(sample_ids_by_task[prompts.task])
        num_prompts = prompts.num_prompts
        if num_samples != num_prompts:
            yield f"{prompts.task} has records for {num_samples} of its {num_prompts} prompts."


def _left_out_prompts(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each task that lacks prompts of its source although no option (`limit`,
    `sample`) selects prompts, and one if a complete run has records of more or fewer passes than
    its options ask for. Data sets on the Hub are not checked.
    """
    spec_values = header.spec.values
    if header.origins:  # a merged run may consist of parts with different prompts and passes
        return
    if not spec_values.limit and not spec_values.sample:
        for prompts in header.prompts:
            # A task may use only the first rows of a data set on the Hub, without empty ones.
            is_whole_source = prompts.source != "hub"
            if is_whole_source and prompts.num_prompts != prompts.num_available:
                yield (
                    f"{prompts.task} has {prompts.num_prompts} of {prompts.num_available} prompts, "
                    "but the run has no limit."
                )
    num_passes = len({record.key.repeat for record in records})
    asked_passes = spec_values.repeats or 1
    # A run with the option `until_ci` may end after fewer passes.
    is_fixed = header.status == "complete" and not spec_values.until_ci
    if is_fixed and num_passes and num_passes != asked_passes:
        yield f"The run has {asked_passes} passes, but records for {num_passes}."


def _too_short_runs(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence if a run took less time than the answers of its busiest worker took
    together, or if its start or end is wrong. A worker completes one request at a time. A merged
    run took the time of all its runs.

    Starts (`created`) and ends (`finished`) are in ISO 8601. An unfinished run has no end (None).
    """
    parts_of_run = header.origins or [header]  # the runs that a merged run consists of, or the run
    try:
        durations = [  # pairs of a finished part and its seconds
            (part, _seconds_between(part.created, part.finished))
            for part in parts_of_run
            if part.finished is not None
        ]
    except (ValueError, TypeError):
        yield "created or finished is not a time in ISO 8601."
        return
    for part, seconds in durations:
        if seconds < 0:
            yield f"The run {part.id} ended at {part.finished}, before it began at {part.created}."
            return
    if len(durations) < len(parts_of_run):  # some part is not finished
        return
    # Worker -> seconds of all its answers; "" is the only worker without a cluster.
    seconds_by_worker: dict[str, float] = defaultdict(float)
    for record in records:
        seconds_by_worker[record.worker] += record.wall_s or 0.0  # None if the answer failed
    longest_s = max(seconds_by_worker.values(), default=0.0)
    run_s = sum(seconds for _, seconds in durations)
    if longest_s > run_s + _CLOCK_S * len(parts_of_run):  # starts and ends are whole seconds
        yield f"The answers took {longest_s:.0f} s, but the whole run only {run_s:.0f} s."


def _seconds_between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def _miscounted_blocks(blocks: Sequence[BlockHeader], records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each block whose counts of requests or tokens differ from its records.

    A block is the requests that a server completed together. The key of a block has the method,
    temperature, task, pass over the prompts and load of all its requests.
    """
    num_requests = Counter(block_key(record.key) for record in records)
    num_tokens: Counter[BlockKey] = Counter()  # of the records' answers, by the key of their block
    for record in records:
        num_tokens[block_key(record.key)] += record.num_tokens
    num_blocks = Counter(map(block_key, blocks))  # number of blocks with a key
    for block in blocks:
        key = block_key(block)
        # Parts of an interrupted block are not checked. An earlier part did `num_before` requests.
        if num_blocks[key] > 1 or block.num_before:
            continue
        if (block.num_requests, block.num_tokens) != (num_requests[key], num_tokens[key]):
            yield (
                f"The block of {block.method} on {block.task} counts {block.num_requests} requests "
                f"and {block.num_tokens} tokens, its records {num_requests[key]} and "
                f"{num_tokens[key]}."
            )
