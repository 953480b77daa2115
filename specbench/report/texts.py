"""Make notes: a key, numbers, and a sentence of `texts.toml` that is filled with the numbers."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors import few
from specbench.log.header import RunHeader
from specbench.report import formats

Numbers = Mapping[str, Any]
"""The numbers of a note, by their names in its sentence."""

_MARKUP = re.compile(
    r"\[(?P<clause>[^\[\]{}]*(?:\{[^{}]*\}[^\[\]{}]*)+)\]|\{(?P<name>\w+)(?::(?P<form>[^{}]*))?\}"
)
"""Matches a phrase in brackets, or the place of a number with its form."""
_MOST_NAMED = 6
"""The largest number of elements that the form `few` names."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note below a report."""

    label: str
    """The subject of the note."""
    text: str
    """The sentence."""
    is_warning: bool = False
    """True if the note is a reason to act, or to doubt numbers."""
    key: str = ""
    """The key of the entry in `texts.toml`, or "" for a note that is not from there."""
    numbers: Numbers = field(default_factory=dict, compare=False)
    """The numbers in the sentence, which are empty for a note that is not from `texts.toml`."""


def make_note(key: str, info: RunHeader | None = None, /, **numbers: Any) -> Note:
    """Return the note with this key in `texts.toml`, with these numbers in its sentence.

    The header `info` has the names of methods and tasks. An entry without a label is a warning.
    """
    entry = _texts()[key]
    text = _Sentence(entry, info).fill(entry["text"], numbers)
    label = entry.get("label", "Warning")
    is_warning = "label" not in entry
    return Note(label, text.removeprefix(", "), is_warning, key=key, numbers=numbers)


def make_notes(key: str, info: RunHeader, findings: Sequence[Numbers]) -> list[Note]:
    """Return the notes for a warning's key: one per finding, or one about all findings.

    A finding is a dict of the numbers in its sentence, by name. "method" is the method that it is
    about, if any. Findings about several methods share a note if the entry in `texts.toml` has a
    sentence `several`. In this sentence, each name stands for the list of all findings' numbers
    with this name. "methods" are the distinct methods, and "number" is how many there are.
    """
    entry = _texts()[key]  # sentences, and words for numbers, by name
    methods = list(dict.fromkeys(numbers.get("method") for numbers in findings))
    if len(methods) < 2 or "several" not in entry:
        return [make_note(key, info, **numbers) for numbers in findings]
    # distinct names, in order
    names = dict.fromkeys(name for numbers in findings for name in numbers)
    lists = {name: [numbers[name] for numbers in findings if name in numbers] for name in names}
    all_numbers = {**lists, "methods": methods, "number": len(methods)}
    sentence = _Sentence(entry, info).fill(entry["several"], all_numbers)
    return [Note("Warning", sentence, is_warning=True, key=key, numbers=all_numbers)]


