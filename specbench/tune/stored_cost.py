"""The file of a cost curve: times of whole steps, in steps of vanilla, and between them.

A curve belongs to a machine, a model's shape, number formats and versions, but not to prompts.
Its times are kept block by block, so that intervals can resample blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.engine.tree import padded_size
from specbench.errors import UserError
from specbench.log.files import write_whole
from specbench.tune.profile import SCHEMA, check_same, read_json
from specbench.tune.replay import Walk
from specbench.types import ProfileKind

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "cost.json"
AGAIN = "Measure it here: specbench tune cost --model M --method A,B --out DIR"


class MethodCost(Struct, frozen=True):
    """Times of a method beside the target's: of its drafts, and of its prefill."""

    kind: ProfileKind
    is_padded: bool
    """The target computes its trees padded to a few sizes."""
    knots: tuple[dict[str, int], ...]
    """Values of the kind's axes, which decide the time of a draft: all combinations, the last
    axis fastest. They are depth and top_k, rows, or, for drafts from text, 1 for a match and 0
    for none.
    """
    draft: tuple[tuple[tuple[float, ...], ...], ...]
    """Steps of vanilla that a step takes beyond the target's part [blocks, threads, knots]."""
    start: tuple[tuple[float, ...], ...]
    """Steps of vanilla that a prefill takes beyond vanilla's [blocks, lengths]."""


