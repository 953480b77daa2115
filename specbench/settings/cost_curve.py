"""Cost curves: the times of whole steps, of the target alone and of methods.

Times are in steps of vanilla. A curve is valid for one machine, shape of model, number format and
set of versions, whatever the prompts. It keeps its times block by block, so that intervals can
resample the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from specbench.log.files import REPEAT, folder_errors, write_whole
from specbench.settings.json_files import SCHEMA, Compared, check_same, read_json
from specbench.types import ProfileKind

CURVE_FILE = "cost.json"
MEASURE_HINT = "Measure it here: specbench tune cost --model M --method A,B --out DIR"


class MethodCost(msgspec.Struct, frozen=True):
    """The times that a method's drafts and prefill add to the target's times."""

    kind: ProfileKind
    """The method's kind of profile, whose axes determine the time of a draft."""
    is_padded: bool
    """True if the target pads the trees of this method to a few sizes."""
    knots: tuple[dict[str, int], ...]
    """The draft sizes that were measured. They are all combinations of the values on the kind's
    axes, with the last axis fastest, such as [{depth: 0, top_k: 1}, {depth: 0, top_k: 2}, ...]. For
    drafts from text, the axis `drafted` is 1 for a match and 0 for no match.
    """
    draft: tuple[tuple[tuple[float, ...], ...], ...]
    """The time that drafts add to a step, in steps of vanilla [blocks, threads, knots]."""
    start: tuple[tuple[float, ...], ...]
    """The time that the method adds to a prefill, in steps of vanilla [blocks, lengths]."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A cost curve, as it is stored in `cost.json`. `CostModel` computes times from it.

    The unit of all times is vanilla's step at the middle prompt length, measured at nearly the same
    time.
    """

    schema: int = SCHEMA
    about: dict[str, str]
    """The machine, the sizes of the model, the number formats and the versions."""
    vanilla_s: float
    """The seconds of a step of vanilla."""
    threads: tuple[int, ...]
    """The numbers of threads that were measured, beginning with vanilla's."""
    rows: tuple[int, ...]
    """The numbers of rows of the steps that were measured."""
    lengths: tuple[int, ...]
    """The lengths of the prompts, in tokens, whose prefills and steps were measured."""
    most_context: int
    """The largest number of tokens before a measured step."""
    steps: tuple[tuple[tuple[tuple[float, ...], ...], ...], ...]
    """The time of a step of the target [blocks, threads, lengths, rows]."""
    prefill: tuple[tuple[float, ...], ...]
    """The time of vanilla's prefill [blocks, lengths]."""
    methods: dict[str, MethodCost] = {}
    """The costs of each method, under the spelling that was requested."""
    process: float = 0.0
    """The variance of log(time of a step) between two drafters that have the same setting."""
    num_pairs: int = 0
    """The number of settings that were measured with two drafters."""

    def __post_init__(self) -> None:
        """Refuse numbers that no measurement can give. The error of msgspec names the field."""
        problem = next(_problems(self), None)
        if problem:
            raise ValueError(problem)

    def check(self, about: Mapping[str, str]) -> None:
        """Refuse a curve of another machine, model, number format, temperature or version.

        Raises:
            UserError: a value differs. The message has both values.
        """
        compared = [Compared(name, value, about[name]) for name, value in self.about.items()]
        title = "The cost curve does not fit this run:"
        check_same(title, ("in the curve", "here"), compared, MEASURE_HINT)

    def write(self, folder: Path) -> None:
        """Write `cost.json`."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=0)
        with folder_errors(folder / CURVE_FILE, "--out", REPEAT):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / CURVE_FILE, content)

    @property
    def middle_context(self) -> int:
        """The context, in tokens, of the step of vanilla whose time is the unit."""
        return self.lengths[len(self.lengths) // 2]


def read_curve(folder: str | Path) -> Curve:
    """Read the cost curve in a folder.

    Raises:
        UserError: the folder has no curve, or it is damaged or of a newer version.
    """
    return read_json(Path(folder) / CURVE_FILE, Curve, "Cost curve", MEASURE_HINT)


def _problems(curve: Curve) -> Iterator[str]:
    """Yield a sentence for each table of a curve that has a wrong size or an impossible time."""
    for name in ("threads", "rows", "lengths"):  # the axes of the tables
        axis = getattr(curve, name)
        if not axis or min(axis) < 1:
            yield f"{name} are not numbers of 1 or more: {list(axis)}"
            return
    num_blocks, num_threads = len(curve.steps), len(curve.threads)
    num_lengths, num_rows = len(curve.lengths), len(curve.rows)
    if not curve.vanilla_s > 0 or not math.isfinite(curve.vanilla_s):
        yield f"vanilla_s is {curve.vanilla_s:g}, but a step takes time"
    yield from _table_problems(
        "steps", curve.steps, (num_blocks, num_threads, num_lengths, num_rows), is_positive=True
    )
    yield from _table_problems(
        "prefill", curve.prefill, (num_blocks, num_lengths), is_positive=True
    )
    for label, method in curve.methods.items():
        shape = (num_blocks, num_threads, len(method.knots))
        yield from _table_problems(f"{label}: draft", method.draft, shape)
        yield from _table_problems(f"{label}: start", method.start, (num_blocks, num_lengths))


def _table_problems(
    name: str, table: Any, shape: tuple[int, ...], *, is_positive: bool = False
) -> Iterator[str]:
    """Yield a sentence if a nested table has another shape, or numbers that cannot be times."""
    try:
        numbers = np.array(table, float)
    except ValueError:
        yield f"{name} has rows of several lengths"
        return
    if numbers.shape != shape or not numbers.size:
        sizes = " x ".join(map(str, shape))
        yield f"{name} has the sizes {' x '.join(map(str, numbers.shape))}, and its axes {sizes}"
    elif not np.isfinite(numbers).all() or (is_positive and numbers.min() <= 0):
        yield f"{name} has a time that is not {'positive' if is_positive else 'finite'}"
