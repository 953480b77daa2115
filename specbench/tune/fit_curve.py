"""Make a cost curve from the measurements of a bench."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from specbench.analysis.stats.arrays import FloatArray
from specbench.engine.tree import padded_size
from specbench.settings import grids
from specbench.settings.cost_curve import Curve, MethodCost
from specbench.settings.cost_model import CostModel
from specbench.tune.bench import NUM_WARMUP_STEPS, STEPS_PER_VISIT, Bench, Visit
from specbench.tune.kind import Kind

if TYPE_CHECKING:
    from pandas import DataFrame

NUM_DIGITS = 6
"""The number of significant digits of times in a file."""
TRIMMED = 0.25
"""The share of the shortest, and of the longest, times that a mean leaves out, so that a few
disturbed steps do not matter.
"""


class MeasuredKind(NamedTuple):
    """A method's kind of profile, and the knots of its cost."""

    kind: Kind
    knots: Sequence[dict[str, int]]
    """The points of the curve. Each has a value on every axis of the kind."""


def fit_curve(bench: Bench, about: dict[str, str], methods: Mapping[str, MeasuredKind]) -> Curve:
    """Make the cost curve from the times of all blocks.

    Args:
        bench: has measured at least one block.
        about: the machine, the target and the versions, by name.
        methods: by label of each method: its kind, and the knots of its curve.
    """
    lengths = tuple(len(request.prompt_ids) for request in bench.requests)
    curve = Curve(
        about=about,
        vanilla_s=median(bench.vanilla_s),
        threads=bench.thread_counts,
        rows=grids.STEP_ROWS,
        lengths=lengths,
        most_context=lengths[-1] + STEPS_PER_VISIT - 1,
        steps=_nested(bench.steps),
        prefill=_nested(bench.prefill),
        num_pairs=len(methods),
    )
    # The bench has the times of drafts and prefills as ratios to vanilla's step at the same length,
    # a few tokens after the prompt. The curve has all times in vanilla's steps at the middle
    # length; `units` has vanilla's step at each length in this unit [lengths].
    model = CostModel(curve)
    contexts = np.array(lengths) + (NUM_WARMUP_STEPS + STEPS_PER_VISIT - 1) // 2
    units = model.step(model.costs(None, 0), [1] * len(lengths), contexts)
    visits = {
        label: [visit for visit in bench.visits if visit.size.label == label] for label in methods
    }
    return msgspec.structs.replace(
        curve,
        prefill=_nested(np.array(bench.prefill) * units),
        methods={
            label: _method_cost(methods[label], bench, model, units, visits[label])
            for label in methods
        },
        process=variance_of_pairs([_log_difference(visits[label]) for label in methods]),
    )


def _method_cost(
    measured: MeasuredKind,
    bench: Bench,
    model: CostModel,
    units: FloatArray,
    visits: Sequence[Visit],
) -> MethodCost:
    """Compute the times that a method adds, in vanilla's steps at the middle length.

    The time added to a step is the step's time without the target's part, by block, number of
    threads and knot. The time added to a prefill is by block and length.

    Args:
        measured: the method's kind of profile, and the knots of its curve.
        bench: has measured all blocks.
        model: computes the target's time of a step from its rows and its context.
        units: time of vanilla's step at each prompt length, in vanilla's steps at the middle length
            [lengths]. The times in a visit are ratios to this step.
        visits: all completions with the method's drafters: the time of each step, its rows (nodes
            of the tree), its context (tokens before it), and the extra time of the prefill.
    """
    from scipy.stats import trim_mean

    # one of the method's drafters, which differ only in the size of their drafts
    drafter = next(size.drafter for size in bench.sizes if size.label == visits[0].size.label)
    # CUDA graphs pad trees to a few sizes, unless all trees of the drafter have the same size.
    is_padded = bench.target.execution.is_static and not drafter.has_fixed_size
    # a row per step, with the columns block, thread, length, size (indices), ratio, rows, context
    steps = _steps_of(visits)
    num_nodes = steps["rows"].to_numpy()  # of each step's tree [steps]
    steps["knot"] = measured.kind.knot_numbers(steps["size"].to_numpy(), num_nodes)
    # rows that the target computes [steps]
    padded_rows = [padded_size(rows) for rows in num_nodes] if is_padded else num_nodes
    thread_indices = range(len(bench.thread_counts))
    # The target's time of each step with every number of threads [threads, steps]; `costs(None)`
    # are of the target without a method.
    target_times = np.array(
        [
            model.step(model.costs(None, thread_index), padded_rows, steps["context"])
            for thread_index in thread_indices
        ]
    )
    # with the number of threads that the step had [steps]
    target_parts = target_times[steps["thread"], range(len(steps))]
    steps["draft"] = steps["ratio"] * units[steps["length"]] - target_parts
    trimmed_mean = partial(trim_mean, proportiontocut=TRIMMED)
    # [blocks * threads, knots]
    drafts = steps.pivot_table("draft", ["block", "thread"], "knot", aggfunc=trimmed_mean)
    # Drafts from text have a knot for steps with a match, and a knot for steps without a match. If
    # a block has no step of one knot, it gets the time of the other.
    num_knots = len(measured.knots)
    drafts = drafts.reindex(columns=range(num_knots)).bfill(axis=1).ffill(axis=1)
    shape = (len(bench.steps), len(thread_indices), num_knots)  # an entry of `steps` per block
    return MethodCost(
        kind=measured.kind.name,
        is_padded=is_padded,
        knots=tuple(measured.knots),
        draft=_nested(np.reshape(drafts.to_numpy(), shape)),
        start=_nested(_added_to_prefills(visits, units)),
    )


