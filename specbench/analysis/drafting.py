"""Sort answers of servers by their counts of drafts: with drafts, without drafts, or unknown.

A draft model, a draft head or a module that predicts several tokens drafts in every step. An answer
without a draft shows that speculation was off, and a mean over answers with speculation on and off
describes neither state. Look-ups in the text (N-gram, suffix) draft only if they find a match, so
for them an answer without a draft is a valid result.

The counts come with an answer, or otherwise from the server's counters over the answer's block. If
a server gives no counts, nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from specbench.analysis.baseline_drafts import BASELINE_DRAFTS, count_baseline_drafts
from specbench.analysis.cells import CellKey, CellMetrics
from specbench.analysis.costs import Cost
from specbench.analysis.draft_schedules import may_ask_for_none
from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.serving import ServingMetrics
from specbench.analysis.stats.arrays import BoolArray, IntArray
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.log.header import RunHeader
from specbench.log.run import ONE_AT_A_TIME, loads_of

NO_DRAFTS = Missing("the server drafted nothing")
LEAST_EMITTED = 8
"""Drafts were off if an answer without a draft has at least this many tokens after the first. A
shorter answer may have no draft although drafts were on.
"""
_EVERY_STEP = (
    "draft",
    "dflash",
    "dspark",
    "eagle",
    "hydra",
    "medusa",
    "mtp",
    "nextn",
    "sps",
    "standalone",
)
"""Parts of the names of methods that draft in every step."""
_LOOK_UPS = ("gram", "lookup", "pld", "suffix")
"""Parts of the names of methods that draft only if they find a match."""
_NO_ROWS: IntArray = np.empty(0, dtype=np.intp)
"""The rows of a cell without records."""
_LEAST_STEPS = 0.95
"""A method with any other name drafts in every step if this share of its steps or more drafts."""
_LEAST_ANSWERS = 3
"""The rule of _LEAST_STEPS needs at least this many answers with counted drafts."""


def may_draft_nothing(header: RunHeader, method: str) -> bool:
    """Check if a method may answer without drafts: vanilla, look-ups, some server schedules."""
    name = method.partition(":")[0].lower()  # without options
    if name == BASELINE or any(part in name for part in _LOOK_UPS):
        return True
    return may_ask_for_none(header, method)


def drafts_in_every_step(header: RunHeader, method: str) -> bool:
    """Check if a method drafts in every step, judged by its name and its server's schedule."""
    is_named = any(part in method.partition(":")[0].lower() for part in _EVERY_STEP)
    return is_named and not may_draft_nothing(header, method)


