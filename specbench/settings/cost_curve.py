"""Cost curves: times of whole steps of the target and of methods, in steps of vanilla.

A curve belongs to a machine, a model's shape, number formats and versions, but not to prompts.
Its times are kept block by block, so that intervals can resample blocks.
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
    """Times that a method's drafts and its prefill take in addition to the target's times."""

    kind: ProfileKind
    """The kind of its profile, whose axes decide the time of a draft."""
    is_padded: bool
    """The target computes its trees padded to a few sizes."""
    knots: tuple[dict[str, int], ...]
    """Grid of draft sizes that were measured: all combinations of values of the kind's axes,
    the last axis fastest, such as [{depth: 0, top_k: 1}, {depth: 0, top_k: 2}, ...]. Drafts from
    text have 1 for a match and 0 for none.
    """
    draft: tuple[tuple[tuple[float, ...], ...], ...]
    """Time of a step beyond the target's part, in steps of vanilla [blocks, threads, knots]."""
    start: tuple[tuple[float, ...], ...]
    """Time of a prefill beyond vanilla's, in steps of vanilla [blocks, lengths]."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A cost curve, as in `cost.json`. `CostModel` computes times from it.

    The unit of times is vanilla's step at the middle length, measured close in time.
    """

    schema: int = SCHEMA
    about: dict[str, str]
    """The machine, the sizes of the model, number formats and versions of this curve."""
    vanilla_s: float
    """Seconds of a step of vanilla."""
    threads: tuple[int, ...]
    """Numbers of threads that were measured, vanilla's first."""
    rows: tuple[int, ...]
    """Rows of the steps that were measured."""
    lengths: tuple[int, ...]
    """Tokens of the prompts that prefills and steps were measured with."""
    most_context: int
    """Most tokens before a step that was measured."""
    steps: tuple[tuple[tuple[tuple[float, ...], ...], ...], ...]
    """Time of a step of the target [blocks, threads, lengths, rows]."""
    prefill: tuple[tuple[float, ...], ...]
    """Time of vanilla's prefill [blocks, lengths]."""
    methods: dict[str, MethodCost] = {}
    """Costs of methods, by the requested spelling."""
    process: float = 0.0
    """Variance of the logarithm of a step's time between two drafters with the same setting."""
    num_pairs: int = 0
    """Number of settings that were measured with two drafters."""

    def __post_init__(self) -> None:
        """Refuse numbers that no measurement can give; msgspec's error names the field."""
        problem = next(_problems(self), None)
        if problem:
            raise ValueError(problem)

    def check(self, about: Mapping[str, str]) -> None:
        """Refuse another machine, model, number format, temperature or version.

        Raises:
            UserError: a value differs; the message has both.
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
        """Tokens of context of vanilla's step that is the unit of times."""
        return self.lengths[len(self.lengths) // 2]


def read_curve(folder: str | Path) -> Curve:
    """Read the cost curve in a folder.

    Raises:
        UserError: the folder has no curve, or it is damaged or of a newer version.
    """
    return read_json(Path(folder) / CURVE_FILE, Curve, "Cost curve", MEASURE_HINT)


def _problems(curve: Curve) -> Iterator[str]:
    """A sentence for each table of a curve whose size does not fit its axes, or with impossible
    times.
    """
    for name in ("threads", "rows", "lengths"):  # the axes
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
    """A sentence if a nested table has another shape, or numbers that cannot be times."""
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
