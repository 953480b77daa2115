"""Find times that no honest clock gives, such as those of copied passes, of a coarse clock, or of
clocks that contradict each other.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from specbench.log.machine import Threads
from specbench.types import BASELINE, Record, RecordKey

COPIED = 1e-4
"""Answers in two passes are copies if both of their times differ by at most this share. Of 2,856
honest pairs, the closest differ by 1.6e-3.
"""
LEAST_COPIES = 2
"""A pass counts as a copy of another only if at least this many requests are copied."""
LEAST_COPIED_SHARE = 0.05
"""A pass counts as a copy of another only if at least this share of the requests is copied. Among
thousands of requests, a few have equal times by chance.
"""
LEAST_TOKENS = 8
"""Answers with fewer tokens take too little time for it to differ between passes."""
MOST_TICK_S = 1e-4
"""The longest allowed tick of a clock in seconds. A clock with a longer tick is too coarse."""
LEAST_TIMES = 8
"""Minimum number of times needed to compute the tick of a clock."""
MOST_SLOWER = 3.0
"""Largest allowed ratio of a step's time to its time in the trial, relative to vanilla's ratio. In
honest runs, the medians of this relative ratio are 0.9 to 1.5.
"""
LEAST_ANSWERS = 8
"""Minimum number of answers needed to compute the time of a step."""
_NANOSECONDS = 10**9


def find_time_faults(records: Sequence[Record], threads: Threads | None = None) -> Iterator[str]:
    """Yield a sentence for each kind of times that no honest clock gives.

    `threads` is from the run's header, and has the times of steps in trials before the run.
    """
    done = [record for record in records if record.is_ok and record.wall_s is not None]
    yield from _outer_clock_behind(done)
    yield from _coarse_clock(done)
    yield from _copied_passes(done)
    if threads:
        yield from _slower_than_trials(done, threads)


def _outer_clock_behind(done: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence if the clock outside the decoding loop measured less time than the one
    inside.
    """
    behind = [
        record
        for record in done
        if record.outer_s is not None and record.outer_s < (record.wall_s or 0.0)
    ]
    if behind:
        first_record = behind[0]
        yield (
            f"outer_s is less than prefill_s + decode_s in {len(behind)} records, first in "
            f"{first_record.key.method} on {first_record.key.sample_id}, but the outer clock "
            "starts earlier."
        )