class Curve(Struct, frozen=True, kw_only=True, dict=True):
    """A cost curve, as in `cost.json`.

    `weights` and `costs` multiply to the time of an answer. The unit is vanilla's step at the
    middle length, close in time.
    """

    schema: int = SCHEMA
    about: dict[str, str]
    """The machine, the sizes of the model, number formats and versions of this curve."""
    vanilla_s: float
    """Seconds of a step of vanilla."""
    threads: tuple[int, ...]
    """Numbers of threads that were measured, vanilla's first."""
    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens of the prompts that prefills and steps were measured with."""
    most_context: int
    """Most tokens before a step that was measured."""
    steps: tuple[tuple[tuple[tuple[float, ...], ...], ...], ...]
    """Time of a step of the target [blocks, threads, lengths, rows]."""
    prefill: tuple[tuple[float, ...], ...]
    """Time of vanilla's prefill [blocks, lengths]."""
    methods: dict[str, MethodCost] = {}
    """By the spelling that was asked for."""
    process: float = 0.0
    """Variance of the logarithm of a step's time that one setting, entered twice, has."""
    num_pairs: int = 0
    """Settings that were entered twice."""

    def check(self, about: Mapping[str, str]) -> None:
        """Refuse another machine, model, number format, temperature or version.

        Raises:
            UserError: with both values.
        """
        pairs = ((name, one, about[name]) for name, one in self.about.items())
        where = "in the curve", "here"
        check_same("The cost curve is not one of this run:", where, pairs, AGAIN)

    def write(self, folder: Path) -> None:
        """Write `cost.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(self), indent=0)
        write_whole(folder / FILE, content)

    @property
    def middle(self) -> int:
        """Context of the step that all times are in."""
        return self.lengths[len(self.lengths) // 2]

    def costs(self, label: str | None, threads: int, num_resamples: int) -> FloatArray:
        """The numbers of a method, or vanilla's, with the number of threads at this place: the
        estimate, then resamples [1 + num_resamples, k].

        In this order: a step by rows, context, rows times context, prefill by length, a
        method's draft by knot, and what its prefill adds by length. Blocks are drawn with
        replacement, the same ones for all methods and threads.
        """
        known: dict[Any, FloatArray] = self.__dict__.setdefault("known", {})
        key = label, threads, num_resamples
        if key not in known:
            size = num_resamples + 1, len(self.steps)
            blocks = np.random.default_rng(0).integers(len(self.steps), size=size)
            blocks[0] = np.arange(len(self.steps))
            tables = [np.array(self.steps)[:, threads], np.array(self.prefill)]
            if label is not None:
                one = self.methods[label]
                tables += [np.array(one.draft)[:, threads], np.array(one.start)]
            steps, *others = (np.median(table[blocks], 1) for table in tables)
            known[key] = np.hstack([_fit(steps, self), *(one.clip(0) for one in others)])
        return known[key]

    def step(self, costs: FloatArray, rows: Any, context: Any) -> Any:
        """The time of a step of the target, or of several [n], by the estimate of `costs`."""
        at, rows, context = self.rows, np.array(rows), np.array(context)
        here = _between(at, rows, "rows of a step") @ costs[0, : len(at)]
        slope, slope_of_rows = costs[0, len(at) : len(at) + 2]
        return here + (context - self.middle) * (slope + slope_of_rows * rows)

    def weights(self, label: str | None, options: Mapping[str, Any], walk: Walk) -> FloatArray:
        """Number of times that an answer pays each of the `costs` [k].

        Args:
            label: the method as the curve spells it; None for vanilla.
            options: the setting.
            walk: the steps of the answer.

        Raises:
            UserError: rows, options or lengths that were not measured.
        """
        one = self.methods[label] if label is not None else None
        rows, times = np.array(walk.nodes, int), np.array(walk.chances, float)
        before = walk.prompt_tokens + np.array(walk.before, int)
        if len(before) and before.max() > self.most_context:
            raise _outside("context", int(before.max()), self.most_context)
        is_padded = one is not None and one.is_padded
        sizes = np.array([padded_size(n) for n in rows], int) if is_padded else rows
        away = (before - self.middle) * times
        prefill = _between(self.lengths, walk.prompt_tokens, "length of a prompt")
        steps = times @ _between(self.rows, sizes, "rows of a step")
        found = [steps, np.array([away.sum(), away @ sizes]), prefill]
        if one is not None:  # nothing is drafted at the end of a budget
            is_drafted = (rows > 1) | (one.kind == "text")
            drafts = times[is_drafted] @ _knots(one, options, rows[is_drafted])
            found += [drafts, prefill]
        return np.concatenate(found)


def _fit(steps: FloatArray, curve: Curve) -> FloatArray:
    """A step by rows at the middle context, and its slopes by context and rows times context.

    `steps` are [resamples, lengths, rows]. Only the slopes are fitted, by least squares of the
    relative differences from the middle; the result is [resamples, rows + 2]. Steps never
    become faster with more context, and the shortest one takes at least half of the middle
    one.
    """
    middle, rows = len(curve.lengths) // 2, np.array(curve.rows, float)
    away = np.array(curve.lengths, float) - curve.middle
    if not away.any():
        return np.hstack([steps[:, middle], np.zeros((len(steps), 2))])
    base = steps[:, middle : middle + 1]
    scale = 1 / np.median(base, 0)
    design = np.stack([(away[:, None] * scale * n).ravel() for n in (1, rows)], 1)
    change = ((steps - base) * scale).reshape(len(steps), -1)
    slopes = (change @ np.linalg.pinv(design).T).clip(0)
    fall = -away[0] * (slopes[:, :1] + slopes[:, 1:] * rows)
    slopes *= (0.5 * base[:, 0] / np.maximum(fall, 1e-9)).min(1, keepdims=True).clip(max=1)
    risen = away[:, None] * (slopes[:, :1, None] + slopes[:, 1:, None] * rows)
    found = (steps * base / (base + risen)).mean(1)
    return np.hstack([np.maximum(found, 0.6 * base[:, 0]), slopes])


def _between(knots: Sequence[int], values: Any, what: str) -> FloatArray:
    """The weights [..., k] of the knots, in order, that interpolate linearly at values [...].

    Raises:
        UserError: a value is outside.
    """
    values = np.array(values)
    outside = values[(values < knots[0]) | (values > knots[-1])]
    if outside.size:
        value = int(outside.min())
        raise _outside(what, value, knots[0] if value < knots[0] else knots[-1])
    return np.stack([np.interp(values, knots, one) for one in np.eye(len(knots))], -1)


def _knots(one: MethodCost, options: Mapping[str, Any], rows: IntArray) -> FloatArray:
    """The weights [n, knots] of a method's knots in steps of a setting with these rows [n]."""
    values, found = {**options, "rows": rows, "drafted": rows > 1}, np.ones((len(rows), 1))
    for name in one.knots[0]:
        axis = sorted({knot[name] for knot in one.knots})
        weights = np.broadcast_to(_between(axis, values[name], name), (len(rows), len(axis)))
        pairs = found[:, :, None] * weights[:, None, :]
        found = pairs.reshape(len(rows), found.shape[1] * len(axis))  # -1 needs a row
    return found


def _outside(what: str, value: int, end: int) -> UserError:
    side = "at most" if value > end else "at least"
    return UserError(f"{what.capitalize()}: {value}, and {side} {end} in the cost curve.", AGAIN)


def read_curve(folder: str | Path) -> Curve:
    """Read the cost curve in a folder.

    Raises:
        UserError: the folder has no curve, or it is damaged or of a newer version.
    """
    return read_json(Path(folder) / FILE, Curve, "Cost curve", AGAIN)


def variance_of_pairs(differences: Sequence[float]) -> float:
    """The variance of one of two equal settings, from differences of their logarithms."""
    return math.fsum(one**2 for one in differences) / (2 * len(differences)) if differences else 0.0


def curve_frame(curve: Curve) -> DataFrame:
    """One row a number of rows: `block`, `threads`, `context`, `rows` and `steps` of vanilla."""
    import pandas as pd

    axes = range(len(curve.steps)), curve.threads, curve.lengths, curve.rows
    index = pd.MultiIndex.from_product(axes, names=["block", "threads", "context", "rows"])
    return pd.Series(np.array(curve.steps).ravel(), index, name="steps").reset_index()
