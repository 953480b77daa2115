"""The time of an answer: how often it pays each cost of a curve, times these costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.engine.tree import padded_size
from specbench.errors import UserError
from specbench.settings.cost_curve import MEASURE_HINT, Curve, MethodCost
from specbench.settings.walk import Walk

MOST_FALL = 0.5
"""Share of a step at the middle context that shorter contexts may save: the weights are read in
any case. It bounds slopes that noise made too steep.
"""
LEAST_STEP = 0.6
"""Least share of the step measured at the middle context that a fit over all contexts may give:
lengths that were disturbed do not take a step further down.
"""


class CostModel:
    """Costs of a curve with their resamples, and the weights of an answer for them.

    The columns of both are, in this order:
      - a step of the target by rows, at the middle context [rows]
      - what a step takes per token of context, and per row and token of context [2]
      - vanilla's prefill by length [lengths]
      - of a method also its draft by knot [knots], and what its prefill adds [lengths]
    """

    def __init__(self, curve: Curve, num_resamples: int = 0) -> None:
        self.curve = curve
        num_blocks = len(curve.steps)
        # Blocks are drawn with replacement, the same ones for all methods and threads. The first
        # row is the estimate from all blocks.
        size = (num_resamples + 1, num_blocks)
        self._blocks = np.random.default_rng(0).integers(num_blocks, size=size)
        self._blocks[0] = np.arange(num_blocks)

    def costs(self, label: str | None, thread_index: int) -> FloatArray:
        """The estimate of each cost, then its resamples [1 + num_resamples, columns].

        Args:
            label: the method as the curve spells it; None for vanilla.
            thread_index: of one of the curve's numbers of threads.
        """
        if label is None:
            return self._target_costs[thread_index]
        return self._method_costs[label][thread_index]

    @cached_property
    def _target_costs(self) -> list[FloatArray]:
        steps = np.array(self.curve.steps)  # [blocks, threads, lengths, rows]
        prefill = self._resampled(np.array(self.curve.prefill)).clip(0)
        return [
            np.hstack([fit_steps(self._resampled(steps[:, thread_index]), self.curve), prefill])
            for thread_index in range(len(self.curve.threads))
        ]

    @cached_property
    def _method_costs(self) -> dict[str, list[FloatArray]]:
        costs = {}
        for label, method in self.curve.methods.items():
            draft = np.array(method.draft)  # [blocks, threads, knots]
            start = self._resampled(np.array(method.start)).clip(0)
            costs[label] = [
                np.hstack([target, self._resampled(draft[:, thread_index]).clip(0), start])
                for thread_index, target in enumerate(self._target_costs)
            ]
        return costs

    def _resampled(self, times: FloatArray) -> FloatArray:
        """The median over blocks of times [blocks, ...], per resample [1 + resamples, ...]."""
        return np.median(times[self._blocks], 1)

    def step(self, costs: FloatArray, rows: Any, context: Any) -> Any:
        """The time of a step of the target, or of several [n], by the estimate of `costs`."""
        # t(rows, c) = t0(rows) + (c - middle) * (slope + slope_per_row * rows)
        rows, context = np.array(rows), np.array(context)
        num_rows = len(self.curve.rows)
        at_middle = interpolation(self.curve.rows, rows, "rows of a step") @ costs[0, :num_rows]
        slope, slope_per_row = costs[0, num_rows : num_rows + 2]
        return at_middle + (context - self.curve.middle_context) * (slope + slope_per_row * rows)

    def weights(self, label: str | None, options: Mapping[str, Any], walk: Walk) -> FloatArray:
        """Number of times that an answer pays each of the `costs` [columns].

        Args:
            label: the method as the curve spells it; None for vanilla.
            options: the setting.
            walk: the steps of the answer.

        Raises:
            UserError: rows, options or lengths that were not measured.
        """
        curve = self.curve
        method = curve.methods[label] if label is not None else None
        rows = np.array(walk.nodes, int)  # [steps]
        times = np.array(walk.chances, float)  # [steps]
        contexts = walk.prompt_tokens + np.array(walk.before, int)  # [steps]
        if len(contexts) and contexts.max() > curve.most_context:
            raise _outside("context", int(contexts.max()), curve.most_context)
        computed_rows = rows
        if method is not None and method.is_padded:
            computed_rows = np.array([padded_size(num_nodes) for num_nodes in rows], int)
        distances = (contexts - curve.middle_context) * times
        steps = times @ interpolation(curve.rows, computed_rows, "rows of a step")
        slopes = np.array([distances.sum(), distances @ computed_rows])
        prefill = interpolation(curve.lengths, walk.prompt_tokens, "length of a prompt")
        columns = [steps, slopes, prefill]
        if method is not None:
            is_drafted = rows > 1  # nothing is drafted at the end of a budget
            if "drafted" in method.knots[0]:  # a search without a match takes time too
                is_drafted = np.full(len(rows), fill_value=True)
            drafts = times[is_drafted] @ _knot_weights(method, options, rows[is_drafted])
            columns += [drafts, prefill]
        return np.concatenate(columns)


def fit_steps(steps: FloatArray, curve: Curve) -> FloatArray:
    """A step by rows at the middle context, and its slopes by context and rows times context.

    `steps` are [resamples, lengths, rows]; the result is [resamples, rows + 2]. Only the slopes
    are fitted.
    """
    # t(rows, c) = t0(rows) + (c - middle) * (slope + slope_per_row * rows)
    middle = len(curve.lengths) // 2
    distances = np.array(curve.lengths, float) - curve.middle_context  # c - middle [lengths]
    if not distances.any():
        no_slopes = np.zeros((len(steps), 2))
        return np.hstack([steps[:, middle], no_slopes])
    rows = np.array(curve.rows, float)
    at_middle = steps[:, middle]  # [resamples, rows]
    slopes = _fit_slopes(steps, at_middle, distances, rows)
    # All lengths estimate t0: each step is taken back to the middle by the fitted line.
    by_rows = _rise_per_token(slopes, rows)[:, None]  # [resamples, 1, rows]
    rise = distances[:, None] * by_rows  # [resamples, lengths, rows]
    measured = at_middle[:, None]
    base = (steps * measured / (measured + rise)).mean(1)  # t0 [resamples, rows]
    base = np.maximum(base, LEAST_STEP * at_middle)
    return np.hstack([base, slopes])


def _fit_slopes(
    steps: FloatArray, at_middle: FloatArray, distances: FloatArray, rows: FloatArray
) -> FloatArray:
    """The slopes by context, and by rows times context [resamples, 2].

    They are fitted by least squares of the differences from the middle, relative to its step.

    Args:
        steps: [resamples, lengths, rows].
        at_middle: those at the middle length [resamples, rows].
        distances: tokens from the middle length [lengths].
        rows: numbers of rows [rows].
    """
    num_resamples = len(steps)
    scale = 1 / np.median(at_middle[:, None], 0)  # [1, rows]
    per_token = distances[:, None] * scale  # [lengths, rows]
    of_slope = per_token.ravel()
    of_slope_per_row = (per_token * rows).ravel()
    design = np.stack([of_slope, of_slope_per_row], 1)  # [lengths * rows, 2]
    changes = (steps - at_middle[:, None]) * scale  # [resamples, lengths, rows]
    changes = changes.reshape(num_resamples, -1)  # [resamples, lengths * rows]
    slopes = changes @ np.linalg.pinv(design).T
    slopes = slopes.clip(0)  # a step does not become faster with more context
    # Both slopes shrink together, until no step falls by more than MOST_FALL to the shortest.
    fall = -distances[0] * _rise_per_token(slopes, rows)  # [resamples, rows]
    most_fall = MOST_FALL * at_middle
    shrink = most_fall / np.maximum(fall, 1e-9)  # 1e-9: without a slope there is no fall
    shrink = shrink.min(1, keepdims=True).clip(max=1)
    return slopes * shrink


def _rise_per_token(slopes: FloatArray, rows: FloatArray) -> FloatArray:
    """What a step of each number of rows takes more per token of context [resamples, rows]."""
    slope, slope_per_row = slopes[:, :1], slopes[:, 1:]
    return slope + slope_per_row * rows


def interpolation(knots: Sequence[int], values: Any, what: str) -> FloatArray:
    """Weights [..., knots] of ordered knots that interpolate linearly at values [...].

    Raises:
        UserError: a value is outside; `what` names it.
    """
    values = np.array(values)
    first, last = knots[0], knots[-1]
    outside = values[(values < first) | (values > last)]
    if outside.size:
        value = int(outside.min())
        raise _outside(what, value, first if value < first else last)
    unit_vectors = np.eye(len(knots))  # the weight of a knot is 1 there, and 0 at the others
    return np.stack([np.interp(values, knots, unit) for unit in unit_vectors], -1)


def _knot_weights(method: MethodCost, options: Mapping[str, Any], rows: IntArray) -> FloatArray:
    """Weights [steps, knots] of a method's knots in steps of a setting with these rows [steps]."""
    num_steps = len(rows)
    values = {**options, "rows": rows, "drafted": rows > 1}
    weights = np.ones((num_steps, 1))
    for name in method.knots[0]:  # weight of a knot: the product over its axes
        axis = sorted({knot[name] for knot in method.knots})
        of_axis = interpolation(axis, values[name], name)
        of_axis = np.broadcast_to(of_axis, (num_steps, len(axis)))
        products = weights[:, :, None] * of_axis[:, None, :]  # [steps, knots so far, axis]
        weights = products.reshape(num_steps, weights.shape[1] * len(axis))
    return weights


def _outside(what: str, value: int, end: int) -> UserError:
    side = "at most" if value > end else "at least"
    message = f"{what.capitalize()}: {value}, and {side} {end} in the cost curve."
    return UserError(message, MEASURE_HINT)
