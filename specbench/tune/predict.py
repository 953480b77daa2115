"""Predict the speedup of settings: steps replayed from a profile, times from a cost curve.

A speedup is defined as in reports: sums of seconds over the prompts of a task, prefill
included, vanilla's by the method's, and the mean over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.variance import Variance, total
from specbench.errors import UserError
from specbench.measure.local.threads import FASTER
from specbench.registry import MethodChoice
from specbench.report.plots.style import EDGE, INK, LINE, Plot, frame, points, shades, tiles
from specbench.settings.quick_rule import ROWS
from specbench.settings.run_method import PATHS, RunMethod, parse_methods
from specbench.tune.cost import AGAIN, Curve
from specbench.tune.profile import Profile, ProfiledMethod, check_same
from specbench.tune.replay import FREE, Walk, mat, misfit, replay

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

NUM_RESAMPLES = 500
DEPTHS, CHAINS, COPIED = (0, 1, 2, 3, 5, 7), (1, 2, 3, 4, 6, 8, 12), (1, 2, 3, 4, 6, 10, 16, 24)
"""Depths of dynamic trees, tokens of chains and of copied text that are tried."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speedup of a setting over all tasks, with its 95 % interval."""

    method: str
    """Registered name."""
    settings: str
    """Its spelling on the command line."""
    options: dict[str, Any]
    """Options that are tuned."""
    speedup: float
    low: float
    high: float
    mat: float
    threads: int
    """CPU threads that it decodes with."""
    seconds: float
    """Seconds of all its answers."""
    missed: float
    """Share of a dynamic tree's expansions that the profile lacks."""
    machine: str
    """Where the cost curve was measured."""


class Estimated(NamedTuple):
    """A speedup, half of its logarithm's 95 % interval, and the place of its threads."""

    speedup: float
    half_width: float
    place: int
    seconds: float


def predict(
    profile: Profile,
    curve: Curve,
    settings: Sequence[str] | None = None,
    *,
    prompts: Collection[str] | None = None,
    is_strict: bool = True,
) -> list[Prediction]:
    """The speedup of settings on the machine of a cost curve, in their order.

    `predict(profile, curve, ["eagle2:total_tokens=12,depth=3,top_k=4", "pld"])`

    Args:
        profile: of the same model, number format and temperature.
        curve: of one machine.
        settings: methods with options; by default all of `candidates`.
        prompts: names of the answers to predict for; by default all.
        is_strict: False leaves out settings outside of profile or curve, as among `candidates`.

    Raises:
        UserError: profile and curve do not fit together, or a setting is outside of one of them.
    """
    model, names = profile.header.model, ("model", "dtype", "quantization", "temperature")
    own = model.name, model.dtype, model.quantization, str(profile.header.sampling)
    check_same(
        "The profile and the cost curve do not fit together:",
        ("in the profile", "in the curve"),
        ((name, one, curve.about[name]) for name, one in zip(names, own, strict=True)),
        "Make both with the same --model, --dtype and --temperature.",
    )
    answers = tuple(
        one for one in profile.answers if prompts is None or one.about.prompt in prompts
    )
    part = replace(profile, answers=answers)
    if settings is None:
        is_strict = False
        settings = [one for label in curve.methods for one in candidates(profile, label)]
    found, left_out = [], () if is_strict else (UserError,)
    for setting in settings:
        with suppress(*left_out):
            found.append(_predict(part, curve, setting))
    return found


def _predict(profile: Profile, curve: Curve, setting: str) -> Prediction:
    (method,) = parse_methods([setting])
    label, options = label_of(curve, method), asdict(method.options)
    walks = replay(profile, setting)
    one = estimate(weigh(walks, curve, label, options), curve, label)
    expanded = sum(walk.num_expanded for walk in walks)
    return Prediction(
        method=method.method.name,
        settings=setting,
        options={name: options[name] for name in method.asked.given},
        speedup=one.speedup,
        low=one.speedup * math.exp(-one.half_width),
        high=one.speedup * math.exp(one.half_width),
        mat=mat(walks),
        threads=curve.threads[one.place],
        seconds=one.seconds * curve.vanilla_s,
        missed=sum(walk.num_missed for walk in walks) / max(1, expanded),
        machine=curve.about["machine"],
    )