@dataclass(frozen=True, slots=True, eq=False)
class Drafting:
    """The answers of servers with and without drafts.

    A cell is a method at a temperature and a load, on a task or on all tasks.
    """

    header: RunHeader
    table: RecordTable

    rows_by_cell: Mapping[CellKey, IntArray]
    """The rows of each cell on which methods are compared, and its failed rows (without tokens)."""

    is_on: BoolArray
    """True if drafts were made for the answer [records]."""

    is_off: BoolArray
    """True if no draft was made in LEAST_EMITTED or more tokens after the first [records]."""

    baseline_drafts: int | None
    """The drafts of vanilla's server, which should make none; None if it reports no counts."""

    def without_part(self, cell: CellMetrics, key: CellKey) -> CellMetrics:
        """Remove the MAT of a cell if the steps of some answers are unknown.

        The reason for the missing MAT names the smallest value that the MAT over all answers may
        have.
        """
        names = ("num_tokens", "mat_emitted", "mat_steps")
        # For each answer of the cell: its tokens, the tokens that its steps emitted, and the steps.
        # The last two are 0 if unknown.
        num_tokens, num_emitted, num_steps = self.table.values(self._rows(key), *names)
        is_uncounted = (num_tokens > 1) & (num_steps == 0)  # the prefill emits the first token
        if not isinstance(cell.mat, Estimate) or not is_uncounted.any():
            return cell
        # At worst, the uncounted answers accepted no draft token, so each of their tokens
        # after the first took a step.
        uncounted_steps = (num_tokens[is_uncounted] - 1).sum()
        least_mat = (num_emitted.sum() + uncounted_steps) / (num_steps.sum() + uncounted_steps)
        num_answers = int((num_tokens > 1).sum())  # answers with steps
        num_counted = num_answers - int(is_uncounted.sum())
        missing = Missing(
            f"only {num_counted} of {num_answers} answers have counts: at least {least_mat:.2f}"
        )
        return _without_mat(cell, missing)

    def checked_cell(self, cell: CellMetrics, key: CellKey) -> CellMetrics:
        """Remove the numbers of a cell that do not describe the method.

        If drafts were off in some answers (see `_reason`), MAT and the numbers of listed steps are
        removed. If only some answers list their steps, only the numbers of listed steps are
        removed. Speedups are missing for the reasons of `_no_speedup`.
        """
        if reason := self._reason(key):
            cell = _without_mat(cell, reason)
        elif self._part_listed(key):
            cell = _without_steps(cell)
        no_speedup = self._no_speedup(key)
        if not no_speedup:
            return cell
        return replace(
            cell,
            speedup=no_speedup,
            our_speedup=no_speedup,
            paper_speedup=no_speedup,
            decode_speedup=no_speedup,
        )

    def checked_serving(self, numbers: ServingMetrics, key: CellKey) -> ServingMetrics:
        """Remove the ratio to vanilla from the numbers over all tasks, if there is no speedup."""
        no_speedup = self._no_speedup(key)
        return replace(numbers, throughput_ratio=no_speedup) if no_speedup else numbers

    def checked_cost(self, cost: Cost, key: CellKey) -> Cost:
        """Remove the numbers of a cost that do not describe the method.

        If drafts were off in some of the method's answers (see `_reason`), or only some list their
        steps, MAT, the time of a step and what follows from them are missing. If vanilla drafted,
        the numbers relative to vanilla are missing.
        """
        if reason := self._reason(key) or self._part_listed(key):
            cost = replace(cost, mat=reason, step_s=reason)
        elif self.baseline_drafts and key.method != BASELINE:
            reason = BASELINE_DRAFTS
        else:
            return cost
        return replace(cost, relative=reason, decode_speedup=reason, bound=reason, reached=reason)

    def _rows(self, key: CellKey) -> IntArray:
        return self.rows_by_cell.get(key, _NO_ROWS)

    def _part_listed(self, key: CellKey) -> Missing | None:
        """Return a reason if only some of the cell's answers list their steps, else None.

        An answer of a single token has no steps, since the prefill emits the token.
        """
        num_tokens, num_steps = self.table.values(self._rows(key), "num_tokens", "num_steps")
        has_steps = num_steps > 0
        if not has_steps.any() or not (num_tokens[~has_steps] > 1).any():
            return None
        num_answers = int((num_tokens > 1).sum())
        return Missing(f"only {has_steps.sum()} of {num_answers} answers list their steps")

    def _no_speedup(self, key: CellKey) -> Missing | None:
        """Return the reason why a cell has no speedup; None if it may have one.

        If vanilla's server drafted, no method has a speedup. A method whose drafts were off in some
        answers (see `_reason`) has none either. But a cell without any draft may have a speedup if
        the run is at load and the server's command is unknown, for example because the run did not
        start the server: its schedule may have asked for no drafts.
        """
        if self.baseline_drafts and key.method != BASELINE:
            return BASELINE_DRAFTS
        server = self.header.servers.get(key.method)
        is_command_unknown = server is None or not server.command
        is_at_load = loads_of(self.header.spec.values) != (ONE_AT_A_TIME,)
        if is_at_load and is_command_unknown and not self.is_on[self._rows(key)].any():
            return None
        return self._reason(key)

    def _reason(self, key: CellKey) -> Missing | None:
        """Return the reason why a cell's numbers do not describe the method: some drafts were off.

        None if no answer of the cell had its drafts off, or if the method may answer without
        drafts. It may do so if `may_draft_nothing` says so, or if it drafted in some answers and
        neither its name nor its counts show that it drafts in every step. The reason describes all
        answers of the method at the temperature, on all tasks.
        """
        if not self.is_off[self._rows(key)].any():
            return None
        frame = self.table.frame
        has_method = frame["method"] == key.method
        # [records]: True for the answers that the reason describes
        is_of_method = (has_method & (frame["temperature"] == key.temperature)).to_numpy()
        # drafts were on or off [answers of the method], in the order in which they ran; both are
        # False if it is unknown
        is_on = self.is_on[is_of_method]
        is_off = self.is_off[is_of_method]
        if not is_on.any():
            return None if may_draft_nothing(self.header, key.method) else NO_DRAFTS
        is_named = drafts_in_every_step(self.header, key.method)  # judged by the method's name
        if not is_named and not self._drafted_in_every_step(key, is_of_method & self.is_on):
            return None
        first_off = int(is_off.argmax())  # index of the first answer without drafts
        if not is_on[first_off:].any():
            return Missing(f"no drafts after request {first_off}")
        return Missing(f"no drafts in {is_off.sum()} of {(is_on | is_off).sum()} answers")

    def _drafted_in_every_step(self, key: CellKey, is_on: BoolArray) -> bool:
        """Check by counts if a method drafted in nearly all steps of its answers with drafts.

        This is for methods whose names do not show it. `is_on` [records] is True for the method's
        answers with drafts. The result is False if fewer than _LEAST_ANSWERS of these answers have
        known steps and their own count of drafts (not only one for many answers together), or if
        the method may draft nothing.
        """
        if may_draft_nothing(self.header, key.method):
            return False
        num_steps = self.table.columns["mat_steps"][is_on]  # [answers with drafts]; 0: unknown
        servings = [self.table.records[row].serving for row in np.flatnonzero(is_on).tolist()]
        # [answers with drafts]; 0: the answer has no count of drafts
        num_drafts = np.array([serving.num_drafts or 0 if serving else 0 for serving in servings])
        is_counted = (num_steps > 0) & (num_drafts > 0)
        has_enough = is_counted.sum() >= _LEAST_ANSWERS
        counted_drafts, counted_steps = num_drafts[is_counted].sum(), num_steps[is_counted].sum()
        return bool(has_enough and counted_drafts >= _LEAST_STEPS * counted_steps)


