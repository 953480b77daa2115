"""Build the tables, sentences and notes of a comparison, which every format shows.

The runs have letters. A is the reference, unless methods are crossed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from specbench.analysis.cells import CellKey
from specbench.analysis.ranking import ALONE
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.judge.comparison import MEAN, Comparison
from specbench.judge.pairs import Metric, Pair
from specbench.judge.sentences import Letters, change_sentences, cross_sentence
from specbench.log.difference import change_lines
from specbench.log.header import RunHeader
from specbench.machine.environment import with_one_start
from specbench.report import facts, formats
from specbench.report.table import Cell, Column, Group, Row, Table, Tone
from specbench.report.texts import Note

NOT_COMPARABLE = "NOT COMPARABLE: these runs did not do the same work"


class ShownMetric(NamedTuple):
    """A metric with its heading, and the function that writes its numbers."""

    metric: Metric
    heading: str
    write: Callable[[Value], str]


RATE = ShownMetric("tokens_per_s", "tokens/s", formats.rate)
METRICS = (
    ShownMetric("speedup", "speedup", formats.speedup),
    ShownMetric("mat", "MAT", formats.mat),
    RATE,
)
"""The compared metrics in their order."""


class ComparedBlock(NamedTuple):
    """Two runs at one temperature."""

    heading: str
    table: Table
    sentence: str


class ComparisonTable(NamedTuple):
    """The content of a comparison in any format."""

    legend: tuple[Note, ...]
    """A note for each run: its letter, and the run in words."""
    blocks: tuple[ComparedBlock, ...]
    notes: tuple[Note, ...]
    is_comparable: bool


def build_comparison(comparisons: Sequence[Comparison]) -> ComparisonTable:
    """Compare one reference with one or more subjects, in a block per comparison and temperature.

    The reference is A, and the subjects have the next letters. In a cross comparison (of two
    methods) the subject was named first, so it is A, and the reference is B.

    Args:
        comparisons: each compares a subject with the reference at one load (requests at once, or
            per second). All have the same reference. A subject has one comparison per load.
    """
    run_letters = _letters(comparisons)  # the reference's, then each subject's
    reference_letter = run_letters[0]
    headers = {reference_letter: comparisons[0].reference}  # letter -> header of the run
    lettered: list[tuple[Comparison, Letters]] = []
    for comparison in comparisons:
        subject_letter = run_letters[1 + comparison.number]
        headers.setdefault(subject_letter, comparison.subject)  # the header at the first load
        letters = Letters(subject=subject_letter, reference=reference_letter)
        lettered.append((comparison, letters))
    blocks = [
        _block(comparison, letters, temperature)
        for comparison, letters in lettered
        for temperature in comparison.temperatures
    ]
    notes = [*_definitions(comparisons)]
    for comparison, letters in lettered:
        notes += _notes(comparison, letters)
    first_comparison = comparisons[0]  # a cross comparison has the same methods at each load
    second_method = first_comparison.reference_method
    method_of_letter = {}  # if A and B are two methods of one run, the legend names them
    if second_method and first_comparison.subject == first_comparison.reference:
        method_of_letter = {"A": first_comparison.methods[0], "B": second_method}
    legend = []
    for letter, header in sorted(headers.items()):
        run_text = _legend_text(header)
        if letter in method_of_letter:
            run_text = f"{header.method(method_of_letter[letter]).label} of {run_text}"
        legend.append(Note(letter, run_text))
        notes += _run_notes("" if method_of_letter else f"{letter}: ", header)
    return ComparisonTable(
        legend=tuple(legend),
        blocks=tuple(blocks),
        notes=tuple(dict.fromkeys(notes)),  # each once
        is_comparable=not any(comparison.differences for comparison in comparisons),
    )


def _letters(comparisons: Sequence[Comparison]) -> Sequence[str]:
    """The letter of the reference, then the letter of each subject."""
    if comparisons[0].reference_method is not None:
        return "BA"
    more = [f"Z{i:03}" for i in range(1, len(comparisons))]
    return [*ascii_uppercase, *more]


def _block(comparison: Comparison, letters: Letters, temperature: float) -> ComparedBlock:
    """The heading, the table and the sentence of one temperature.

    The sentence is about the mean over tasks, or about the only task. `letters` are those of the
    subject and the reference.
    """
    tasks = {**comparison.tasks}  # name -> title
    if len(tasks) != 1:
        tasks = {MEAN: "Mean of the tasks", **tasks}
    first_task = next(iter(tasks))
    # The text of the load is empty if no server was used.
    conditions = (formats.temperature(temperature), comparison.load.text)
    heading = ", ".join(filter(None, conditions))
    is_cross = comparison.reference_method is not None
    if not is_cross:  # each method is compared with itself in the other run
        heading = f"{letters.subject} against {letters.reference}, {heading}"
    if comparison.differences:  # numbers of different work must not be quoted
        sentence = f"No result: {letters.subject} and {letters.reference} did different work."
    elif not is_cross:
        sentence = change_sentences(comparison, letters, temperature=temperature, task=first_task)
    else:
        key = CellKey(comparison.methods[0], temperature, first_task)
        sentence = cross_sentence(comparison, letters, key)
    table = _table(comparison, letters, temperature, tasks)
    return ComparedBlock(heading, table, sentence)


def _table(
    comparison: Comparison, letters: Letters, temperature: float, tasks: Mapping[str, str]
) -> Table:
    """A table with the values of both runs in the order of their letters, and the ratio, for each
    metric.

    Each task is a group of rows, one per method. A cross comparison has only tokens/s (`RATE`), and
    one row per task. `tasks` maps names to titles. `letters` are those of the subject and the
    reference.
    """
    if comparison.reference_method is not None:  # a cross comparison
        method = comparison.methods[0]  # the subject's
        rows = []
        for task, title in tasks.items():
            cells = _cells(comparison, letters, CellKey(method, temperature, task), (RATE,))
            rows.append(Row(method, label=title, cells=cells))
        task_group = Group(label="", rows=tuple(rows))
        return Table(
            title="", columns=_columns(letters, (RATE,)), groups=(task_group,), heading="Task"
        )
    groups = []
    for task, title in tasks.items():
        rows = []
        for method in comparison.methods:
            label = comparison.subject.method(method).label
            cells = _cells(comparison, letters, CellKey(method, temperature, task), METRICS)
            rows.append(Row(method, label, cells))
        groups.append(Group(label=title if len(tasks) > 1 else "", rows=tuple(rows)))
    return Table(title="", columns=_columns(letters, METRICS), groups=tuple(groups))


def _columns(letters: Letters, metrics: Sequence[ShownMetric]) -> tuple[Column, ...]:
    """Three columns for each metric: both runs, and the ratio."""
    headings = (*sorted(letters), " / ".join(letters))
    return tuple(Column(heading, task=shown.heading) for shown in metrics for heading in headings)


def _cells(
    comparison: Comparison, letters: Letters, key: CellKey, metrics: Sequence[ShownMetric]
) -> tuple[Cell, ...]:
    """The cells of one row of the table: for each metric, both runs and their ratio.

    The run with the first letter comes first, as in `_columns`.

    Args:
        comparison: has the numbers of both runs, by cell.
        letters: the letters of the subject and the reference.
        key: the compared cell: method, temperature and task.
        metrics: the metrics, each with the function that writes its numbers.
    """
    is_subject_first = letters.subject < letters.reference
    cells = []
    for shown_metric in metrics:
        pair = comparison.cells[key].pair(shown_metric.metric)
        subject = Cell(shown_metric.write(pair.subject))
        reference = Cell(shown_metric.write(pair.reference))
        cells += [subject, reference] if is_subject_first else [reference, subject]
        # marks a ratio that is significant on its own, but not after correcting for all tests
        alone_mark = ALONE if pair.is_alone else ""
        # the ratio in two decimals, the mark, and half the width of the interval
        ratio_text = formats.mat(pair.ratio) + alone_mark + formats.plus_minus(pair.ratio)
        cells.append(Cell(ratio_text, tone=_tone(pair)))
    return tuple(cells)


def _tone(pair: Pair) -> Tone:
    """The colour of a ratio: good or bad if a difference is claimed, otherwise unsure."""
    if not isinstance(pair.ratio, Estimate) or not pair.is_claimed:
        return "unsure"
    return "good" if pair.ratio.value > 1 else "bad"


def _legend_text(header: RunHeader) -> str:
    """A run in words: its name, model, machine and software."""
    model = facts.model_phrase(header)
    environment = header.environment
    if header.imported:
        return f"{header.id}: {model}; {header.device_phrase}; {header.imported.tools}"
    software = f"{environment.software_phrase}, commit {environment.commit_phrase}"
    return f"{header.id}: {model}; {header.device_phrase}; {software}"


def _definitions(comparisons: Sequence[Comparison]) -> Iterator[Note]:
    """Notes that explain the ratios, intervals, speedups and means of the table."""
    is_cross = comparisons[0].reference_method is not None
    ratio_in_words = "A / B" if is_cross else "each run / A"
    yield Note(
        "Ratio", f"{ratio_in_words}, over completions that both finished; above 1 is better."
    )
    # such as "prompts and 3 passes"
    scopes = dict.fromkeys(comparison.scope.text for comparison in comparisons)
    yield Note(
        "Intervals",
        f"95 %, by paired cluster bootstrap over samples; intervals of times cover "
        f"{'; or '.join(scopes)}. Colours and sentences follow tests, corrected for the number of "
        "tests; intervals are not corrected. ~: significant on its own, but not after this "
        "correction. Speeds are judged only with several runs per side.",
    )
    if not is_cross:
        yield Note(
            "Speedup", "over vanilla in the same run, so that the machine's drift cancels out."
        )
    if any(len(comparison.tasks) > 1 for comparison in comparisons):
        yield Note(
            "Mean", "arithmetic mean of the tasks' values; its ratio is the ratio of the two means."
        )


def _notes(comparison: Comparison, letters: Letters) -> Iterator[Note]:
    """Notes on the two runs of a comparison: the samples that they share, what only one of them
    has, and warnings about differences.

    `differences` in the work make the runs incomparable. `cautions` are other differences, such as
    those in methods' options and versions.
    """
    # the cells of single tasks, without means
    task_cells = [cell for key, cell in comparison.cells.items() if key.task in comparison.tasks]
    fewest = min(cell.num_samples for cell in task_cells)
    most = max(cell.num_samples for cell in task_cells)
    num_text = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    yield Note(
        "Samples", f"{num_text} in each cell that {letters.subject} and {letters.reference} share"
    )
    for sentence in comparison.unshared:
        yield Note("Left out", sentence)
    warnings = {
        "Different work": comparison.differences,
        "May explain a difference": comparison.cautions,
    }
    for kind, differences in warnings.items():
        opening = f"{kind}, from {letters.reference} to {letters.subject}"
        for line in change_lines(differences):  # lines such as "sps: num_tokens 5 -> 3"
            yield Note("Warning", f"{opening}: {line}.", is_warning=True)


def _run_notes(prefix: str, header: RunHeader) -> Iterator[Note]:
    """Warnings about only one of the runs. They begin with `prefix`."""
    texts = with_one_start(header.warnings)
    if header.status != "complete":
        texts.append(f"its status is {header.status}, so this is only part of the run.")
    if header.environment.commit_phrase.endswith("+dirty"):
        texts.append("the checkout was modified, so its commit does not identify the code.")
    for warning in texts:
        yield Note("Warning", f"{prefix}{warning}", is_warning=True)
