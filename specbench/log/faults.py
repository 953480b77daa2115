"""Faults of a run's records that only show in several lines, or against the header.

Faults of single lines are found while they are read (`log.store`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from specbench.log.backend import BlockHeader
from specbench.log.header import RunHeader
from specbench.log.run import BlockKey, block_key
from specbench.types import Record, RequestKey, seed_of

_SLACK = 1.001
"""Sums of times are stored rounded."""
_CLOCK_S = 2.0
"""The start and the end of a run are whole seconds."""


def find_faults(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each thing that `specbench run` cannot have written.

    Faults of single records come first, in the order of the records.
    """
    yield from _of_records(header, records)
    yield from _future(header)
    if header.status == "complete":
        yield from _missing(header, records)
    if not header.blocks:
        yield from _duration(header, records)
    yield from _blocks(header.blocks, records)


def _of_records(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    seed, budget = header.spec.values.seed, header.spec.values.max_new_tokens
    eos_ids = {one.token_ids[-1] for one in records if _has_end(one) and one.stop_reason == "eos"}
    lengths: dict[tuple[str, str], int] = {}
    for one in records:
        key, found = one.key, [*_sizes(one, header)]
        if one.is_ok:
            found += [*_times(one), *_end(one, eos_ids, budget)]
            # A merged record had another repeat.
            if not one.origin and one.seed != seed_of(seed, key.request):
                found.append(f"the seed {one.seed} does not follow from the run's, {seed}.")
        if one.is_ok and not key.turn:
            num = lengths.setdefault((key.task, key.sample_id), one.prompt_tokens)
            if one.prompt_tokens != num:
                found.append(f"its prompt has {one.prompt_tokens} tokens, in others {num}.")
        where = f"{key.sample_id}, turn {key.turn}, repeat {key.repeat}"
        name = f"{key.method} on {where} at T={key.temperature:g}"
        yield from (f"{name}: {text}" for text in found)


def _times(one: Record) -> Iterator[str]:
    if one.prefill_s is None or one.decode_s is None:
        return
    if one.prefill_s <= 0:
        yield f"prefill_s is {one.prefill_s:g}, but reading a prompt takes time."
    if one.decode_s <= 0 and one.accept_lengths and one.serving is None:
        yield f"decode_s is {one.decode_s:g}, but it has steps."
    parts = {"draft_prefill_s": one.draft_prefill_s or 0.0}
    if one.phases:
        parts["the sum of the phases"] = sum(asdict(one.phases).values())
    for what, seconds in parts.items():
        if seconds > one.decode_s * _SLACK:
            yield f"{what} is {seconds:g} s, more than decode_s, {one.decode_s:g}."


def _has_end(one: Record) -> bool:
    """True if the last token of the answer may be an end token of the model."""
    return one.is_ok and one.serving is None and bool(one.token_ids)


def _end(one: Record, eos_ids: set[int], budget: int | None) -> Iterator[str]:
    """An answer that goes on after an end token, or does not fit its stop reason."""
    if one.stop_reason is None:
        yield "it has no stop_reason."
    if one.stop_reason == "budget" and budget is not None and one.num_tokens != budget:
        yield f"it stopped at {one.num_tokens} tokens of a budget of {budget}."
    if _has_end(one) and (early := eos_ids.intersection(one.token_ids[:-1])):
        yield f"it goes on after the end token {min(early)}."
    if _has_end(one) and one.stop_reason != "eos" and one.token_ids[-1] in eos_ids:
        yield f"it ends with {one.token_ids[-1]}, an end token, but says {one.stop_reason}."


def _sizes(one: Record, header: RunHeader) -> Iterator[str]:
    """Ends of tokens that do not fit the text, and trees larger or deeper than the options of
    dynamic trees allow (EAGLE-2 and its like).
    """
    ends = one.token_ends
    if ends and (list(ends) != sorted(ends) or ends[-1] != len(one.text)):
        yield "token_ends do not lead through its text."
    about = header.methods.get(one.key.method)
    if about and {"total_tokens", "depth"} <= about.options.keys():
        most, depth = about.options["total_tokens"], about.options["depth"] + 1
        if max(one.num_nodes, default=0) > most:
            yield f"a tree of {max(one.num_nodes)} nodes, with {most} allowed."
        if (longest := max(one.accept_lengths, default=0)) > depth + 1:
            yield f"a step of {longest} tokens from trees of depth {depth}."


def _future(header: RunHeader) -> Iterator[str]:
    """Dates that are more than a day ahead of this machine's clock."""
    for name, date in (("created", header.created), ("finished", header.finished)):
        with suppress(ValueError, TypeError):  # named elsewhere
            if date and datetime.fromisoformat(date) > datetime.now(UTC) + timedelta(days=1):
                yield f"{name} is in the future: {date}."


def _missing(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Records that a complete run lacks."""
    if header.num_records is not None and len(records) != header.num_records:
        yield f"The run is complete, but has {len(records)} of {header.num_records} records."
    requests: dict[str, set[RequestKey]] = defaultdict(set)
    for one in records:
        requests[one.key.method].add(one.key.request)
    every = set().union(*requests.values())
    for method, answered in requests.items():
        if lacking := len(every) - len(answered):
            yield f"{method} lacks {lacking} of the {len(every)} requests that others answered."
    for about in header.prompts:
        known = len({one.key.sample_id for one in records if one.key.task == about.task})
        if known != about.num_prompts:
            yield f"{about.task} has records of {known} of its {about.num_prompts} prompts."


def _duration(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A run that took less time than a worker's answers, which come one after the other."""
    spans = [(one.created, one.finished) for one in header.origins or [header]]
    try:
        elapsed = [
            (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
            for start, end in spans
            if end is not None
        ]
    except (ValueError, TypeError):
        yield "created or finished is not a time in ISO 8601."
        return
    if any(seconds < 0 for seconds in elapsed):
        yield f"The run ended at {header.finished}, before it began at {header.created}."
    elif len(elapsed) == len(spans):
        answers = defaultdict[str, float](float)  # of each worker: they answer side by side
        for one in records:
            answers[one.worker] += one.wall_s or 0.0
        longest = max(answers.values(), default=0.0)
        if longest > sum(elapsed) + _CLOCK_S * len(spans):
            yield f"The answers took {longest:.0f} s, but the whole run only {sum(elapsed):.0f} s."


def _blocks(blocks: Sequence[BlockHeader], records: Sequence[Record]) -> Iterator[str]:
    """Blocks of a server whose counts differ from the sums of their records."""
    counts: dict[BlockKey, list[int]] = defaultdict(lambda: [0, 0])
    for one in records:
        sums = counts[block_key(one.key)]
        sums[0] += 1
        sums[1] += one.num_tokens
    times = Counter(map(block_key, blocks))
    for block in blocks:
        requests, tokens = counts[block_key(block)]
        is_whole = times[block_key(block)] == 1 and not block.num_before
        if is_whole and (block.num_requests, block.num_tokens) != (requests, tokens):
            yield (
                f"The block of {block.method} on {block.task} counts {block.num_requests} requests "
                f"and {block.num_tokens} tokens, its records {requests} and {tokens}."
            )
