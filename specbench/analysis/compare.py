"""Two runs cell by cell, over the completions that both finished.

Knows ratios of a subject's values to a reference's. The bootstrap draws the same samples for both,
so what a sample has in both runs (its length, how well it can be guessed) cancels out. What moved
a whole run, such as a clock or other work on the machine, is in no interval.

The mean over tasks is arithmetic, of values and of ratios alike.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specbench.analysis.cells import WITH_PHASES, CellKey, is_measured
from specbench.analysis.columns import completion
from specbench.analysis.header import RunInfo, read_header
from specbench.analysis.metrics import BASELINE, POOLED, Run
from specbench.analysis.pairs import CellPair, Completion, Side, mean_cell, pair_cell
from specbench.analysis.sameness import (
    Difference,
    circumstances,
    require_same_work,
    work_differences,
)
from specbench.analysis.stats import Bootstrap, Draws
from specbench.errors import UserError, unknown_name
from specbench.types import Record

MEAN = "mean"
"""The task of a cell that has the means of a method's tasks."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run, the subject, beside the reference.

    `cells` has every task, `MEAN` and `POOLED` of each of `methods`; `tasks` maps names to titles.
    With `reference_method`, the reference's cells are that method's, whichever the subject's are.
    `differences` make the two incomparable (shown by force), `cautions` may explain a difference
    in speed, `unshared` is what only one of them has, in words.
    """

    reference: RunInfo
    subject: RunInfo
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    tasks: Mapping[str, str]
    cells: Mapping[CellKey, CellPair]
    differences: tuple[Difference, ...]
    cautions: tuple[Difference, ...]
    unshared: tuple[str, ...]
    reference_method: str | None = None

    def cell(self, method: str, temperature: float, task: str) -> CellPair:
        return self.cells[CellKey(method, temperature, task)]


def compare_runs(
    runs: Sequence[Run], methods: tuple[str, str] | None = None, *, is_forced: bool = False
) -> list[Comparison]:
    """Each run beside the first, or, with `methods`, the first's method beside the second's.

    Raises:
        UserError: too few or too many runs, or runs that are not comparable.
    """
    if len(runs) < 2:
        raise UserError(
            "One run cannot be compared.",
            "Name two or more; to hold two methods of one run side by side, name it twice, with "
            "--cross METHOD METHOD.",
        )
    if methods is None:
        return [compare(runs[0], run, is_forced=is_forced) for run in runs[1:]]
    if len(runs) > 2:
        raise UserError(f"--cross compares two runs, not {len(runs)}.", "Name two.")
    return [cross(runs[0], runs[1], methods, is_forced=is_forced)]


def compare(
    reference: Run,
    subject: Run,
    *,
    is_forced: bool = False,
    may_be_empty: bool = False,
    bootstrap: Bootstrap | None = None,
) -> Comparison:
    """The subject beside the reference, for every method, temperature and task that both have.

    Raises:
        UserError: they did not do the same work (unless forced), or share nothing (unless allowed).
    """
    if not is_forced:
        require_same_work(reference.header, subject.header)
    runs = _Measured(reference), _Measured(subject)
    methods = {method: method for method in runs[0].methods if method in runs[1].methods}
    compared = _Compared(*runs, methods, bootstrap or Bootstrap()).comparison()
    if not (compared.cells or may_be_empty):
        raise UserError(
            f"The runs {compared.reference.id} and {compared.subject.id} have no finished sample "
            "of the same method, temperature and task.",
            "`specbench show RUN` says what a run has.",
        )
    return compared


def cross(
    subject: Run,
    reference: Run,
    methods: tuple[str, str],
    *,
    is_forced: bool = False,
    bootstrap: Bootstrap | None = None,
) -> Comparison:
    """A method of one run beside another method of another run: `methods` are the subject's and
    the reference's, in this order. "EAGLE-2 on the small GPU is 1.1 times vanilla on the big one."

    Raises:
        UserError: the runs did not do the same work, or a run lacks its method.
    """
    if not is_forced:
        require_same_work(reference.header, subject.header)
    runs = _Measured(reference), _Measured(subject)
    for run, method in zip(reversed(runs), methods, strict=True):
        if method not in run.methods:
            raise unknown_name(f"method in run {run.info.id}", method, run.methods)
    own, other = methods
    compared = _Compared(*runs, {own: other}, bootstrap or Bootstrap())
    return compared.comparison(reference_method=other)


class _Measured:
    """A run with its measured completions by cell."""

    def __init__(self, run: Run) -> None:
        self.header = run.header
        self.info = read_header(run.header)
        self.has_phases = any(record.phases is not None for record in run.records)
        self.cells: dict[CellKey, dict[Completion, Record]] = defaultdict(dict)
        for record in filter(is_measured, run.records):
            key = record.key
            for task in (key.task, POOLED):
                self.cells[CellKey(key.method, key.temperature, task)][completion(record)] = record
        there = dict.fromkeys(key.method for key in self.cells)
        listed = [method.spelling for method in self.info.methods if method.spelling in there]
        ordered = dict.fromkeys([*listed, *there])
        self.methods = tuple(sorted(ordered, key=lambda method: method != BASELINE))
        self.temperatures = tuple(sorted({key.temperature for key in self.cells}))
        tasks = dict.fromkeys(key.task for key in self.cells if key.task)
        in_order = sorted(tasks, key=[*self.info.columns, *tasks].index)
        self.tasks = {task: self.info.columns.get(task, task) for task in in_order}

    def side(self, method: str, key: CellKey) -> Side:
        cells = (CellKey(name, key.temperature, key.task) for name in (method, BASELINE))
        return Side(*(self.cells.get(cell, {}) for cell in cells))


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two runs, and which method of the subject is held against which of the reference."""

    reference: _Measured
    subject: _Measured
    methods: Mapping[str, str]
    bootstrap: Bootstrap

    def comparison(self, *, reference_method: str | None = None) -> Comparison:
        headers = self.reference.header, self.subject.header
        temperatures = [t for t in self.reference.temperatures if t in self.subject.temperatures]
        tasks = {t: name for t, name in self.reference.tasks.items() if t in self.subject.tasks}
        return Comparison(
            reference=self.reference.info,
            subject=self.subject.info,
            methods=tuple(self.methods),
            temperatures=tuple(temperatures),
            tasks=tasks,
            cells=self._cells(temperatures, tasks),
            differences=work_differences(*headers),
            cautions=circumstances(*headers),
            unshared=() if reference_method else tuple(self._unshared()),
            reference_method=reference_method,
        )

    def _cells(
        self, temperatures: Iterable[float], tasks: Collection[str]
    ) -> dict[CellKey, CellPair]:
        draws = {task: Draws(self.bootstrap, task) for task in tasks}
        cells: dict[CellKey, CellPair] = {}
        if not tasks:
            return cells
        for temperature in temperatures:
            for method in self.methods:
                keys = [CellKey(method, temperature, task) for task in tasks]
                row = {key: self._cell(key, draws[key.task]) for key in keys}
                cells |= row
                cells[CellKey(method, temperature, MEAN)] = mean_cell([*row.values()])
                pooled = CellKey(method, temperature, POOLED)
                cells[pooled] = self._cell(pooled, None)
        return cells

    def _cell(self, key: CellKey, draws: Draws | None) -> CellPair:
        has_phases = self.subject.has_phases or self.reference.has_phases
        return pair_cell(
            self.subject.side(key.method, key),
            self.reference.side(self.methods[key.method], key),
            draws,
            WITH_PHASES if has_phases else None,
        )

    def _unshared(self) -> Iterator[str]:
        for run, other in ((self.reference, self.subject), (self.subject, self.reference)):
            alone = [run.info.method(m).label for m in run.methods if m not in other.methods]
            alone += [title for task, title in run.tasks.items() if task not in other.tasks]
            alone += [f"T={t:g}" for t in run.temperatures if t not in other.temperatures]
            if alone:
                yield f"only in {run.info.id}: {', '.join(alone)}"
