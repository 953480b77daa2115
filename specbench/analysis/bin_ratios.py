"""Compare the MAT of two sides by position in the answer, context length and turn of the step.

A side is a method's answers in a run. MAT (mean accepted tokens) is emitted tokens / steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from specbench.analysis.ranking import is_claimed
from specbench.analysis.records import RecordTable
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Draws, Ratio
from specbench.analysis.stats.estimates import Value
from specbench.analysis.stats.variance import EXACT
from specbench.analysis.step_bins import Axis, Bin, bin_edges, locate_steps, too_few


@dataclass(frozen=True, slots=True)
class BinRatio(Bin):
    """The MAT of two sides in a bin. Only prompts with steps of both sides in the bin count."""

    num_prompts: int
    """The number of these prompts."""
    subject: Value
    """The MAT of the first side, the subject."""
    reference: Value
    """The MAT of the second side, the reference."""
    ratio: Value
    """The subject's MAT / the reference's."""
    p_value: float | None = None
    """The p-value of "the ratio is 1", corrected for the number of bins; None without a test."""

    @property
    def is_claimed(self) -> bool:
        """True if the ratio differs significantly from 1."""
        return is_claimed(self.p_value)


class PlacedSteps(NamedTuple):
    """The steps of the answers of one side."""

    prompts: IntArray
    """The number of each step's prompt, the same on both sides [steps]."""
    emitted: IntArray
    """The tokens that each step emitted [steps]."""
    numbers: dict[Axis, IntArray]
    """The position, context length and turn of each step [steps]."""

    @classmethod
    def of(cls, table: RecordTable, rows: IntArray, prompts: IntArray) -> PlacedSteps:
        """List the steps of these rows. `prompts` has the number of each row's prompt [rows]."""
        steps = locate_steps(table, rows)
        return cls(prompts[steps.row_of_step], steps.emitted, steps.places)

    def sums(self, step_bin: Bin, num_prompts: int) -> FloatArray:
        """Count the steps in a bin, and the tokens that they emitted, for each prompt [prompts, 2].

        Row p belongs to prompt number p; it has zeros if the prompt has no step in the bin.
        """
        numbers = self.numbers[step_bin.axis]  # positions, context lengths or turns [steps]
        is_inside = (step_bin.low <= numbers) & (numbers < step_bin.high)
        prompts = self.prompts[is_inside]  # numbers of prompts [steps in the bin]
        columns = (np.ones(len(prompts)), self.emitted[is_inside])  # [steps in the bin] each
        sums = [np.bincount(prompts, column, num_prompts) for column in columns]
        return np.stack(sums, axis=1).astype(np.float64)


def compare_steps(
    subject: PlacedSteps, reference: PlacedSteps, draws: Draws
) -> tuple[BinRatio, ...]:
    """Divide the subject's MAT by the reference's in each bin of each axis, in order.

    A side is a method's answers in a run. A bin counts only prompts with steps of both sides in
    it. Bins without such a prompt are left out, and with few prompts the numbers are missing.
    Only axes that both sides have are compared. `draws` resamples the prompts for intervals, each
    prompt for both sides at once.
    """
    sides = (subject, reference)
    num_prompts = 1 + max(int(side.prompts.max(initial=0)) for side in sides)
    ratios = []
    for axis in (axis for axis in subject.numbers if axis in reference.numbers):
        # The largest position, context length or turn that both sides reach; -1 without steps.
        largest = min(int(side.numbers[axis].max(initial=-1)) for side in sides)
        for low, high in pairwise(bin_edges(axis, largest)):
            step_bin = Bin(axis, low, high)
            # For each prompt: its steps in the bin, and the tokens that they emitted [prompts, 2].
            subject_sums, reference_sums = (side.sums(step_bin, num_prompts) for side in sides)
            # True for prompts with steps of both sides [prompts].
            is_on_both = (subject_sums[:, 0] > 0) & (reference_sums[:, 0] > 0)
            if is_on_both.any():
                ratios.append(
                    _bin_ratio(
                        step_bin, subject_sums[is_on_both], reference_sums[is_on_both], draws
                    )
                )
    return tuple(ratios)


def _bin_ratio(step_bin: Bin, subject: FloatArray, reference: FloatArray, draws: Draws) -> BinRatio:
    """Compute both sides' MAT in a bin, and their ratio; missing with few prompts.

    `subject` and `reference` have a row per prompt [prompts, 2]: the number of its steps in the
    bin, and the number of tokens that these steps emitted. Both have the same prompts.
    """
    steps, emitted = np.hsplit(subject, 2)  # [prompts, 1] each
    base_steps, base_emitted = np.hsplit(reference, 2)
    missing = too_few(len(subject))  # the reason, or None if there are enough prompts

    def ratio_of_sums(top: FloatArray, bottom: FloatArray) -> Value:
        """Divide the product of `top`'s column sums by that of `bottom`'s, with an interval.

        Both have a row per prompt [prompts, columns].
        """
        return missing or draws.estimate(Ratio(top, bottom, machine=EXACT))

    return BinRatio(
        step_bin.axis,
        step_bin.low,
        step_bin.high,
        num_prompts=len(subject),
        subject=ratio_of_sums(emitted, steps),
        reference=ratio_of_sums(base_emitted, base_steps),
        ratio=ratio_of_sums(np.hstack([emitted, base_steps]), np.hstack([steps, base_emitted])),
    )