def find_drafting(
    table: RecordTable, header: RunHeader, rows_by_cell: Mapping[CellKey, IntArray]
) -> Drafting:
    """Sort the answers of a run: drafts were made, drafts were off, or neither is known.

    `rows_by_cell` has the row numbers of each cell's records: those for requests that every
    method with enough answers finished, and failed ones.
    """
    has_drafts = table.served.has_drafts  # each is True, False, or None if unknown [records]
    is_on = np.array([state is True for state in has_drafts], dtype=bool)
    is_off = np.array([state is False for state in has_drafts], dtype=bool)
    silent_methods = [method for method in header.servers if _is_silent(header, method)]
    # The servers of these methods send counts only with answers that have drafts. If some answers
    # have counts, the answers without counts had no drafts.
    for method in silent_methods:
        is_of_method = (table.frame["method"] == method).to_numpy()
        if is_on[is_of_method].any():
            is_off |= is_of_method & ~is_on
    return Drafting(
        header,
        table,
        rows_by_cell,
        is_on=is_on,
        is_off=is_off & (table.columns["num_tokens"] > LEAST_EMITTED),
        baseline_drafts=count_baseline_drafts(header, table.records),
    )


def _is_silent(header: RunHeader, method: str) -> bool:
    """Check if the server of a method sends no counts with an answer that has no drafts."""
    return header.servers[method].software.startswith("TensorRT-LLM")


def _without_mat(cell: CellMetrics, missing: Missing) -> CellMetrics:
    """Remove a cell's MAT, for this reason, and the numbers of its listed steps."""
    return replace(_without_steps(cell), mat=missing, mat_macro=missing)


def _without_steps(cell: CellMetrics) -> CellMetrics:
    """Remove the numbers of a cell's listed steps."""
    return replace(cell, accept_histogram={}, acceptance_by_depth=())
