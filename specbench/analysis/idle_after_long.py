"""Warn about methods whose drafts are never accepted after long prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from specbench.analysis.drafting import drafts_in_every_step
from specbench.analysis.idle_drafts import LEAST_DRAFTS, emitted_after_drafts
from specbench.analysis.records import CELL_KEY, RecordTable
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader
from specbench.types import Record

_LEAST_LONG = 32
"""A warning about a method that drafts in every step needs this many drafts after long prompts."""
_LEAST_SURPRISE = 7.0
"""The smallest -log(probability that chance accepts no draft after a long prompt)."""
_ALMOST_ALL = 1 - 1e-9
"""A share that replaces 1, so that log(1 - share) is finite."""


class _DraftCounts(NamedTuple):
    """The drafts of an answer."""

    num_accepting: float = 0.0
    """The number of drafts with at least one accepted token."""
    num_drafts: float = 0.0


def find_idle_after_long(table: RecordTable, header: RunHeader) -> Iterable[RunWarning]:
    """Yield warnings about methods whose drafts have no accepted token at all after long prompts.

    A prompt is long if it has more tokens than every prompt after which the method accepted a draft
    token. The usual cause is that the draft weights were made for fewer positions than the target.
    A warning needs enough drafts after long prompts, which come from at least two samples, and a
    surprise above _LEAST_SURPRISE:

        share = share of drafts with an accepted token after the other prompts
        surprise = -log(probability that no draft after a long prompt has an accepted token)
                 = -(number of drafts after long prompts) * log(1 - share)
    """
    # (method, temperature) -> numbers of records
    rows_by_subject = table.frame.groupby(CELL_KEY[:2], observed=True, sort=False).indices
    for (method, temperature), rows in rows_by_subject.items():
        counts_of_rows = [_drafts_of(table.records[row]) for row in rows]
        num_drafts = np.array([counts.num_drafts for counts in counts_of_rows])  # [rows]
        num_accepting = np.array([counts.num_accepting for counts in counts_of_rows])  # [rows]
        prompt_tokens, samples = table.values(rows, "prompt_tokens", "cluster")  # [rows]
        # the most prompt tokens of an answer with accepted draft tokens; 0 without such an answer
        longest = prompt_tokens[num_accepting > 0].max(initial=0)
        is_long = (prompt_tokens > longest) & (num_drafts > 0)
        if not longest or len(np.unique(samples[is_long])) < 2:
            continue
        share = num_accepting.sum() / num_drafts[~is_long].sum()  # after the other prompts
        num_after_long = num_drafts[is_long].sum()
        surprise = -num_after_long * math.log1p(-min(share, _ALMOST_ALL))
        # Methods that do not draft in every step, such as look-ups, need more drafts.
        least_drafts = _LEAST_LONG if drafts_in_every_step(header, method) else LEAST_DRAFTS
        if num_after_long >= least_drafts and surprise > _LEAST_SURPRISE:
            num_emitted, num_steps = table.values(rows[~is_long], "mat_emitted", "mat_steps")
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "longest": int(longest),
                "answers": int(is_long.sum()),
                "drafts": int(num_after_long),
                # after the other prompts; None if the server's counts contradict each other
                "mat": float(num_emitted.sum() / num_steps.sum()) if num_steps.sum() else None,
            }
            yield RunWarning("idle_after_long", warning_numbers)


def _drafts_of(record: Record) -> _DraftCounts:
    """Count the drafts of an answer from its steps, or from its server's counts; 0 without counts.

    A server counts accepted tokens, not drafts with an accepted token. The number of such drafts is
    then taken to be the number of accepted tokens, but at most the number of all drafts.
    """
    if record.num_nodes:
        emitted = emitted_after_drafts(record)  # tokens of each step with a draft
        return _DraftCounts(sum(num_emitted > 1 for num_emitted in emitted), len(emitted))
    if record.serving is None or record.serving.num_drafts is None:
        return _DraftCounts()
    num_drafts = record.serving.num_drafts
    return _DraftCounts(min(record.serving.num_accepted or 0, num_drafts), num_drafts)