@cache
def _texts() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Fills the sentences of an entry with numbers."""

    entry: Mapping[str, Any]
    """The entry of `texts.toml`."""
    info: RunHeader | None
    """The header with the names of methods and tasks, or None to show their keys."""

    def fill(self, template: str, numbers: Numbers) -> str:
        """Return the template with its numbers, without the phrases in brackets that lack one."""

        def replacement(match: re.Match[str]) -> str:
            if match["clause"]:
                return self._clause(match["clause"], numbers)
            return self._number(match, numbers) or ""

        return _MARKUP.sub(replacement, template)

    def _clause(self, clause: str, numbers: Numbers) -> str:
        """Return a phrase of a template with its numbers, or "" if it lacks a number."""
        shown = [self._number(match, numbers) for match in _MARKUP.finditer(clause)]
        return "" if None in shown else self.fill(clause, numbers)

    def _number(self, match: re.Match[str], numbers: Numbers) -> str | None:
        """Return the text for a place in a template, or None if the number is missing.

        `match` is the match of `{name}` or `{name:form}`, and `numbers` are those of the note, by
        name. A number may be a float, an estimate, a text, a list, or a span with `min`, `max` and
        `mean`. The note's entry in `texts.toml` may have words under the name of the number: a
        template for each element of a list, or a table that maps texts to words. The form is empty,
        or one of these:

        - a name in `_FORMS`;
        - "count NOUN" for a number and its noun;
        - "span UNIT" for a span;
        - "several" for a temperature, which is shown only if the run has several;
        - "few" for the first elements of a list;
        - a separator that joins all elements of a list;
        - a format specification of Python.
        """
        name = match["name"]
        form = match["form"] or ""
        number = _bare(numbers.get(name))  # without an interval; None if it is missing or empty
        if number is None:
            return None
        if name == "temperature" and form == "several":
            return None if self._has_one_temperature else f"{number:g}"
        words = self.entry.get(name)  # a template, a table or None
        if form in _FORMS and not isinstance(words, str):
            return _FORMS[form](number)
        if isinstance(number, list):
            return self._list(name, form, number)  # which uses the template, if there is one
        if isinstance(words, Mapping):
            return str(words[number])
        kind_of_form, _, noun_or_unit = form.partition(" ")
        if kind_of_form == "count":
            return count_text(number, noun_or_unit)
        if kind_of_form == "span":
            return _span(number, noun_or_unit)
        # `_named` replaces the key of a method or task with its name.
        return format(self._named(name, number), form)

    @property
    def _has_one_temperature(self) -> bool:
        return self.info is None or len(self.info.spec.values.temperatures) == 1

    def _list(self, name: str, form: str, elements: Sequence[Any]) -> str:
        """Join the elements into one text. The form is the text between them, or "few".

        An element that is a dict of numbers fills the template that the entry has under the list's
        name. Methods and tasks are shown with their names.
        """
        template = self.entry.get(name) or ""
        texts = []
        for element in elements:
            if isinstance(element, Mapping):
                texts.append(self.fill(template, element))
            else:
                texts.append(str(self._named(name.removesuffix("s"), element)))
        return few(texts, _MOST_NAMED) if form == "few" else (form or ", ").join(texts)

    def _named(self, name: str, number: Any) -> Any:
        """Return the label of a method, the title of a task, or the number itself."""
        if self.info is None:
            return number
        if name == "method":
            return self.info.method(number).label
        if name == "task":
            return self.info.task_title(number)
        return number


def _bare(number: Any) -> Any:
    """Return the number without its interval, or None if it is missing or empty."""
    if isinstance(number, Estimate):
        return number.value
    is_missing = isinstance(number, Missing) or number in (None, "", [])
    return None if is_missing else number


def count_text(number: int, noun: str) -> str:
    """Write a number with its noun, such as 1 line or 2 lines."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(span: Mapping[str, float], unit: str) -> str:
    """Write the range and the mean of samples, such as 2400 to 2600 MHz (mean 2550)."""
    low, high = span["min"], span["max"]
    text = f"{_range([round(low), round(high)])} {unit}"
    return text if low == high else f"{text} (mean {span['mean']:.0f})"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _percent_with_digit(share: float) -> str:
    return f"{share * 100:.1f} %"


def _more_or_less(change: float) -> str:
    """Write a relative change, such as 3.1 % higher."""
    direction = "higher" if change >= 0 else "lower"
    return f"{_percent_with_digit(abs(change))} {direction}"


def _factor(factor: float) -> str:
    if factor > 100:
        return "over 100x"
    return f"{factor:.1f}x" if factor < 9.5 else f"{factor:.0f}x"


def _factors(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.2f}x" for ratio in ratios)


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.0f} GB"


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "percent": _percent,
    "percent1": _percent_with_digit,
    "more": _more_or_less,
    "factor": _factor,
    "factors": _factors,
    "bytes": formats.num_bytes,
    "gigabytes": _gigabytes,
    "range": _range,
    "load": partial(formats.requests, 2),
    "rounded": partial(formats.at_least, 3),
    "sentence": str.capitalize,
}
"""The function that writes a number in each form. `several`, `few`, `count NOUN` and `span UNIT`
are handled separately.
"""
