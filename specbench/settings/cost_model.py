"""Compute the time of an answer: the sum of each cost times how often the answer pays it."""

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
"""Shorter contexts may save at most this share of a step at the middle context, since the weights
are always read. This bounds slopes that are too steep because of noise.
"""
LEAST_STEP = 0.6
"""The smallest allowed ratio of a fitted step to the measured step, both at the middle context.
Noise at other lengths cannot lower the fitted step further.
"""


class CostModel:
    """The costs of a curve with their resamples, and how often an answer pays each cost.

    The costs, and how often they are paid (weights), have the same columns, in this order:
      - a step of the target by rows, at the middle context [rows]
      - the extra time of a step per token of context, and per row and token of context [2]
      - vanilla's prefill by length [lengths]
      - for a method also its draft by knot [knots], and what its prefill adds [lengths]
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
        """Return the estimate of each cost, then its resamples [1 + num_resamples, columns].

        Args:
            label: the method as the curve spells it; None for vanilla.
            thread_index: index of one of the curve's numbers of threads.
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
        """Take medians over the drawn blocks, from [blocks, ...] to [1 + resamples, ...]."""
        return np.median(times[self._blocks], 1)

    def step(self, costs: FloatArray, rows: Any, context: Any) -> Any:
        """Compute the time of a step of the target, or of several steps [n].

        `costs` are as in `self.costs`; only the estimate in the first row is used.
        """
        # t(rows, c) = t0(rows) + (c - middle) * (slope + slope_per_row * rows)
        rows, context = np.array(rows), np.array(context)
        num_rows = len(self.curve.rows)
        at_middle = interpolation(self.curve.rows, rows, "rows of a step") @ costs[0, :num_rows]
        slope, slope_per_row = costs[0, num_rows : num_rows + 2]
        return at_middle + (context - self.curve.middle_context) * (slope + slope_per_row * rows)

    def weights(self, label: str | None, options: Mapping[str, Any], walk: Walk) -> FloatArray:
        """Count how often an answer pays each of the `costs` [columns].

        The columns are those of `costs`: steps by rows, the two slopes by context, prefill by
        length, then for a method its drafts by knot, and prefill by length again. A number between
        two measured rows, lengths or knots is divided between these two neighbours.

        Args:
            label: the method as the curve spells it; None for vanilla.
            options: options of the method's setting, by name.
            walk: the steps of the answer. For each step, it has the nodes of the tree, how often
                the step is expected, and the answer's tokens before it.

        Raises:
            UserError: rows, options or lengths that were not measured.
        """
        curve = self.curve  # the measured rows, prompt lengths and knots of methods
        method = curve.methods[label] if label is not None else None
        rows = np.array(walk.nodes, int)  # nodes of each step's tree [steps]
        num_times = np.array(walk.chances, float)  # how often each step is expected [steps]
        contexts = walk.prompt_tokens + np.array(walk.before, int)  # tokens before it [steps]
        if len(contexts) and contexts.max() > curve.most_context:
            raise _outside("context", int(contexts.max()), curve.most_context)
        padded_rows = rows  # rows that the target computes [steps]
        if method is not None and method.is_padded:
            padded_rows = np.array([padded_size(num_nodes) for num_nodes in rows], int)
        # (tokens of context - middle) * how often the step is expected [steps]
        distances = (contexts - curve.middle_context) * num_times
        step_weights = num_times @ interpolation(curve.rows, padded_rows, "rows of a step")
        slope_weights = np.array([distances.sum(), distances @ padded_rows])
        # one prefill, divided between the measured lengths below and above the prompt's
        prefill_weights = interpolation(curve.lengths, walk.prompt_tokens, "length of a prompt")
        columns = [step_weights, slope_weights, prefill_weights]  # [rows], [2], [lengths]
        if method is not None:
            # True for steps that take time to draft. At the end of a budget nothing is drafted.
            is_drafted = rows > 1
            # A knot has a value on each axis of a draft's size. Drafts from text have one axis.
            if "drafted" in method.knots[0]:  # text: a search without a match takes time too
                is_drafted = np.full(len(rows), fill_value=True)
            drafted_rows = rows[is_drafted]
            knot_weights = num_times[is_drafted] @ _knot_weights(method, options, drafted_rows)
            columns += [knot_weights, prefill_weights]  # [knots], [lengths]
        return np.concatenate(columns)


def fit_steps(steps: FloatArray, curve: Curve) -> FloatArray:
    """Fit the costs of a step of the target to measured times [resamples, rows + 2].

    The fit is linear in the context. The first columns are the time of a step by rows at the middle
    context. The last two are the extra time per token of context, and per row and token of context.

    Args:
        steps: measured times, in steps of vanilla [resamples, lengths, rows].
        curve: has the measured numbers of rows and prompt lengths, the smallest first. Its
            `middle_context` is the length at the middle index, in tokens.
    """
    # t(rows, c) = t0(rows) + (c - middle) * (slope + slope_per_row * rows)
    middle_index = len(curve.lengths) // 2
    distances = np.array(curve.lengths, float) - curve.middle_context  # c - middle [lengths]
    if not distances.any():  # only one length was measured
        no_slopes = np.zeros((len(steps), 2))
        return np.hstack([steps[:, middle_index], no_slopes])
    rows = np.array(curve.rows, float)
    at_middle = steps[:, middle_index]  # steps at the middle length [resamples, rows]
    slopes = _fit_slopes(steps, at_middle, distances, rows)  # [resamples, 2]
    # Each length gives an estimate of t0: the fitted line scales its step to the middle length.
    rise_per_token = _rise_per_token(slopes, rows)[:, None]  # [resamples, 1, rows]
    rise = distances[:, None] * rise_per_token  # fitted t - t0 [resamples, lengths, rows]
    middle_steps = at_middle[:, None]  # [resamples, 1, rows]
    t0 = (steps * middle_steps / (middle_steps + rise)).mean(1)  # [resamples, rows]
    t0 = np.maximum(t0, LEAST_STEP * at_middle)  # noise must not make it smaller
    return np.hstack([t0, slopes])


