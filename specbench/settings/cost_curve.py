"""Cost curves: times of whole steps of the target and of methods, in steps of vanilla's.

A curve belongs to a machine, a model's shape, number formats and versions, but not to prompts.
Its times are kept block by block, so that intervals can resample blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from specbench.log.files import write_whole
from specbench.settings.json_files import SCHEMA, Compared, check_same, read_json
from specbench.types import ProfileKind

CURVE_FILE = "cost.json"
MEASURE_HINT = "Measure it here: specbench tune cost --model M --method A,B --out DIR"


class MethodCost(msgspec.Struct, frozen=True):
    """Times of a method beside the target's: of its drafts, and of its prefill."""

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
    """Steps of vanilla that a step takes beyond the target's part [blocks, threads, knots]."""
    start: tuple[tuple[float, ...], ...]
    """Steps of vanilla that a prefill takes beyond vanilla's [blocks, lengths]."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A cost curve, as in `cost.json`. `CostModel` computes times from it.

    The unit is vanilla's step at the middle length, close in time.
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
        compared = [Compared(name, value, about[name]) for name, value in self.about.items()]
        title = "The cost curve is not one of this run:"
        check_same(title, ("in the curve", "here"), compared, MEASURE_HINT)

    def write(self, folder: Path) -> None:
        """Write `cost.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(self), indent=0)
        write_whole(folder / CURVE_FILE, content)

    @property
    def middle_context(self) -> int:
        """Context of the step that all times are in."""
        return self.lengths[len(self.lengths) // 2]


def read_curve(folder: str | Path) -> Curve:
    """Read the cost curve in a folder.

    Raises:
        UserError: the folder has no curve, or it is damaged or of a newer version.
    """
    return read_json(Path(folder) / CURVE_FILE, Curve, "Cost curve", MEASURE_HINT)