def label_of(curve: Curve, method: RunMethod) -> str:
    """The spelling under which a curve has a method.

    Raises:
        UserError: the curve lacks the method, or has it with other weights.
    """
    for label in curve.methods:
        (own,) = parse_methods([label])
        if own.method.name == method.method.name:
            mine, theirs = (getattr(one.options, "weights", "") for one in (method, own))
            if Path(mine).name == Path(theirs).name:
                return label
    listed = ", ".join(curve.methods) or "none"
    raise UserError(f"The cost curve has no {method.label}, only {listed}.", AGAIN)


def weigh(walks: Sequence[Walk], curve: Curve, label: str, options: Mapping[str, Any]) -> DataFrame:
    """The weight of each cost in the time of vanilla ("baseline") and of a setting ("own").

    A row is a sample, "task/sample_id": its turns depend on each other.
    """
    import pandas as pd

    samples = [walk.prompt.rpartition("/")[0] for walk in walks]
    weights = {
        "baseline": [curve.weights(None, {}, walk.vanilla) for walk in walks],
        "own": [curve.weights(label, options, walk) for walk in walks],
    }
    sides = {side: pd.DataFrame(np.stack(rows), samples) for side, rows in weights.items()}
    return pd.concat(sides, axis=1).groupby(level=0, sort=False).sum()


def estimate(weighed: DataFrame, curve: Curve, label: str) -> Estimated:
    """The mean speedup over tasks, with the threads that a run would choose."""
    costs = [curve.costs(label, i, NUM_RESAMPLES) for i in range(len(curve.threads))]
    seconds = [float(weighed["own"].to_numpy().sum(0) @ each[0]) for each in costs]
    place = min(range(len(costs)), key=lambda i: seconds[i] * (FASTER if i else 1))
    ratios = _speedups(weighed, curve, costs[place])
    drawn, samples = np.mean(ratios, axis=0), len(weighed)
    degrees = max(1, samples - len(ratios))
    # drawing from n clusters has the variance of dividing by n
    prompts = Variance(float(np.log(drawn[1:]).var()) * (samples / degrees), degrees)
    variance = total([prompts, Variance(curve.process, max(1, curve.num_pairs))])
    half_width = quantile(variance.degrees) * math.sqrt(variance.value)
    return Estimated(float(drawn[0]), half_width, place, seconds[place])


@cache
def _draws(task: str) -> Draws:
    return Draws(Bootstrap(NUM_RESAMPLES), f"tune/{task}")


def _speedups(weighed: DataFrame, curve: Curve, own: FloatArray) -> list[FloatArray]:
    """The speedup of each task and its resamples [1 + resamples], by the costs of a method.

    Prompts and blocks of the curve are drawn together; both sides of a ratio have the same.
    """
    sides = {"baseline": curve.costs(None, 0, NUM_RESAMPLES), "own": own}
    ratios = []
    for task, rows in weighed.groupby(lambda sample: sample.partition("/")[0], sort=False):
        times = []
        for side, costs in sides.items():
            weights = rows[side].to_numpy()
            sums = np.vstack([weights.sum(0), _draws(str(task)).sums(weights)])
            times.append((sums * costs).sum(1))
        ratios.append(times[0] / times[1])
    return ratios


def candidates(profile: Profile, label: str) -> list[str]:
    """The settings of a profiled method that are tried, the paper's first.

    Those outside of the profile are left out.
    """
    recorded = profile.header.methods[label]
    spelled = dict.fromkeys(spelling(profile, label, one) for one in ({}, *_grid(recorded)))
    return [one for one in spelled if not misfit(label, recorded, *parse_methods([one]))]


def spelling(profile: Profile, label: str, values: Mapping[str, Any]) -> str:
    """A setting of a profiled method on the command line, with paths, which labels lack."""
    recorded, (method,) = profile.header.methods[label], parse_methods([label])
    kept = {
        name: recorded.about.options[name] if name in PATHS else value
        for name, value in method.asked.given.items()
        if name not in FREE[recorded.kind]
    }
    given = {name: str(value) for name, value in (kept | dict(values)).items()}
    return str(MethodChoice(method.method.name, given))