def _fit_slopes(
    steps: FloatArray, at_middle: FloatArray, distances: FloatArray, rows: FloatArray
) -> FloatArray:
    """Fit the slopes by context, and by rows times context [resamples, 2]. Neither is negative.

    The fit minimises the squared error of the change from the middle, relative to the step there:
    (t - t0) / t0 = (c - middle) * (slope + slope_per_row * rows) / t0.

    Args:
        steps: times t of a step, in steps of vanilla [resamples, lengths, rows].
        at_middle: times at the middle length, t0 [resamples, rows].
        distances: tokens from the middle length, c - middle [lengths].
        rows: the measured numbers of rows of the target's forward pass [rows]. A row is a token
            that the pass computes: one for vanilla, one for each node of a draft tree.
    """
    num_resamples = len(steps)
    scale = 1 / np.median(at_middle[:, None], 0)  # 1 / median t0 [1, rows]
    scaled_distances = distances[:, None] * scale  # [lengths, rows]
    slope_column = scaled_distances.ravel()
    slope_per_row_column = (scaled_distances * rows).ravel()
    design = np.stack([slope_column, slope_per_row_column], 1)  # [lengths * rows, 2]
    changes = (steps - at_middle[:, None]) * scale  # [resamples, lengths, rows]
    changes = changes.reshape(num_resamples, -1)  # [resamples, lengths * rows]
    slopes = changes @ np.linalg.pinv(design).T  # [resamples, 2]
    slopes = slopes.clip(0)  # a step does not become faster with more context
    # From the middle to the shortest length, a step must not fall by more than the share MOST_FALL.
    # If it does, both slopes shrink by one factor. distances[0] belongs to the shortest length.
    fall = -distances[0] * _rise_per_token(slopes, rows)  # [resamples, rows]
    most_fall = MOST_FALL * at_middle  # [resamples, rows]
    factors = most_fall / np.maximum(fall, 1e-9)  # 1e-9: the fall is 0 if there is no slope
    least_factor = factors.min(1, keepdims=True).clip(max=1)  # [resamples, 1]
    return slopes * least_factor


def _rise_per_token(slopes: FloatArray, rows: FloatArray) -> FloatArray:
    """Compute the time that each token of context adds to a step, by rows [resamples, rows]."""
    slope, slope_per_row = slopes[:, :1], slopes[:, 1:]
    return slope + slope_per_row * rows


def interpolation(knots: Sequence[int], points: Any, what: str) -> FloatArray:
    """Compute weights of knots [..., knots] that interpolate linearly at points [...].

    A point between two knots has weights only for these two, and the two weights add up to 1.

    Args:
        knots: measured numbers, the smallest first.
        points: a number or an array of them.
        what: names the points in the error, such as "rows of a step".

    Raises:
        UserError: a point is outside of the knots.
    """
    points = np.array(points)
    first, last = knots[0], knots[-1]
    outside = points[(points < first) | (points > last)]
    if outside.size:
        least_outside = int(outside.min())
        raise _outside(what, least_outside, first if least_outside < first else last)
    unit_vectors = np.eye(len(knots))  # the weight of a knot is 1 there, and 0 at the others
    return np.stack([np.interp(points, knots, unit) for unit in unit_vectors], -1)


def _knot_weights(method: MethodCost, options: Mapping[str, Any], rows: IntArray) -> FloatArray:
    """Compute weights of knots [steps, knots] that interpolate the time of each step's draft.

    A knot is a size of drafts that was measured. A search that finds no draft takes time too.

    Args:
        method: its knots are all combinations of sizes on some axes, the last axis fastest, such
            as {depth: 0, top_k: 1}, {depth: 0, top_k: 2}. An axis is an option, "rows", or
            "drafted", which is 1 for a step with a draft and 0 for one without.
        options: options of the setting, by name.
        rows: rows that the target computes in each step [steps]: the draft tokens and one more; 1
            without a draft.
    """
    num_steps = len(rows)
    # the position of the steps on each axis: one number for all steps, or one per step [steps]
    points = {**options, "rows": rows, "drafted": rows > 1}
    weights = np.ones((num_steps, 1))  # [steps, knots so far]
    for name in method.knots[0]:  # The weight of a knot is the product of its weights on each axis.
        axis = sorted({knot[name] for knot in method.knots})  # measured sizes along this axis
        axis_weights = interpolation(axis, points[name], name)  # [axis] or [steps, axis]
        axis_weights = np.broadcast_to(axis_weights, (num_steps, len(axis)))
        products = weights[:, :, None] * axis_weights[:, None, :]  # [steps, knots so far, axis]
        weights = products.reshape(num_steps, weights.shape[1] * len(axis))
    return weights


def _outside(what: str, value: int, end: int) -> UserError:
    side = "at most" if value > end else "at least"
    message = f"{what.capitalize()}: {value}, but the cost curve has {side} {end}."
    return UserError(message, MEASURE_HINT)
