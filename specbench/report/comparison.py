"""A comparison of runs as a value: what stands in which row, and what it says in sentences.

Knows letters for the runs (A is the one that all others are held against), groups of rows, notes.
Knows no markup, colour or width: the renderings do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from specbench.analysis.compare import MEAN, Comparison
from specbench.analysis.header import RunInfo
from specbench.analysis.pairs import CellPair, Pair
from specbench.analysis.stats import Value
from specbench.report import formats
from specbench.report.comparison_sentences import cross_sentence, sentence
from specbench.report.notes import Note

NOT_COMPARABLE = "NOT COMPARABLE: these runs did not do the same work"


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
        said = sentence(one, letters, temperature, first)
    else:
        said = cross_sentence(one, letters, one.cell(one.methods[0], temperature, first))
    return ComparedBlock(heading, letters, groups, said, one.reference_method is not None)


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