def _added_to_prefills(visits: Sequence[Visit], units: FloatArray) -> FloatArray:
    """Compute the median time that a method adds to prefills [blocks, lengths].

    The median is over the method's visits. Times are in vanilla's steps at the middle length.
    `units` has vanilla's step at each length in this unit [lengths].
    """
    import pandas as pd

    added_times = pd.DataFrame(
        {
            "block": [visit.block for visit in visits],
            "length": [visit.length_index for visit in visits],
            "added": [visit.start * units[visit.length_index] for visit in visits],
        }
    )
    return added_times.pivot_table("added", "block", "length", aggfunc="median").to_numpy()


def _steps_of(visits: Sequence[Visit]) -> DataFrame:
    """Make a frame with a row per measured step, in the order of the visits.

    The columns are `block`; `thread`, `length` and `size`, which are indices; `ratio`, the step's
    time / vanilla's; `rows`, the nodes of the tree; `context`, the tokens before the step.
    """
    import pandas as pd

    num_steps = [len(visit.ratios) for visit in visits]
    return pd.DataFrame(
        {
            "block": np.repeat([visit.block for visit in visits], num_steps),
            "thread": np.repeat([visit.thread_index for visit in visits], num_steps),
            "length": np.repeat([visit.length_index for visit in visits], num_steps),
            "size": np.repeat([visit.size.number for visit in visits], num_steps),
            "ratio": [*chain.from_iterable(visit.ratios for visit in visits)],
            "rows": [*chain.from_iterable(visit.rows for visit in visits)],
            "context": [*chain.from_iterable(visit.contexts for visit in visits)],
        }
    )


def variance_of_pairs(differences: Sequence[float]) -> float:
    """Compute the variance of a setting's log(time) from differences between equal settings."""
    if not differences:
        return 0.0
    # var(a - b) = 2 * var(a)
    return math.fsum(difference**2 for difference in differences) / (2 * len(differences))


def _log_difference(visits: Sequence[Visit]) -> float:
    """Compute the mean log(time of a step) of one drafter of the largest size, less the other's."""
    import pandas as pd

    largest = max(visit.size.number for visit in visits)  # index of the largest size
    largest_visits = [visit for visit in visits if visit.size.number == largest]
    logs = pd.Series([math.log(median(visit.ratios)) for visit in largest_visits])
    means = logs.groupby([visit.size.copy for visit in largest_visits]).mean()  # by copy: 0, 1
    return float(means[0] - means[1])


def _nested(numbers: Iterable[Any]) -> Any:
    """Turn numbers into nested tuples, rounded to `NUM_DIGITS`."""
    return tuple(
        float(f"{number:.{NUM_DIGITS}g}") if isinstance(number, float) else _nested(number)
        for number in numbers
    )
