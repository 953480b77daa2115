"""Compute the acceptance of drafts by a step's position in the answer, context length and turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from specbench.analysis.acceptance import share_estimate
from specbench.analysis.ratios import cluster_sums
from specbench.analysis.records import RecordTable
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Draws, Ratio, effective_number
from specbench.analysis.stats.estimates import Missing, Value
from specbench.analysis.stats.variance import EXACT

Axis = Literal["position", "context", "turn"]
"""The number by which steps are binned. The position is the number of tokens of the answer before
the step. The context is the position + prompt tokens. The turn is the number of the turn, from 1.
"""
LEAST_PROMPTS = 5
"""The fewest prompts in a bin for which its numbers are given."""
_FIRST_EDGE: dict[Axis, int] = {"position": 32, "context": 128}
"""The end of the first bin of tokens. Each further bin ends at twice the end of the one before."""


@dataclass(frozen=True, slots=True)
class Bin:
    """A range of an axis."""

    axis: Axis
    """The number by which steps are binned."""
    low: int
    """The first position, length or turn of the bin."""
    high: int
    """The first position, length or turn after the bin."""

    @property
    def range_text(self) -> str:
        """The range as a text, such as "32-63"; for a turn, its number."""
        return str(self.low) if self.axis == "turn" else f"{self.low}-{self.high - 1}"


@dataclass(frozen=True, slots=True)
class StepBin(Bin):
    """The steps of a method in a range of an axis."""

    num_prompts: int
    """The number of prompts with steps in the bin."""
    num_steps: int
    """The number of steps in the bin, over all answers to these prompts."""
    mat: Value
    """The mean accepted tokens: tokens that these steps emitted / steps."""
    acceptance: Value
    """The share of these steps that accepted a draft token."""


class Steps(NamedTuple):
    """The steps of answers, one after the other."""

    row_of_step: IntArray
    """The index of the row (answer) of each step, from 0 [steps]."""
    emitted: IntArray
    """The tokens that each step emitted [steps]."""
    places: dict[Axis, IntArray]
    """The position, context length and turn of each step [steps]."""


def bin_steps(table: RecordTable, rows: IntArray, draws: Draws) -> tuple[StepBin, ...]:
    """Bin the steps of these rows on each axis, in order. Empty bins are left out.

    `draws` resamples prompts for intervals: the steps of all answers to a prompt stay together.
    """
    (samples,) = table.values(rows, "cluster")
    _, prompts = np.unique(samples, return_inverse=True)  # number of the prompt, from 0 [rows]
    steps = locate_steps(table, rows)
    return tuple(
        step_bin
        for axis, places in steps.places.items()
        for step_bin in _bins(axis, places, prompts[steps.row_of_step], steps.emitted, draws)
    )


def locate_steps(table: RecordTable, rows: IntArray) -> Steps:
    """List the steps of the answers in these rows of the table, one answer after the other.

    There are no context lengths if the number of prompt tokens of any row with steps is unknown
    (0), as in some imported files. An answer that failed has no steps.
    """
    # for each row; `turns` are numbers of turns, from 0
    num_steps, prompt_tokens, turns = table.values(rows, "num_steps", "prompt_tokens", "turn")
    emitted = table.lengths(rows)  # tokens of each step [steps]
    emitted_before = emitted.cumsum() - emitted  # tokens of all earlier steps of all rows [steps]
    first_steps = num_steps.cumsum() - num_steps  # index of the first step of each row [rows]
    row_of_step = np.repeat(np.arange(len(rows)), num_steps)  # [steps]
    # Tokens of the steps of all earlier rows [rows]. The 0 is for rows without steps at the end.
    emitted_before_row = np.append(emitted_before, 0)[first_steps]
    # Tokens of the answer before the step: one from the prefill, and those of earlier steps.
    positions = 1 + emitted_before - emitted_before_row[row_of_step]  # [steps]
    places: dict[Axis, IntArray] = {  # each step's number on each axis [steps]
        "position": positions,
        "context": prompt_tokens[row_of_step] + positions,
        "turn": 1 + turns[row_of_step],
    }
    if not prompt_tokens[row_of_step].all():  # 0: unknown
        del places["context"]
    return Steps(row_of_step, emitted, places)


def _bins(
    axis: Axis, numbers: IntArray, prompts: IntArray, emitted: IntArray, draws: Draws
) -> Iterator[StepBin]:
    """Yield the bins of an axis that have steps, in ascending order. All arrays are [steps].

    `numbers` has the position, context length or turn of each step, `prompts` the number of its
    prompt, and `emitted` the tokens that it emitted. `draws` resamples prompts, for intervals.
    """
    edges = bin_edges(axis, int(numbers.max(initial=0)))
    # the index of each step's bin, with edges[index] <= number < edges[index + 1] [steps]
    bin_of_step = np.searchsorted(edges, numbers, side="right") - 1
    for index, (low, high) in enumerate(pairwise(edges)):
        is_inside = bin_of_step == index
        if not is_inside.any():
            continue
        emitted_inside = emitted[is_inside]
        # For each step: a 1 that counts it, its tokens, and True if it accepted a draft token.
        columns = (np.ones_like(emitted_inside), emitted_inside, emitted_inside > 1)
        sums = cluster_sums(prompts[is_inside], columns)  # [prompts with steps, 3]
        yield StepBin(
            axis=axis,
            low=low,
            high=high,
            num_prompts=len(sums),
            num_steps=int(sums[:, 0].sum()),
            **_numbers(sums, draws),  # `mat` and `acceptance`
        )


def bin_edges(axis: Axis, largest: int) -> list[int]:
    """List the first number of each bin of an axis, and the end of the last bin.

    `largest` is the largest position, context length or turn that the bins have to cover. A turn is
    a bin of its own; other bins begin at 0, and each ends at twice the end of the bin before.
    """
    if axis == "turn":
        return list(range(1, largest + 2))
    edges = [0, _FIRST_EDGE[axis]]
    while edges[-1] <= largest:
        edges.append(2 * edges[-1])
    return edges


def too_few(num_prompts: int) -> Missing | None:
    """Return the reason why a bin with this number of prompts has no numbers; None if it has."""
    if num_prompts < LEAST_PROMPTS:
        return Missing(f"{num_prompts} of {LEAST_PROMPTS} prompts")
    return None


def _numbers(sums: FloatArray, draws: Draws) -> dict[str, Value]:
    """Compute `mat` and `acceptance` of a bin: mean tokens per step, and share of accepting steps.

    `sums` has a row per prompt [prompts, 3]: the numbers of its steps, of the tokens that they
    emitted, and of the steps that accepted a draft token. Both are missing with too few prompts.
    """
    if missing := too_few(len(sums)):
        return {"mat": missing, "acceptance": missing}
    steps, emitted, accepting = np.hsplit(sums, 3)  # [prompts, 1] each
    # numbers of accepting steps, and of all steps, in each resample [num_resamples]
    drawn_accepting, drawn_steps = draws.sums(np.hstack([accepting, steps])).T
    return {
        "mat": draws.estimate(Ratio(emitted, steps, machine=EXACT)),
        "acceptance": share_estimate(
            float(accepting.sum() / steps.sum()),
            drawn_accepting / drawn_steps,
            effective_number(steps),
        ),
    }
