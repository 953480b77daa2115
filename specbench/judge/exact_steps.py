"""Steps of equal answers at temperature 0 in two runs: they repeat exactly, without statistics."""

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
"""Fewest answers with more or fewer steps that fail a check: rounding may change one answer."""


class _ExactPair(NamedTuple):
    """Two equal answers to a request, after equal dialogues."""

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
    """A check for each method and task whose equal answers took other steps than in the baseline.

    The drafts of a method that draws nothing at random and remembers no other request follow from
    the prompt and the answer. In float32 on the same kind of machine, two equal answers then take
    the same steps, unless the method has changed. `allowed` limits the change of a task's MAT.
    Changes of methods that do not say if they repeat their drafts, as in older runs, never fail.

    Args:
        run: the checked run at one load.
        baseline: the baseline at this load.
        allowed: the shares by which MAT may drop or rise.
        load: the load that checks name.
    """
    headers = baseline.header, run.header
    if CHECK.cautions(*headers) or {header.model.dtype for header in headers} != {"float32"}:
        return
    pairs_by_cell: dict[CellKey, list[_ExactPair]] = defaultdict(list)
    for pair in _exact_pairs(run, baseline):
        key = pair.now.key
        if _is_repeatable(key.method, *headers) is not False:
            cell = CellKey(key.method, key.temperature, key.task, load)
            pairs_by_cell[cell].append(pair)
    for cell, pairs in pairs_by_cell.items():
        if any(pair.is_changed for pair in pairs):
            is_repeatable = _is_repeatable(cell.method, *headers) is True
            yield _check(cell, pairs, allowed, is_repeatable=is_repeatable)


def _is_repeatable(method: str, baseline: RunHeader, header: RunHeader) -> bool | None:
    """True if the run says that a method's drafts repeat; None if the run does not record it.

    False for vanilla, for a method that one run lacks, and if either run says that drafts do not
    repeat. A baseline of an older version need not record it.
    """
    before, now = baseline.methods.get(method), header.methods.get(method)
    if method == BASELINE or before is None or now is None or before.is_repeatable is False:
        return False
    return now.is_repeatable


def _exact_pairs(run: Run, baseline: Run) -> Iterator[_ExactPair]:
    """Answers at temperature 0 that are equal in both runs, as are all earlier turns of a chat."""
    answers_before = _answers(baseline)
    answers = _answers(run)
    for key, now in answers.items():
        before = answers_before.get(key)
        if before is None or not now.accept_lengths or not before.accept_lengths:
            continue
        turns = [replace(key, turn=turn) for turn in range(key.turn + 1)]
        if all(_is_same(answers.get(turn), answers_before.get(turn)) for turn in turns):
            yield _ExactPair(before, now)


def _answers(run: Run) -> Mapping[RecordKey, Record]:
    """The greedy answers of a run by key."""
    return {
        record.key: record for record in run.records if record.is_ok and record.key.temperature == 0
    }


def _is_same(now: Record | None, before: Record | None) -> bool:
    return now is not None and before is not None and now.token_ids == before.token_ids


def _check(
    cell: CellKey, pairs: list[_ExactPair], allowed: Allowed, *, is_repeatable: bool
) -> Check:
    """The check of a cell with equal answers that took other steps."""
    num_changed = sum(pair.is_changed for pair in pairs)
    num_other_count = sum(pair.has_other_count for pair in pairs)
    steps_before = sum(len(pair.before.accept_lengths) for pair in pairs)
    steps_now = sum(len(pair.now.accept_lengths) for pair in pairs)
    ratio = steps_before / steps_now  # of MAT, since the tokens are the same
    most = allowed.max_mat_drop if ratio < 1 else allowed.max_mat_rise
    status: Status = "passed"
    text = f"{num_changed} of {len(pairs)} equal answers took other steps"
    if steps_now != steps_before:
        word = "lower" if ratio < 1 else "higher"
        text += f", {steps_now} instead of {steps_before}: MAT is {word} by {abs(ratio - 1):.1%}"
    if not is_repeatable:
        text += " (not judged: an older run)"
    elif abs(ratio - 1) > most and num_other_count >= LEAST_ANSWERS:
        status = "failed"
        text += f"; {most:.1%} is allowed. Equal answers of equal code take equal steps"
    return Check("steps", status, text, cell)
