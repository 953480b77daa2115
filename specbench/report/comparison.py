"""A comparison of runs as a value: what stands in which row, and what it says in sentences.

Knows letters for the runs (A is the one that all others are held against), groups of rows, notes.
Knows no markup, colour or width: the renderings do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from specbench.analysis.compare import MEAN, Comparison
from specbench.analysis.header import RunInfo
from specbench.analysis.metrics import BASELINE
from specbench.analysis.pairs import CellPair, Pair
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.report import formats
from specbench.report.notes import Note

NOT_COMPARABLE = "NOT COMPARABLE: these runs did not do the same work"

_EXACT = 1e-9
"""Rounding: an interval that ends this close to 1 is one that holds 1."""


@dataclass(frozen=True, slots=True)
class ComparedNumber:
    """One of the compared numbers: where it is, and how it is written."""

    name: str
    heading: str
    of: Callable[[CellPair], Pair]
    text: Callable[[Value], str]


SPEEDUP = ComparedNumber("speedup", "speedup", lambda cell: cell.speedup, formats.speedup)
MAT = ComparedNumber("mat", "MAT", lambda cell: cell.mat, formats.mat)
RATE = ComparedNumber("tokens_per_s", "tokens/s", lambda cell: cell.tokens_per_s, formats.rate)
NUMBERS = (SPEEDUP, MAT, RATE)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A method in one cell of both runs."""

    label: str
    cell: CellPair


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """The rows of one task, or of the mean over tasks."""

    title: str
    rows: tuple[ComparedRow, ...]


@dataclass(frozen=True, slots=True)
class ComparedBlock:
    """Two runs at one temperature. `letters` are the subject's and the reference's."""

    heading: str
    letters: tuple[str, str]
    groups: tuple[ComparedGroup, ...]
    sentence: str
    is_cross: bool

    @property
    def numbers(self) -> tuple[ComparedNumber, ...]:
        """What is shown: two methods have nothing in common but the time they take."""
        return (RATE,) if self.is_cross else NUMBERS


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """Everything that a rendering shows. `legend` has a line for each run, by letter."""

    legend: tuple[tuple[str, str], ...]
    blocks: tuple[ComparedBlock, ...]
    notes: tuple[Note, ...]
    is_comparable: bool


def build_comparison(comparisons: Sequence[Comparison]) -> ComparisonTable:
    """The table of one reference with one or more subjects. Of a cross comparison the subject is
    the run named first, and so the one called A.
    """
    reference = comparisons[0].reference
    infos = [reference, *(one.subject for one in comparisons)]
    is_cross = comparisons[0].reference_method is not None
    in_order = infos[::-1] if is_cross else infos
    letters = [*ascii_uppercase[: len(infos)]]
    named = [*zip(letters, in_order, strict=True)]
    of_reference = letters[-1] if is_cross else letters[0]
    of_subjects = letters[:-1] if is_cross else letters[1:]
    blocks = [
        _block(one, (letter, of_reference), temperature)
        for one, letter in zip(comparisons, of_subjects, strict=True)
        for temperature in one.temperatures
    ]
    notes = dict.fromkeys(
        note
        for one, letter in zip(comparisons, of_subjects, strict=True)
        for note in _notes(one, (letter, of_reference))
    )
    own = dict.fromkeys(note for letter, info in named for note in _own_notes(letter, info))
    return ComparisonTable(
        tuple((letter, _legend(info)) for letter, info in named),
        tuple(blocks),
        (*_definitions(comparisons), *notes, *own),
        not any(one.differences for one in comparisons),
    )


def is_told_apart(ratio: Value) -> bool:
    """Whether the interval bears out that a ratio is not 1."""
    interval = ratio.interval if isinstance(ratio, Estimate) else None
    return interval is not None and (interval.low > 1 + _EXACT or interval.high < 1 - _EXACT)


def ratio_text(ratio: Value, *, is_short: bool = False) -> str:
    """A ratio with its interval: 1.08 [1.06, 1.10], or 1.08 ±0.02."""
    if isinstance(ratio, Missing):
        return formats.NONE
    interval, shown = ratio.interval, f"{ratio.value:.2f}"
    if interval is None or interval.high - interval.low < _EXACT:
        return shown
    if is_short:
        return f"{shown} ±{interval.half_width:.2f}"
    return f"{shown} [{interval.low:.2f}, {interval.high:.2f}]"


