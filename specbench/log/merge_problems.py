"""Reasons not to merge runs: other work, missing records, or measurements that several of them
have.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from specbench.log.difference import in_words
from specbench.log.policies import MERGE
from specbench.log.run import Run
from specbench.types import RecordKey

SAME_S = 2e-6
"""Times that differ by at most this count as equal: servers' times are rounded to microseconds."""


def merge_problems(runs: Sequence[Run]) -> Iterator[str]:
    """Every reason not to join the runs, a sentence each, with the runs' names."""
    first_header = runs[0].header
    for run_index, run in enumerate(runs):
        header = run.header
        if header.status == "running":
            yield f"{header.id} is not finished: merge it when it is."
        if run.missing_text:  # which records are missing, in words; empty if none
            yield f"{header.id} says that it is complete, but {run.missing_text}."
        earlier_runs = runs[:run_index]
        for earlier_run in earlier_runs:
            if _is_measured_twice(run, earlier_run):
                yield (
                    f"{header.id} has measurements of {earlier_run.header.id}: it is given twice, "
                    "or one is a copy, a part or a pass of the other."
                )
        if any(header.id == earlier_run.header.id for earlier_run in earlier_runs):
            yield f"Two runs are named {header.id}: rename a folder, so that origins differ."
        conflicts = MERGE.conflicts(first_header, header)  # differences that forbid a merge
        for sentence in in_words(conflicts, first_header, header):
            yield f"{sentence}."


class _Times(NamedTuple):
    """The times of an answer."""

    prefill_s: float
    """Seconds until the first token."""
    decode_s: float
    """Seconds of the other tokens."""

    def is_same(self, other_times: "_Times") -> bool:
        """True if both times are equal within `SAME_S`."""
        prefill_change_s = abs(self.prefill_s - other_times.prefill_s)
        decode_change_s = abs(self.decode_s - other_times.decode_s)
        return prefill_change_s <= SAME_S and decode_change_s <= SAME_S


class _Answer(NamedTuple):
    """An answer that several passes over one prompt have in common."""

    key: RecordKey
    """Key of the record, with repeat 0."""
    token_ids: tuple[int, ...]
    """Tokens."""


def _is_measured_twice(run: Run, earlier_run: Run) -> bool:
    """True if two runs share measurements: one is a copy, a part or a pass of the other.

    A run's `uids` are the random names of its measurements. Files of older versions have none,
    and copies can lose them. So two records count as one measurement if they differ in the repeat
    (pass over the prompts) alone, and the times of prefill and decoding agree within `SAME_S`. In
    two honest passes, at most one of the times agrees.
    """
    if run.header.uids & earlier_run.header.uids:
        return True
    # A record's key without its repeat, with its token ids -> the pairs of times (prefill,
    # decoding) of all records that have these, one per pass.
    times_by_answer = _times_of_answers(run)
    earlier_times_by_answer = _times_of_answers(earlier_run)
    num_shared = 0  # records of the earlier run whose both times a record of `run` has, too
    for answer, earlier_pairs in earlier_times_by_answer.items():
        pairs_of_run = times_by_answer.get(answer, [])
        num_shared += sum(
            any(pair.is_same(earlier_pair) for pair in pairs_of_run)
            for earlier_pair in earlier_pairs
        )
    num_records = sum(map(len, times_by_answer.values()))
    num_earlier_records = sum(map(len, earlier_times_by_answer.values()))
    # Two shared records are enough; one, if a run has no more.
    return num_shared >= max(1, min(2, num_records, num_earlier_records))


def _times_of_answers(run: Run) -> Mapping[_Answer, Sequence[_Times]]:
    """The times of the answers that took steps, in all passes that gave the same answer."""
    times_of_answers: dict[_Answer, list[_Times]] = defaultdict(list)
    for record in run.records:
        if record.prefill_s is not None and record.decode_s:
            answer = _Answer(replace(record.key, repeat=0), record.token_ids)
            times_of_answers[answer].append(_Times(record.prefill_s, record.decode_s))
    return times_of_answers
