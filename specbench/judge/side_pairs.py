"""Pair the loads, temperatures and methods of two runs for explanations."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from specbench.analysis.records import BASELINE
from specbench.errors import UserError, unknown_name
from specbench.judge.explained_sides import CountedRun, SideKey
from specbench.log.run import Load, Run

T = TypeVar("T")


def _shared_or_only(levels_of_runs: Sequence[Sequence[T]]) -> list[tuple[T, ...]]:
    """The levels (loads or temperatures) that all runs have, each as a tuple with an entry per run.

    If the runs share no level, but each has only one, the list is one tuple of these levels. In all
    other cases without a shared level, it is empty.
    """
    shared = [
        level for level in levels_of_runs[0] if all(level in levels for levels in levels_of_runs)
    ]
    if not shared and all(len(levels) == 1 for levels in levels_of_runs):
        return [tuple(levels[0] for levels in levels_of_runs)]
    return [(level,) * len(levels_of_runs) for level in shared]


def pair_loads(runs: Sequence[Run], loads: tuple[Load, Load] | None) -> list[tuple[Load, ...]]:
    """The loads (requests at once or per second) at which one or two runs are explained. Each entry
    has a load per run.

    If loads were chosen, they are the only entry. Otherwise the entries are all loads that the runs
    share or, if the runs share none, the only load of each run.

    Raises:
        UserError: a run was not measured at the load chosen for it. Or no load was chosen, the runs
            share none, and one of them has several.
    """
    for run, chosen in zip(runs, loads or (), strict=False):
        if chosen not in run.loads:
            available = [load.text for load in run.loads]
            raise unknown_name(f"load in run {run.header.id}", chosen.text, available)
    if loads:
        return [loads[: len(runs)]]  # for a single run, the first
    if pairs := _shared_or_only([run.loads for run in runs]):
        return pairs
    loads_of_runs = [", ".join(load.text for load in run.loads) for run in runs]
    raise UserError(
        f"The runs have no load in common: {' against '.join(loads_of_runs)}.",
        "Choose one of each: --load 8 1.",
    )


def pair_keys(
    runs: Sequence[CountedRun], loads: Sequence[Load], methods: tuple[str, str] | None
) -> Iterator[tuple[SideKey, ...]]:
    """Yield what to explain in one run, or in two runs that are compared: a tuple with a key for
    each run. A key is a method, a temperature and a load.

    There is a tuple for each temperature and method that the runs share. If they share no
    temperature but each has only one, these two are paired. If no temperatures or no methods can be
    paired, nothing is yielded.

    Args:
        runs: the runs, each at one load.
        loads: the load of each run.
        methods: the chosen method of each run, spelled as in records. None stands for all methods
            that the runs share by label. A label is a method's name, with its options if both runs
            have it with these, or if the run has several methods of this name.

    Raises:
        UserError: a run has no measured answer of the method chosen for it.
    """
    spellings_of_runs: list[list[str]] = []  # the methods of each run, spelled as in records
    temperatures_of_runs: list[list[float]] = []
    for run, chosen in zip(runs, methods or (None, None), strict=False):
        frame = run.tabled.table.frame  # a row per record
        measured = frame[frame["is_measured"]]  # rows with tokens and a time
        spellings = measured["method"].unique().tolist()
        if chosen and chosen not in spellings:
            raise unknown_name(f"method in run {run.tabled.run.header.id}", chosen, spellings)
        spellings_of_runs.append(spellings)
        temperatures_of_runs.append(sorted({*measured["temperature"]}))
    shared = set.intersection(*map(set, spellings_of_runs))
    # label -> method, in each run
    methods_of_runs = [_by_label(spellings, shared) for spellings in spellings_of_runs]
    method_pairs = [
        tuple(by_label[label] for by_label in methods_of_runs)
        for label in methods_of_runs[0]
        if all(label in by_label for by_label in methods_of_runs)
    ]
    if methods:
        method_pairs = [methods[: len(runs)]]
    for temperature_pair in _shared_or_only(temperatures_of_runs):
        for method_pair in method_pairs:
            yield tuple(map(SideKey, method_pair, temperature_pair, loads))


def _by_label(spellings: Sequence[str], shared: Collection[str]) -> dict[str, str]:
    """Label -> method of a run, spelled as in records. Labels pair the methods of two runs.

    A method is spelled NAME, or NAME:OPTIONS. The label is the name, or the spelling if all runs
    have it (`shared`), or if the run has several variants of this name. Vanilla, whose speedup is
    1, is left out if there are others.
    """
    explained = [spelling for spelling in spellings if spelling != BASELINE] or spellings
    names = [spelling.partition(":")[0] for spelling in explained]
    num_variants = Counter(names)
    return {
        name if num_variants[name] == 1 and spelling not in shared else spelling: spelling
        for name, spelling in zip(names, explained, strict=True)
    }
