"""Check that equal answers at temperature 0 take equal steps in two runs, without statistics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from specbench.analysis.cells import BASELINE, CellKey
from specbench.judge.allowed import Allowed
from specbench.judge.checks import Check, Status
from specbench.log.header import RunHeader
from specbench.log.policies import CHECK
from specbench.log.run import Load, Run
from specbench.types import Record, RecordKey

LEAST_ANSWERS = 2
"""A check fails only if at least this many answers take more or fewer steps than before. The steps
of a single answer may differ by rounding. The answers to a request in all passes count as one.
"""


class _ExactPair(NamedTuple):
    """Two equal answers to a request whose earlier turns are equal too."""

    before: Record
    now: Record

    @property
    def is_changed(self) -> bool:
        """True if the steps accept different numbers of tokens."""
        return self.before.accept_lengths != self.now.accept_lengths

    @property
    def has_other_count(self) -> bool:
        """True if the answer took more or fewer steps."""
        return len(self.before.accept_lengths) != len(self.now.accept_lengths)


def check_steps(run: Run, baseline: Run, allowed: Allowed, load: Load) -> Iterator[Check]:
    """Check each method and task with answers at temperature 0 that equal the baseline's, but took
    different steps.

    The drafts of a method that draws nothing at random and remembers no other request follow from
    the prompt and the answer. In float32 on the same kind of machine, two equal answers then take
    the same steps, unless the method has changed. On other machines or in half precision, there are
    no checks. If a header does not say that a method repeats its drafts, as in older runs, the
    method's checks never fail.

    Args:
        run: the checked run at one load (requests at once, or per second).
        baseline: the baseline at this load.
        allowed: the shares by which the MAT of a task may drop or rise.
        load: the load that checks name; NO_LOAD if all checks have the same.
    """
    headers = baseline.header, run.header
    # cautions: differences of the hardware
    if CHECK.cautions(*headers) or {header.model.dtype for header in headers} != {"float32"}:
        return
    # cell (method, temperature and task) -> pairs of equal answers
    pairs_by_cell: dict[CellKey, list[_ExactPair]] = defaultdict(list)
    for pair in _exact_pairs(run, baseline):
        key = pair.now.key  # of the answer's record
        if _repeats_drafts(key.method, *headers) is not False:  # True or unknown
            cell = CellKey(key.method, key.temperature, key.task, load)
            pairs_by_cell[cell].append(pair)
    for cell, pairs in pairs_by_cell.items():
        if any(pair.is_changed for pair in pairs):
            may_fail = _repeats_drafts(cell.method, *headers) is True
            yield _check(cell, pairs, allowed, may_fail=may_fail)


def _repeats_drafts(method: str, baseline: RunHeader, header: RunHeader) -> bool | None:
    """Find out if a method's drafts follow from the prompt and the answer.

    The result is False for vanilla, for a method that one run lacks, and if either run says that
    the drafts do not repeat. Otherwise the header of the checked run decides. If it does not
    say, as in older runs, the result is None.
    """
    before, now = baseline.methods.get(method), header.methods.get(method)
    if method == BASELINE or before is None or now is None or before.is_repeatable is False:
        return False
    return now.is_repeatable


def _exact_pairs(run: Run, baseline: Run) -> Iterator[_ExactPair]:
    """Pair equal answers to the same request at temperature 0, in the run and in the baseline.

    The answers to all earlier turns of the chat must be equal too: the method's, and those of the
    run's first method, which may be the history of all methods. Answers without recorded steps are
    left out.
    """
    first_method = next(iter(run.header.methods), BASELINE)
    answers_before = _answers(baseline)  # by the key of a record
    answers_now = _answers(run)
    for key, now in answers_now.items():
        before = answers_before.get(key)
        # `accept_lengths` has the tokens that each step emitted
        if before is None or not now.accept_lengths or not before.accept_lengths:
            continue
        earlier_keys = [
            replace(key, method=method, turn=turn)
            for method in (key.method, first_method)
            for turn in range(key.turn)
        ]
        if all(
            _is_same(answers_now.get(compared_key), answers_before.get(compared_key))
            for compared_key in (key, *earlier_keys)
        ):
            yield _ExactPair(before, now)


def _answers(run: Run) -> Mapping[RecordKey, Record]:
    """The greedy answers of a run, by the keys of their records."""
    return {
        record.key: record for record in run.records if record.is_ok and record.key.temperature == 0
    }


def _is_same(now: Record | None, before: Record | None) -> bool:
    return now is not None and before is not None and now.token_ids == before.token_ids


def _check(cell: CellKey, pairs: list[_ExactPair], allowed: Allowed, *, may_fail: bool) -> Check:
    """Check the steps of a cell's equal answers, some of which took different steps than before.

    The check fails if MAT changed by more than is allowed, and at least LEAST_ANSWERS answers took
    more or fewer steps. Without `may_fail` it passes.

    Args:
        cell: the method, the temperature, the task and the load.
        pairs: the equal answers of the cell in both runs.
        allowed: the shares by which MAT may drop or rise.
        may_fail: True if the header of the checked run says that the method repeats its drafts.
    """
    num_changed = sum(pair.is_changed for pair in pairs)
    # requests with an answer, in any pass, that took more or fewer steps
    num_other_count = len(
        {replace(pair.now.key, repeat=0) for pair in pairs if pair.has_other_count}
    )
    # `accept_lengths` has an entry per step
    steps_before = sum(len(pair.before.accept_lengths) for pair in pairs)
    steps_now = sum(len(pair.now.accept_lengths) for pair in pairs)
    mat_ratio = steps_before / steps_now  # MAT now / before, since the tokens are the same
    mat_change = abs(mat_ratio - 1)
    allowed_change = allowed.max_mat_drop if mat_ratio < 1 else allowed.max_mat_rise
    status: Status = "passed"
    phrase = f"{num_changed} of {len(pairs)} equal answers took different steps"
    if steps_now != steps_before:
        word = "lower" if mat_ratio < 1 else "higher"
        phrase += f", {steps_now} instead of {steps_before}: MAT is {word} by {mat_change:.1%}"
    if not may_fail:
        phrase += " (not judged: an older run)"
    elif mat_change > allowed_change and num_other_count >= LEAST_ANSWERS:
        status = "failed"
        phrase += f"; {allowed_change:.1%} is allowed. "
        phrase += "The same code takes equal steps for equal answers"
    return Check("steps", status, phrase, cell)
