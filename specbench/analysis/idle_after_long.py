"""The warning about methods whose drafts accept nothing after long prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from specbench.analysis.drafting import drafts_in_every_step
from specbench.analysis.idle_drafts import LEAST_DRAFTS
from specbench.analysis.records import CELL_KEY, RecordTable
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader
from specbench.types import Record

_LEAST_LONG = 32
"""Fewest drafts after long prompts that may be called idle, of methods that draft in every step."""
_LEAST_SURPRISE = 7.0
"""Smallest -log(probability that drafts after long prompts accept nothing by chance)."""


class _DraftCounts(NamedTuple):
    """The drafts of an answer."""

    num_accepting: float = 0.0
    """Drafts with at least one accepted token."""
    num_drafts: float = 0.0


def find_idle_after_long(table: RecordTable, header: RunHeader) -> Iterable[RunWarning]:
    """Methods whose drafts accept nothing after prompts that are longer than all others.

    Draft weights that were made for fewer positions than the target cause this. With the share of
    drafts that accept anything after shorter prompts,

        surprise = -log(probability that no draft after a long prompt accepts anything by chance)
                 = -(drafts after long prompts) * log(1 - share)
    """
    rows_by_subject = table.frame.groupby(CELL_KEY[:2], observed=True, sort=False).indices
    for (method, temperature), rows in rows_by_subject.items():
        # [rows]: drafts of each answer, and those with an accepted token
        drafts = [_drafts_of(table.records[row]) for row in rows]
        num_drafts = np.array([counts.num_drafts for counts in drafts])
        num_accepting = np.array([counts.num_accepting for counts in drafts])
        prompt_tokens, samples = table.values(rows, "prompt_tokens", "cluster")
        longest = prompt_tokens[num_accepting > 0].max(initial=0)  # with accepted tokens
        is_long = (prompt_tokens > longest) & (num_drafts > 0)
        if not longest or len(np.unique(samples[is_long])) < 2:
            continue
        share = num_accepting.sum() / num_drafts[~is_long].sum()
        num_long = num_drafts[is_long].sum()
        surprise = -num_long * math.log1p(-min(share, 1 - 1e-9))
        # Look-ups draft when they find something: for them, it takes more drafts.
        least_long = _LEAST_LONG if drafts_in_every_step(header, method) else LEAST_DRAFTS
        if num_long >= least_long and surprise > _LEAST_SURPRISE:
            emitted, steps = table.values(rows[~is_long], "mat_emitted", "mat_steps")
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "longest": int(longest),
                "answers": int(is_long.sum()),
                "drafts": int(num_long),
                "mat": float(emitted.sum() / steps.sum()),
            }
            yield RunWarning("idle_after_long", warning_numbers)


def _drafts_of(record: Record) -> _DraftCounts:
    """The drafts of an answer, as far as its record counts them."""
    if record.num_nodes:
        # Records may have accept lengths without sizes of trees: those steps are left out.
        pairs = zip(record.accept_lengths, record.num_nodes, strict=False)
        lengths = [length for length, num_nodes in pairs if num_nodes > 1]  # not only the root
        return _DraftCounts(sum(length > 1 for length in lengths), len(lengths))
    if record.serving is None or record.serving.num_drafts is None:
        return _DraftCounts()
    num_drafts = record.serving.num_drafts
    return _DraftCounts(min(record.serving.num_accepted or 0, num_drafts), num_drafts)