def _block(one: Comparison, letters: tuple[str, str], temperature: float) -> ComparedBlock:
    tasks = {**one.tasks} if len(one.tasks) == 1 else {MEAN: "Mean of the tasks", **one.tasks}
    groups = tuple(
        ComparedGroup(
            title,
            tuple(
                ComparedRow(one.subject.method(method).label, one.cell(method, temperature, task))
                for method in one.methods
            ),
        )
        for task, title in tasks.items()
    )
    first = next(iter(tasks))
    heading = formats.temperature(temperature)
    if one.reference_method is None:
        heading = f"{letters[0]} against {letters[1]}, {heading}"
        sentence = _sentence(one, letters, temperature, first)
    else:
        sentence = _cross_sentence(one, letters, one.cell(one.methods[0], temperature, first))
    return ComparedBlock(heading, letters, groups, sentence, one.reference_method is not None)


def _sentence(one: Comparison, letters: tuple[str, str], temperature: float, task: str) -> str:
    """What changed, by the mean of the tasks: vanilla's speed, the methods' speedups and MAT."""
    subject, reference = letters
    cells = {method: one.cell(method, temperature, task) for method in one.methods}
    sentences = []
    if BASELINE in cells:
        ratio = cells.pop(BASELINE).tokens_per_s.ratio
        said = f"{_times(ratio)} as fast in {subject} as in {reference}"
        sure = "" if is_told_apart(ratio) or _is_same(ratio) else ", which is not told apart from 1"
        sentences.append(f"Vanilla is {said}{sure}.")
    elif cells:
        rates = {method: cell.tokens_per_s for method, cell in cells.items()}
        sentences.append(_changes("Tokens per second", rates, one.subject, letters))
    if cells and BASELINE in one.methods:
        speedups = {method: cell.speedup for method, cell in cells.items()}
        sentences.append(_changes("Speedup over vanilla", speedups, one.subject, letters))
    if cells:
        mats = {method: cell.mat for method, cell in cells.items()}
        sentences.append(_changes("MAT", mats, one.subject, letters))
    return " ".join(sentences)


def _cross_sentence(one: Comparison, letters: tuple[str, str], cell: CellPair) -> str:
    ratio = cell.tokens_per_s.ratio
    places = _places(one.subject, one.reference, letters)
    labels = [one.subject.method(one.methods[0]).label]
    labels.append(one.reference.method(one.reference_method or BASELINE).label)
    own, other = (f"{label} {place}" for label, place in zip(labels, places, strict=True))
    if not isinstance(ratio, Estimate):
        return f"{own} is not held against {other}: {ratio.reason}."
    spread = f" ± {ratio.interval.half_width:.2f}" if ratio.interval else ""
    mean = ", by the mean of the tasks" if len(one.tasks) > 1 else ""
    said = f"{own} is {ratio.value:.2f}{spread} times as fast as {other}{mean}"
    if ratio.interval and not is_told_apart(ratio) and not _is_same(ratio):
        return f"{said}: not told apart."
    return f"{said}."


def _places(subject: RunInfo, reference: RunInfo, letters: tuple[str, str]) -> tuple[str, str]:
    """Where each ran: on its machine, if the machines differ."""
    devices = [info.machine.device.partition(",")[0] for info in (subject, reference)]
    if devices[0] != devices[1]:
        return f"on the {devices[0]}", f"on the {devices[1]}"
    return f"in {letters[0]}", f"in {letters[1]}"


