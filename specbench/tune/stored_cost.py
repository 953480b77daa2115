"""The file of a cost curve: times of whole steps, in steps of vanilla, and between them.

A curve belongs to a machine, a model's shape, number formats and versions, but not to prompts.
Its times are kept block by block, so that intervals can resample blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from specbench.analysis.stats.bootstrap import FloatArray
from specbench.engine.tree import padded_size
from specbench.errors import UserError
from specbench.log.files import write_whole
from specbench.tune.stored_profile import SCHEMA as SCHEMA
from specbench.tune.stored_profile import read_json
from specbench.tune.walk import Walk
from specbench.types import ProfileKind

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


class CostHeader(Struct, frozen=True, kw_only=True):
    """The file `cost.json`. The unit is vanilla's step at the middle length, close in time."""

    schema: int
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
    methods: dict[str, MethodCost]
    """By the spelling that was asked for."""
    process: float
    """Variance of the logarithm of a step's time that one setting, entered twice, has."""
    num_pairs: int
    """Settings that were entered twice."""


class Curve:
    """A cost curve. `weights` and `costs` multiply to the time of an answer."""

    def __init__(self, header: CostHeader) -> None:
        self.header = header
        self._known: dict[tuple[str | None, int, int], FloatArray] = {}

    def check(self, about: Mapping[str, str]) -> None:
        """Refuse another machine, model, number format, temperature or version.

        Raises:
            UserError: with both values.
        """
        differing = {name: one for name, one in self.header.about.items() if one != about[name]}
        found = [f"  {k}: {one} in the curve, {about[k]} here" for k, one in differing.items()]
        if found:
            raise UserError("\n".join(["The cost curve is not one of this run:", *found]), AGAIN)

    def write(self, folder: Path) -> None:
        """Write `cost.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(self.header), indent=0)
        write_whole(folder / FILE, content)

    @property
    def middle(self) -> int:
        """Context of the step that all times are in."""
        return self.header.lengths[len(self.header.lengths) // 2]

    def costs(self, label: str | None, threads: int, num_resamples: int) -> FloatArray:
        """The numbers of a method, or vanilla's, with the number of threads at this place: the
        estimate, then resamples [1 + num_resamples, k].

        In this order: a step by rows, context, rows times context, prefill by length, a
        method's draft by knot, and what its prefill adds by length. Blocks are drawn with
        replacement, the same ones for all methods and threads.
        """
        key, head = (label, threads, num_resamples), self.header
        if key not in self._known:
            size = num_resamples + 1, len(head.steps)
            blocks = np.random.default_rng(0).integers(len(head.steps), size=size)
            blocks[0] = np.arange(len(head.steps))
            tables = [np.array(head.steps)[:, threads], np.array(head.prefill)]
            if label is not None:
                one = head.methods[label]
                tables += [np.array(one.draft)[:, threads], np.array(one.start)]
            steps, *others = (np.median(table[blocks], 1) for table in tables)
            self._known[key] = np.hstack([_fit(steps, head), *(one.clip(0) for one in others)])
        return self._known[key]

    def step(self, costs: FloatArray, rows: int, context: int) -> float:
        """The time of a step of the target, by the estimate of `costs`."""
        at = self.header.rows
        slopes = costs[0, len(at) : len(at) + 2]
        here = _between(at, rows, "rows of a step") @ costs[0, : len(at)]
        return float(here + (context - self.middle) * (slopes[0] + slopes[1] * rows))

    def weights(self, label: str | None, options: Mapping[str, Any], walk: Walk) -> FloatArray:
        """Number of times that an answer pays each of the `costs` [k].

        Args:
            label: the method as the curve spells it; None for vanilla, which needs only the
                number of tokens of `walk`.
            options: the setting.
            walk: the steps of the answer.

        Raises:
            UserError: rows, options or lengths that were not measured.
        """
        head = self.header
        one = head.methods[label] if label is not None else None
        count = walk.num_tokens if one is None else len(walk.nodes)
        rows = np.array(walk.nodes if one else [1] * count, dtype=int)
        times = np.array(walk.chances if one else [1] * count, dtype=float)
        before = walk.prompt_tokens + np.array(walk.before if one else range(count), dtype=int)
        if count and before.max() > head.most_context:
            raise _outside("context", int(before.max()), head.most_context)
        is_padded = one is not None and one.is_padded
        sizes = np.array([padded_size(n) for n in rows], int) if is_padded else rows
        found = np.zeros(len(head.rows) + 2 + len(head.lengths))
        for n in np.unique(sizes):
            between = _between(head.rows, int(n), "rows of a step")
            found[: len(head.rows)] += times[sizes == n].sum() * between
        away = (before - self.middle) * times
        found[len(head.rows) : len(head.rows) + 2] = away.sum(), away @ sizes
        prefill = _between(head.lengths, walk.prompt_tokens, "length of a prompt")
        found[len(head.rows) + 2 :] = prefill
        if one is None:
            return found
        drafts = np.zeros(len(one.knots))
        for n in np.unique(rows):
            values = {**options, "rows": int(n), "drafted": int(n > 1)}
            if n > 1 or one.kind == "text":  # else nothing is drafted, at the end of a budget
                drafts += times[rows == n].sum() * _knots(one, values)
        return np.concatenate([found, drafts, prefill])


def _fit(steps: FloatArray, head: CostHeader) -> FloatArray:
    """A step by rows at the middle context, and its slopes by context and rows times context.

    `steps` are [resamples, lengths, rows]. Only the slopes are fitted, by least squares of the
    relative differences from the middle; the result is [resamples, rows + 2]. Steps never
    become faster with more context, and the shortest one takes at least half of the middle
    one.
    """
    middle, rows = len(head.lengths) // 2, np.array(head.rows, float)
    away = np.array(head.lengths, float) - head.lengths[middle]
    if not away.any():
        return np.hstack([steps[:, middle], np.zeros((len(steps), 2))])
    base = steps[:, middle : middle + 1]
    scale = 1 / np.median(base, 0)
    design = np.stack([(away[:, None] * scale * n).ravel() for n in (1, rows)], 1)
    change = ((steps - base) * scale).reshape(len(steps), -1)
    slopes = (change @ np.linalg.pinv(design).T).clip(0)
    fall = (head.lengths[middle] - head.lengths[0]) * (slopes[:, :1] + slopes[:, 1:] * rows)
    slopes *= (0.5 * base[:, 0] / np.maximum(fall, 1e-9)).min(1, keepdims=True).clip(max=1)
    risen = away[:, None] * (slopes[:, :1, None] + slopes[:, 1:, None] * rows)
    found = (steps * base / (base + risen)).mean(1)
    return np.hstack([np.maximum(found, 0.6 * base[:, 0]), slopes])


def _between(knots: Sequence[int], value: int, what: str) -> FloatArray:
    """The weights of the knots [k], in order, that interpolate linearly at a value.

    Raises:
        UserError: the value is outside.
    """
    if not knots[0] <= value <= knots[-1]:
        raise _outside(what, value, knots[0] if value < knots[0] else knots[-1])
    found = np.zeros(len(knots))
    right = next(i for i, knot in enumerate(knots) if knot >= value)
    left = max(0, right - 1)
    share = (value - knots[left]) / (knots[right] - knots[left]) if right > left else 1.0
    found[left] += 1 - share
    found[right] += share
    return found


def _knots(one: MethodCost, values: Mapping[str, Any]) -> FloatArray:
    """The weights of a method's knots at values of its axes, among others."""
    found = np.ones(1)
    for name in one.knots[0]:
        axis = sorted({knot[name] for knot in one.knots})
        found = np.outer(found, _between(axis, values[name], name)).ravel()
    return found


def _outside(what: str, value: int, end: int) -> UserError:
    side = "at most" if value > end else "at least"
    return UserError(f"{what.capitalize()}: {value}, and {side} {end} in the cost curve.", AGAIN)


def read_curve(folder: str | Path) -> Curve:
    """Read the cost curve in a folder.

    Raises:
        UserError: the folder has no curve, or it is damaged or of a newer version.
    """
    return Curve(read_json(Path(folder) / FILE, CostHeader, "Cost curve", AGAIN))


def variance_of_pairs(differences: Sequence[float]) -> float:
    """The variance of one of two equal settings, from differences of their logarithms."""
    return math.fsum(one**2 for one in differences) / (2 * len(differences)) if differences else 0.0
