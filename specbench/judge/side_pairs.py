"""The loads, temperatures and methods of two runs that are paired for explanations."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from specbench.analysis.records import BASELINE
from specbench.errors import UserError, unknown_name
from specbench.judge.explained_sides import CountedRun, SideKey
from specbench.log.run import Load, Run

T = TypeVar("T")


def _shared_or_only(values_of_sides: Sequence[Sequence[T]]) -> list[tuple[T, ...]]:
    """The values that all sides have, each repeated per side. If the sides share no value but have
    a single value each, these values are paired; otherwise the list is empty.
    """
    shared = [
        value
        for value in values_of_sides[0]
        if all(value in side_values for side_values in values_of_sides)
    ]
    if not shared and all(len(side_values) == 1 for side_values in values_of_sides):
        return [tuple(side_values[0] for side_values in values_of_sides)]
    return [(value,) * len(values_of_sides) for value in shared]


def pair_loads(runs: Sequence[Run], loads: tuple[Load, Load] | None) -> list[tuple[Load, ...]]:
    """Pairs of loads at which the runs are compared, each with a load per run.

    They are the chosen `loads`; or all loads that the runs share; or the only load of each run. For
    a single run, a pair has one load.

    Raises:
        UserError: a run was not measured at the load chosen for it, or the runs share no load and
            one of them has several.
    """
    for run, load in zip(runs, loads or (), strict=False):
        if load not in run.loads:
            texts = [other.text for other in run.loads]
            raise unknown_name(f"load in run {run.header.id}", load.text, texts)
    if loads:
        return [loads[: len(runs)]]
    if pairs := _shared_or_only([run.loads for run in runs]):
        return pairs
    all_texts = [", ".join(load.text for load in run.loads) for run in runs]
    raise UserError(
        f"The runs have no load in common: {' against '.join(all_texts)}.",
        "Choose one of each: --load 8 1.",
    )


def pair_keys(
    sides: Sequence[CountedRun], loads: Sequence[Load], methods: tuple[str, str] | None
) -> Iterator[tuple[SideKey, ...]]:
    """The pairs to explain at these loads: a method and a temperature of each run.

    Methods are paired by name, or by spelling if a run has several variants of a method.
    Vanilla, whose speedup is 1, is explained only if a run has no other method.
    """
    # of each side: methods by the label (name or spelling) that pairs them; and temperatures
    method_of_label: list[dict[str, str]] = []
    temperatures = []
    for side, method in zip(sides, methods or (None, None), strict=False):
        frame = side.tabled.table.frame
        measured = frame[frame["is_measured"]]
        names = measured["method"].unique().tolist()
        if method and method not in names:
            raise unknown_name(f"method in run {side.tabled.run.header.id}", method, names)
        spellings = [name for name in names if name != BASELINE] or names
        num_variants = Counter(spelling.partition(":")[0] for spelling in spellings)
        spelling_by_label = {}
        for spelling in spellings:
            name = spelling.partition(":")[0]
            spelling_by_label[name if num_variants[name] == 1 else spelling] = spelling
        method_of_label.append(spelling_by_label)
        temperatures.append(sorted({*measured["temperature"]}))
    shared_labels = set.intersection(*({*by_label} for by_label in method_of_label))
    method_pairs = [
        tuple(by_label[label] for by_label in method_of_label)
        for label in method_of_label[0]
        if label in shared_labels
    ]
    if methods:
        method_pairs = [methods[: len(sides)]]
    for temperature_pair in _shared_or_only(temperatures):
        for method_pair in method_pairs:
            yield tuple(map(SideKey, method_pair, temperature_pair, loads))