def _coarse_clock(done: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence if all times are multiples of a tick longer than MOST_TICK_S seconds."""
    times_s = [seconds for record in done for seconds in (record.prefill_s, record.decode_s)]
    nanoseconds = [
        round(seconds * _NANOSECONDS)
        for seconds in times_s
        if seconds is not None and seconds > 0 and math.isfinite(seconds * _NANOSECONDS)
    ]
    tick_s = math.gcd(*nanoseconds) / _NANOSECONDS  # the largest time that divides all times
    if len(nanoseconds) >= LEAST_TIMES and tick_s > MOST_TICK_S:
        yield f"All times are multiples of {tick_s * 1e3:g} ms: the clock was too coarse."


def _copied_passes(done: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each pair of passes of a method in which one is a copy of the other.

    A pass goes through all prompts once. An answer is a copy of the answer to the same request in
    another pass if the tokens are equal, and the times of prefill and decoding differ by at most a
    share of COPIED. A pass is a copy of another if at least LEAST_COPIES of its answers, and at
    least a share of LEAST_COPIED_SHARE, are copies of the other's. Answers with fewer than
    LEAST_TOKENS tokens do not count. Answers to requests that only one pass answered do not count
    either. `done` has the records that did not fail and have times.
    """
    # Method and request, as a key whose pass is 0 -> the method's answers, one per pass.
    answers_by_request: dict[RecordKey, list[Record]] = defaultdict(list)
    for record in done:
        if record.num_tokens >= LEAST_TOKENS:
            answers_by_request[replace(record.key, repeat=0)].append(record)
    # (method, earlier pass, later pass) -> number of pairs, and of pairs that are copies.
    num_pairs: Counter[tuple[str, int, int]] = Counter()
    num_copies: Counter[tuple[str, int, int]] = Counter()
    for answers in answers_by_request.values():
        answers_by_pass = sorted(answers, key=lambda answer: answer.key.repeat)
        for earlier, later in combinations(answers_by_pass, 2):
            method_and_passes = earlier.key.method, earlier.key.repeat, later.key.repeat
            num_pairs[method_and_passes] += 1
            num_copies[method_and_passes] += _is_copy(earlier, later)
    for method_and_passes, num_copied_pairs in sorted(num_copies.items()):
        method, first_pass, second_pass = method_and_passes
        if num_copied_pairs >= max(LEAST_COPIES, LEAST_COPIED_SHARE * num_pairs[method_and_passes]):
            yield (
                f"{method}: passes {first_pass + 1} and {second_pass + 1} have the same times in "
                f"{num_copied_pairs} requests: one is a copy of the other."
            )


def _is_copy(earlier: Record, later: Record) -> bool:
    """True if two answers have the same tokens and nearly the same times."""
    if earlier.token_ids != later.token_ids or not earlier.decode_s or not later.decode_s:
        return False
    times = ((earlier.prefill_s, later.prefill_s), (earlier.decode_s, later.decode_s))
    return all(
        math.isclose(earlier_s or 0.0, later_s or 0.0, rel_tol=COPIED)
        for earlier_s, later_s in times
    )


def _slower_than_trials(done: Sequence[Record], threads: Threads) -> Iterator[str]:
    """Yield a sentence for each method whose steps took far longer than in the trial before the
    run.

    A trial times a method's steps with several numbers of CPU threads, to choose one for the run.
    Slower steps are a sign that somebody removed steps from the file, but kept the tokens and
    times. If the machine became slower after the trial, vanilla's steps took more time, too. So the
    rule is

        (step / step in the trial) / (vanilla's step / vanilla's in the trial) > MOST_SLOWER

    The drafter's prefill does not count. A method is left out if it has fewer than LEAST_ANSWERS
    answers, or if its records list no tree sizes (`num_nodes`) or several. It is also left out if
    it shared a trial with other methods, because the trial ran only one of them. Without vanilla's
    steps and trial, there are no sentences.
    """
    answers_by_method: dict[str, list[Record]] = defaultdict(list)
    for record in done:
        if record.accept_lengths and record.decode_s:
            answers_by_method[record.key.method].append(record)
    # Seconds of a step in vanilla's trial with the number of threads that was chosen.
    vanilla_trial_s = threads.step_s.get(str(threads.num))
    if not vanilla_trial_s or not answers_by_method[BASELINE]:
        return
    vanilla_ratio = _step_s(answers_by_method[BASELINE]) / vanilla_trial_s
    if vanilla_ratio <= 0:  # all of its decoding counts as the drafter's prefill
        return
    # A trial maps numbers of threads, as texts, to seconds of a step. Methods that shared a trial
    # have equal mappings.
    trials = [*threads.method_step_s.values()]
    for method, trial in threads.method_step_s.items():
        answers = answers_by_method[method]
        tree_sizes = {num_nodes for answer in answers for num_nodes in answer.num_nodes}
        num_threads = threads.of(method)
        trial_s = trial.get(str(num_threads))
        is_own_trial = trials.count(trial) == 1
        has_one_tree_size = len(tree_sizes) == 1
        if not trial_s or not is_own_trial or not has_one_tree_size:
            continue
        if len(answers) < LEAST_ANSWERS:
            continue
        step_s = _step_s(answers)
        relative_ratio = step_s / trial_s / vanilla_ratio
        if relative_ratio > MOST_SLOWER:
            yield (
                f"{method}: a step took {step_s * 1e3:.3g} ms; relative to vanilla's step, it took "
                f"{relative_ratio:.1f} times as long as in the trial before the run."
            )


def _step_s(answers: Sequence[Record]) -> float:
    """The mean seconds of a step of these answers, without the drafter's prefill."""
    seconds = sum((answer.decode_s or 0.0) - (answer.draft_prefill_s or 0.0) for answer in answers)
    return seconds / sum(len(answer.accept_lengths) for answer in answers)
