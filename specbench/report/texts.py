"""A note: a key, numbers, and the sentence that `texts.toml` makes of them in every format."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors import few
from specbench.log.header import RunHeader
from specbench.report import formats

_PART = re.compile(
    r"\[(?P<clause>[^\[\]{}]*(?:\{[^{}]*\}[^\[\]{}]*)+)\]|\{(?P<name>\w+)(?::(?P<form>[^{}]*))?\}"
)
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the footer. A warning calls for action or for doubt.

    `key` is the note's place in the table of texts, and `numbers` are what its sentence says;
    both are empty in the notes of a judge.
    """

    label: str
    text: str
    is_warning: bool = False
    key: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict, compare=False)


def make_note(key: str, info: RunHeader | None = None, /, **numbers: Any) -> Note:
    """The note of that key. Methods and tasks among its numbers are named as in `info`."""
    entry = _texts()[key]
    text = _Sentence(entry, info).fill(entry["text"], numbers) or ""
    label = entry.get("label", "Warning")
    is_warning = "label" not in entry
    return Note(label, text.removeprefix(", "), is_warning, key=key, numbers=numbers)


@cache
def _texts() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Fills the texts of one entry."""

    entry: Mapping[str, Any]
    info: RunHeader | None

    def fill(self, text: str, numbers: Mapping[str, Any], *, is_clause: bool = False) -> str | None:
        """The text with its numbers; None if a clause lacks one."""
        is_whole = True

        def part(found: re.Match[str]) -> str:
            nonlocal is_whole
            if found["clause"]:
                return self.fill(found["clause"], numbers, is_clause=True) or ""
            shown = self._shown(found["name"], found["form"] or "", numbers.get(found["name"]))
            is_whole &= shown is not None
            return shown or ""

        filled = _PART.sub(part, text)
        return filled if is_whole or not is_clause else None

    def _shown(self, name: str, form: str, value: Any) -> str | None:
        """A number in this form; None if there is none."""
        own = self.entry.get(name)
        value = value.value if isinstance(value, Estimate) else value
        if isinstance(value, Missing) or value in (None, "", []):
            return None
        if name == "temperature" and form == "several":
            is_one = self.info is None or len(self.info.spec.values.temperatures) == 1
            return None if is_one else f"{value:g}"
        if form in _FORMS and not isinstance(own, str):
            return _FORMS[form](value)
        if isinstance(value, list):
            items = [self._item(name, own, item) for item in value]
            return few(items, _MOST_NAMED) if form == "few" else (form or ", ").join(items)
        if form.startswith("count "):
            return f"{value} {form.removeprefix('count ')}{'s' * (value != 1)}"
        if form.startswith("span "):
            return _span(**value, unit=form.removeprefix("span "))
        if isinstance(own, Mapping):
            return str(own[value])
        return format(self._named(name, value), form)

    def _item(self, name: str, text: str | None, item: Any) -> str:
        if isinstance(item, Mapping):
            return self.fill(text or "", item) or ""
        return str(self._named(name.removesuffix("s"), item))

    def _named(self, name: str, value: Any) -> Any:
        """The label of a method, the title of a task, or the value itself."""
        if self.info is None or name not in ("method", "task"):
            return value
        return self.info.method(value).label if name == "method" else self.info.task_title(value)


def _span(min: float, mean: float, max: float, unit: str) -> str:
    between = f" (mean {mean:.0f})" if min != max else ""
    return f"{_range([round(min), round(max)])} {unit}{between}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _factor(factor: float) -> str:
    if factor > 100:
        return "over 100x"
    return f"{factor:.1f}x" if factor < 9.5 else f"{factor:.0f}x"


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "percent": lambda share: f"{share * 100:.0f} %",
    "percent1": lambda share: f"{share * 100:.1f} %",
    "more": lambda change: f"{abs(change) * 100:.1f} % {'more' if change >= 0 else 'less'}",
    "factor": _factor,
    "factors": lambda ratios: ", ".join(f"{ratio:.2f}x" for ratio in ratios),
    "bytes": formats.num_bytes,
    "gigabytes": lambda size: f"{size / 1e9:.0f} GB",
    "range": _range,
    "sentence": str.capitalize,
}
