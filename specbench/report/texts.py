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

Numbers = Mapping[str, Any]
"""The numbers of a note, by the names in its text."""

_MARKUP = re.compile(
    r"\[(?P<clause>[^\[\]{}]*(?:\{[^{}]*\}[^\[\]{}]*)+)\]|\{(?P<name>\w+)(?::(?P<form>[^{}]*))?\}"
)
"""A clause in brackets, or a number with its form."""
_MOST_NAMED = 6
"""Elements of a list in the form `few`."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the footer."""

    label: str
    """Its subject."""
    text: str
    """The sentence."""
    is_warning: bool = False
    """True if it calls for action or for doubt."""
    key: str = ""
    """Its entry in `texts.toml`; empty in the notes of a judge."""
    numbers: Numbers = field(default_factory=dict, compare=False)
    """The numbers in its sentence; empty in the notes of a judge."""


def make_note(key: str, info: RunHeader | None = None, /, **numbers: Any) -> Note:
    """The note with this key in `texts.toml`, with these numbers in its sentence.

    Methods and tasks among the numbers are named as in the header `info`. An entry without a label
    is a warning.
    """
    entry = _texts()[key]
    text = _Sentence(entry, info).fill(entry["text"], numbers)
    label = entry.get("label", "Warning")
    is_warning = "label" not in entry
    return Note(label, text.removeprefix(", "), is_warning, key=key, numbers=numbers)


def make_notes(key: str, info: RunHeader, findings: Sequence[Numbers]) -> list[Note]:
    """The notes of a warning's key: one per finding, or one on the findings of all methods.

    A finding is given by the numbers of its sentence, by name; "method" is the method that it is
    about, if any. Findings about several methods share a note if the key's entry in `texts.toml`
    has a sentence for `several`. A number of this sentence is the list of the findings' numbers of
    this name; "methods" are the distinct methods, "number" is how many.
    """
    entry = _texts()[key]  # sentences, and words for numbers, by name
    methods = list(dict.fromkeys(numbers.get("method") for numbers in findings))
    if len(methods) < 2 or "several" not in entry:
        return [make_note(key, info, **numbers) for numbers in findings]
    names = dict.fromkeys(name for numbers in findings for name in numbers)  # distinct, in order
    lists = {name: [numbers[name] for numbers in findings if name in numbers] for name in names}
    all_numbers = {**lists, "methods": methods, "number": len(methods)}
    sentence = _Sentence(entry, info).fill(entry["several"], all_numbers)
    return [Note("Warning", sentence, is_warning=True, key=key, numbers=all_numbers)]


@cache
def _texts() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Fills the texts of one entry."""

    entry: Mapping[str, Any]
    """The entry of `texts.toml`."""
    info: RunHeader | None
    """Names methods and tasks."""

    def fill(self, template: str, numbers: Numbers) -> str:
        """The template with its numbers, without the clauses that lack one."""

        def replacement(match: re.Match[str]) -> str:
            if match["clause"]:
                return self._clause(match["clause"], numbers)
            return self._number(match, numbers) or ""

        return _MARKUP.sub(replacement, template)

    def _clause(self, clause: str, numbers: Numbers) -> str:
        """The clause with its numbers; empty if it lacks one."""
        shown = [self._number(match, numbers) for match in _MARKUP.finditer(clause)]
        return "" if None in shown else self.fill(clause, numbers)

    def _number(self, match: re.Match[str], numbers: Numbers) -> str | None:
        """The text for a markup: a number of the note in a form; None if the number is missing.

        `match` is the match of `{name}` or `{name:form}`, `numbers` are the note's by name. A
        number may be a float, an estimate, a text, a list, or a span with its `min`, `max` and
        `mean`. The entry of the note in `texts.toml` may have words for it under its name: a
        template for each element of a list, or a table from a text to the words for it. The form
        is a name in `_FORMS`, "count NOUN", "span UNIT", "several" for a temperature that is shown
        only if the run has several, "few" for the first elements of a list, what joins all its
        elements, or a format of Python.
        """
        name = match["name"]
        form = match["form"] or ""
        number = _bare(numbers.get(name))  # without its interval; None if missing or empty
        if number is None:
            return None
        if name == "temperature" and form == "several":
            return None if self._has_one_temperature else f"{number:g}"
        words = self.entry.get(name)  # a template (text), a table, or None
        if form in _FORMS and not isinstance(words, str):
            return _FORMS[form](number)
        if isinstance(number, list):
            return self._list(name, form, number)  # which uses the template, if there is one
        if isinstance(words, Mapping):
            return str(words[number])
        kind_of_form, _, noun_or_unit = form.partition(" ")
        if kind_of_form == "count":
            return _count(number, noun_or_unit)
        if kind_of_form == "span":
            return _span(number, noun_or_unit)
        # `_named` replaces the key of a method by its label, and of a task by its title
        return format(self._named(name, number), form)

    @property
    def _has_one_temperature(self) -> bool:
        return self.info is None or len(self.info.spec.values.temperatures) == 1

    def _list(self, name: str, form: str, elements: Sequence[Any]) -> str:
        """The elements as one text, joined by the form: "few", or what stands between them.

        An element with several numbers fills the template that the entry has under the list's
        name; a method or a task is named.
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
        """The label of a method, the title of a task, or the number itself."""
        if self.info is None:
            return number
        if name == "method":
            return self.info.method(number).label
        if name == "task":
            return self.info.task_title(number)
        return number


def _bare(number: Any) -> Any:
    """The number without its interval; None if it is missing or empty."""
    if isinstance(number, Estimate):
        return number.value
    is_missing = isinstance(number, Missing) or number in (None, "", [])
    return None if is_missing else number


def _count(number: int, noun: str) -> str:
    """A number of things: 1 line, 2 lines."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(span: Mapping[str, float], unit: str) -> str:
    """The smallest, largest and mean of samples: 2400 to 2600 MHz (mean 2550)."""
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
    """A relative change: 3.1 % higher."""
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
    "sentence": str.capitalize,
}
"""The function that writes a number in each form. `several`, `few`, `count NOUN` and `span UNIT`
are separate.
"""
