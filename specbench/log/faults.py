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
    """A sentence for each thing that `specbench run` cannot have written."""
    yield from _times(records)
    yield from _ends(records, header.spec.values.max_new_tokens)
    yield from _seeds(records, header.spec.values.seed)
    yield from _prompt_lengths(records)
    yield from _texts(records)
    yield from _sizes(header, records)
    yield from _future(header)
    if header.status == "complete":
        yield from _missing(header, records)
    if not header.blocks:
        yield from _duration(header, records)
    yield from _blocks(header.blocks, records)


def _times(records: Sequence[Record]) -> Iterator[str]:
    for one in records:
        if not one.is_ok or one.prefill_s is None or one.decode_s is None:
            continue
        if one.prefill_s <= 0:
            yield f"{_name(one)}: prefill_s is {one.prefill_s:g}, but reading a prompt takes time."
        if one.decode_s <= 0 and one.accept_lengths and one.serving is None:
            yield f"{_name(one)}: decode_s is {one.decode_s:g}, but it has steps."
        parts = {"draft_prefill_s": one.draft_prefill_s or 0.0}
        if one.phases:
            parts["the sum of the phases"] = sum(asdict(one.phases).values())
        for what, seconds in parts.items():
            if seconds > one.decode_s * _SLACK:
                yield (
                    f"{_name(one)}: {what} is {seconds:g} s, more than decode_s, {one.decode_s:g}."
                )


def _ends(records: Sequence[Record], budget: int | None) -> Iterator[str]:
    """Answers that go on after an end token, or whose length does not fit their stop reason."""
    done = [one for one in records if one.is_ok]
    own = [one for one in done if one.serving is None and one.token_ids]
    eos_ids = {one.token_ids[-1] for one in own if one.stop_reason == "eos"}
    for one in done:
        if one.stop_reason is None:
            yield f"{_name(one)}: it has no stop_reason."
        if one.stop_reason == "budget" and budget is not None and one.num_tokens != budget:
            yield f"{_name(one)}: it stopped at {one.num_tokens} tokens of a budget of {budget}."
    for one in own:
        if early := eos_ids.intersection(one.token_ids[:-1]):
            yield f"{_name(one)}: it goes on after the end token {min(early)}."
        if one.stop_reason != "eos" and one.token_ids[-1] in eos_ids:
            token = one.token_ids[-1]
            yield f"{_name(one)}: it ends with {token}, an end token, but says {one.stop_reason}."


def _seeds(records: Sequence[Record], run_seed: int) -> Iterator[str]:
    """Seeds that are not made from the run's. A merged record had another repeat."""
    for one in records:
        if one.is_ok and not one.origin and one.seed != seed_of(run_seed, one.key.request):
            yield f"{_name(one)}: the seed {one.seed} does not follow from the run's, {run_seed}."


def _prompt_lengths(records: Sequence[Record]) -> Iterator[str]:
    """Prompts of one text with several lengths."""
    lengths: dict[tuple[str, str], int] = {}
    for one in records:
        prompt = (one.key.task, one.key.sample_id)
        if one.key.turn or not one.is_ok:
            continue
        if one.prompt_tokens != (known := lengths.setdefault(prompt, one.prompt_tokens)):
            yield f"{_name(one)}: its prompt has {one.prompt_tokens} tokens, in others {known}."


def _texts(records: Sequence[Record]) -> Iterator[str]:
    for one in records:
        ends = one.token_ends
        if ends and (list(ends) != sorted(ends) or ends[-1] != len(one.text)):
            yield f"{_name(one)}: token_ends do not lead through its text."


def _sizes(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Trees larger or deeper than the options of dynamic trees allow (EAGLE-2 and its like)."""
    limits = {
        spelling: (about.options["total_tokens"], about.options["depth"] + 2)
        for spelling, about in header.methods.items()
        if {"total_tokens", "depth"} <= about.options.keys()
    }
    for one in records:
        most = limits.get(one.key.method)
        if most and max(one.num_nodes, default=0) > most[0]:
            yield f"{_name(one)}: a tree of {max(one.num_nodes)} nodes, with {most[0]} allowed."
        if most and max(one.accept_lengths, default=0) > most[1]:
            longest = max(one.accept_lengths)
            yield f"{_name(one)}: a step of {longest} tokens from trees of depth {most[1] - 1}."


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


def _name(record: Record) -> str:
    key = record.key
    where = f"{key.sample_id}, turn {key.turn}, repeat {key.repeat}"
    return f"{key.method} on {where} at T={key.temperature:g}"