def _grid(recorded: ProfiledMethod) -> Iterator[dict[str, Any]]:
    options = recorded.about.options
    if recorded.kind == "pool":
        for depth, top_k, nodes in product(DEPTHS, (1, 2, 4, 6, 10), ROWS):
            if depth + 2 <= nodes <= 1 + top_k + depth * top_k**2:
                yield {"total_tokens": nodes, "depth": depth, "top_k": top_k}
    elif recorded.kind == "ranks":
        yield from ({"nodes": nodes} for nodes in ROWS if nodes > 1)
    elif recorded.kind == "text":
        yield from ({"num_tokens": number} for number in COPIED if "num_tokens" in options)
    else:
        schedule = {"schedule": "constant"} if "schedule" in options else {}
        yield from ({"num_tokens": number, **schedule} for number in CHAINS)


def prediction_frame(predictions: Iterable[Prediction]) -> DataFrame:
    """One row a setting, with the fields of `Prediction` but `options`."""
    import pandas as pd

    names = [name for name in Prediction.__slots__ if name != "options"]
    return pd.DataFrame([asdict(one) for one in predictions], columns=names)


def heat_map(predictions: Sequence[Prediction]) -> Plot | None:
    """The best speedup of one method by nodes and depth, over all top-k; None without trees."""
    import pandas as pd

    names = ("depth", "total_tokens")
    trees = [one for one in predictions if {*names} <= {*one.options}]
    if not trees:
        return None
    tried = pd.DataFrame([one.options | {"speedup": one.speedup} for one in trees])
    cells = tried.pivot_table("speedup", *names, aggfunc="max")
    name, title = predictions[0].method, f"Predicted speedup of {predictions[0].method}"

    def draw() -> Figure:
        drawn, (axes,) = tiles(title, predictions[0].machine, 1, height=3.4)
        values = cells.to_numpy()
        axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                dark = value < (np.nanmin(values) + np.nanmax(values)) / 2
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(column, row, f"{value:.2f}", color="white" if dark else INK, **style)
        axes.set_xticks(range(len(cells.columns)), cells.columns.map(str))
        axes.set_yticks(range(len(cells)), cells.index.map(str))
        frame(axes, x="nodes", y="depth")
        axes.grid(visible=False)
        return drawn

    best = max(trees, key=lambda one: one.speedup)
    depth, nodes = (best.options[name] for name in names)
    alt = f"Heat map. The best is {best.speedup:.2f} with {nodes} nodes and depth {depth}."
    caption = "Each cell has the top-k that is best there."
    return Plot(f"heat_map_{name}", title, alt, caption, draw)


def agreement(found: Sequence[tuple[Prediction, float]]) -> Plot | None:
    """Measured speedups against predictions, a point a setting; None without any."""
    if not found:
        return None
    title = "Predicted and measured speedup"

    def draw() -> Figure:
        looks = shades(sorted(about.method for about, _ in found))
        handles = points(looks.values(), has_line=False)
        drawn, (axes,) = tiles(title, found[0][0].machine, 1, height=4.2, handles=handles)
        for about, value in found:
            ends = [[about.speedup - about.low], [about.high - about.speedup]]
            axes.errorbar(about.speedup, value, xerr=ends, color=EDGE, elinewidth=0.8)
            axes.plot(about.speedup, value, linestyle="", markersize=7, **looks[about.method].point)
        most = max(max(about.high, value) for about, value in found) * 1.05
        axes.plot([0, most], [0, most], **LINE)
        axes.axis((0, most, 0, most))
        frame(axes, x="predicted", y="measured", grid="both")
        return drawn

    away = sorted(abs(value / about.speedup - 1) for about, value in found)
    alt = f"Scatter plot of {len(found)} settings. Median error {away[len(away) // 2]:.1%}."
    caption = "On the dashed line, a setting is as fast as predicted. Bars: 95 % intervals."
    return Plot("predicted_and_measured", title, alt, caption, draw)