def _changes(what: str, pairs: dict[str, Pair], info: RunInfo, letters: tuple[str, str]) -> str:
    """The methods in which a number is told apart, the greatest changes first."""
    sure = {m: pair.ratio for m, pair in pairs.items() if is_told_apart(pair.ratio)}
    known = [pair.ratio for pair in pairs.values() if isinstance(pair.ratio, Estimate)]
    if not known:
        reasons = {p.ratio.reason for p in pairs.values() if isinstance(p.ratio, Missing)}
        return f"{what} is not compared: {', '.join(sorted(reasons))}."
    if not sure:
        if all(map(_is_same, known)):
            return f"{what} is the same in both."
        if not any(ratio.interval for ratio in known):
            return f"{what}: too few samples to tell a change."
        return f"{what} is not told apart for any method."
    sides = {
        "higher": {m: r for m, r in sure.items() if _number(r) > 1},
        "lower": {m: r for m, r in sure.items() if _number(r) < 1},
    }
    parts = [
        f"{word} in {letters[0]} for {_list(found, info)}" for word, found in sides.items() if found
    ]
    rest = "" if len(sure) == len(pairs) else "; for the others it is not told apart"
    return f"{what} is {' and '.join(parts)}{rest}."


def _list(ratios: dict[str, Value], info: RunInfo, most: int = 3) -> str:
    ranked = sorted(ratios, key=lambda method: abs(_number(ratios[method]) - 1), reverse=True)
    named = [f"{info.method(method).label} ({_times(ratios[method])})" for method in ranked[:most]]
    more = f" and {len(ranked) - most} more" if len(ranked) > most else ""
    return ", ".join(named) + more


def _times(ratio: Value) -> str:
    if isinstance(ratio, Missing):
        return f"not held against ({ratio.reason})"
    interval = ratio.interval
    shown = f"{ratio.value:.2f} times"
    if interval is None or interval.high - interval.low < _EXACT:
        return shown
    return f"{shown} [{interval.low:.2f}, {interval.high:.2f}]"


def _number(value: Value) -> float:
    assert isinstance(value, Estimate)
    return value.value


def _is_same(ratio: Value) -> bool:
    """Whether nothing differs at all, in any sample."""
    if not isinstance(ratio, Estimate) or ratio.interval is None:
        return False
    return max(abs(ratio.interval.low - 1), abs(ratio.interval.high - 1)) < _EXACT


def _legend(info: RunInfo) -> str:
    label = f"{info.model_label}, {info.dtype}"
    if info.is_stand_in and "stand-in" not in label.lower():
        label += " (stand-in)"
    where = f"{info.machine.device}; {info.machine.software}, commit {info.machine.commit}"
    return f"{info.id}: {label}; {where}"


def _definitions(comparisons: Sequence[Comparison]) -> Iterator[Note]:
    is_cross = comparisons[0].reference_method is not None
    which = "A / B" if is_cross else "each run / A"
    yield Note(
        "Ratio",
        f"{which}, above 1 is better, over the completions that both finished; 95 % by paired "
        "cluster bootstrap over samples. A drift of a whole run is in no interval.",
    )
    if not is_cross:
        yield Note("Speedup", "over the vanilla of the same run, which a drift moves alike.")
    if any(len(one.tasks) > 1 for one in comparisons):
        yield Note("Mean", "arithmetic, of the tasks' values and of their ratios.")


def _notes(one: Comparison, letters: tuple[str, str]) -> Iterator[Note]:
    subject, reference = letters
    cells = [cell for key, cell in one.cells.items() if key.task in one.tasks]
    counts = sorted({cell.num_samples for cell in cells})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    yield Note("Samples", f"{span} a cell that {subject} and {reference} share")
    for text in one.unshared:
        yield Note("Left out", text)
    if one.differences:
        yield Note(
            "Warning", f"{NOT_COMPARABLE} (--force shows them all the same).", is_warning=True
        )
    for difference in one.differences:
        text = f"Other work: {difference.told(reference, subject)}."
        yield Note("Warning", text, is_warning=True)
    for caution in one.cautions:
        yield Note(
            "Warning", f"May explain a difference: {caution.told(reference, subject)}.", True
        )


def _own_notes(letter: str, info: RunInfo) -> Iterator[Note]:
    """What there is to doubt in one of the runs by itself."""
    texts = [*info.warnings]
    if info.status != "complete":
        texts.append(f"its status is {info.status}: this is what it had done.")
    if info.machine.commit.endswith("+dirty"):
        texts.append("it was made by a modified checkout, which its commit does not tell.")
    for text in texts:
        yield Note("Warning", f"{letter}: {text}", is_warning=True)
