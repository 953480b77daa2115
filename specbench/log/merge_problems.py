"""Find reasons not to merge runs: different work, missing records, or shared measurements."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from specbench.log.difference import in_words
from specbench.log.policies import MERGE
from specbench.log.run import Run
from specbench.types import RecordKey

SAME_S = 2e-6
"""Times that differ by at most this many seconds count as equal, because the times of servers are
rounded to microseconds.
"""


def merge_problems(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a sentence for each reason not to merge the runs. It names the runs."""
    first_header = runs[0].header
    for run_index, run in enumerate(runs):
        header = run.header
        if header.status == "running":
            yield f"{header.id} is not finished: merge it when it is."
        if run.missing_text:  # which records are missing, in words; empty if none
            yield f"{header.id} is marked as complete, but {run.missing_text}."
        earlier_runs = runs[:run_index]
        for earlier_run in earlier_runs:
            if _is_measured_twice(run, earlier_run):
                yield (
                    f"{header.id} has measurements of {earlier_run.header.id}: it is given twice, "
                    "or one is a copy, a part or a pass of the other."
                )
        if any(header.id == earlier_run.header.id for earlier_run in earlier_runs):
            yield f"Two runs are named {header.id}: rename a folder, so that origins differ."
        # The differences from the first run that forbid a merge: in work, methods or draws.
        conflicts = MERGE.conflicts(first_header, header)
        for sentence in in_words(conflicts, first_header, header):
            yield f"{sentence}."


class _Times(NamedTuple):
    """The times of an answer."""

    prefill_s: float
    """Seconds until the first token."""
    decode_s: float
    """Seconds from the first token to the last."""

    def is_same(self, other_times: "_Times") -> bool:
        """True if both times are equal within `SAME_S`."""
        prefill_change_s = abs(self.prefill_s - other_times.prefill_s)
        decode_change_s = abs(self.decode_s - other_times.decode_s)
        return prefill_change_s <= SAME_S and decode_change_s <= SAME_S


class _Answer(NamedTuple):
    """An answer that several passes over a prompt may share."""

    key: RecordKey
    """Key of the record, with the pass (`repeat`) set to 0."""
    token_ids: tuple[int, ...]
    """Token ids of the answer."""


def _is_measured_twice(run: Run, earlier_run: Run) -> bool:
    """True if two runs share measurements because one is a copy, a part or a pass of the other.

    Runs share measurements if they share a random id of measurements (`uids`). Runs of older
    versions have no such id, and a copy may have lost it. So runs also share measurements if two
    answers of one run are in the other run, perhaps in another pass: the request and the tokens are
    equal, and the times of prefill and decoding differ by at most `SAME_S`. Two honest measurements
    never agree in both times.
    """
    if run.header.uids & earlier_run.header.uids:
        return True
    # Answer (request, method and tokens) -> its times in each pass that gave this answer.
    times_by_answer = _times_of_answers(run)
    earlier_times_by_answer = _times_of_answers(earlier_run)
    num_shared = 0  # answers of the earlier run with the times of an answer of `run`
    for answer, earlier_times_of_passes in earlier_times_by_answer.items():
        times_of_passes = times_by_answer.get(answer, [])
        num_shared += sum(
            any(times.is_same(earlier_times) for times in times_of_passes)
            for earlier_times in earlier_times_of_passes
        )
    num_records = sum(map(len, times_by_answer.values()))
    num_earlier_records = sum(map(len, earlier_times_by_answer.values()))
    # Two shared answers are needed, or one if a run has only one.
    return num_shared >= max(1, min(2, num_records, num_earlier_records))


def _times_of_answers(run: Run) -> Mapping[_Answer, Sequence[_Times]]:
    """Answer -> its times in each pass that gave this answer. Answers that failed or have no decode
    time are left out.
    """
    times_of_answers: dict[_Answer, list[_Times]] = defaultdict(list)
    for record in run.records:
        if record.prefill_s is not None and record.decode_s:
            answer = _Answer(replace(record.key, repeat=0), record.token_ids)
            times_of_answers[answer].append(_Times(record.prefill_s, record.decode_s))
    return times_of_answers
