"""Predict the speedup of settings: steps replayed from a profile, times from a cost curve.

A speedup is defined as in reports: sums of seconds over the prompts of a task, prefill
included, vanilla's by the method's, and the mean over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specbench.analysis.stats import bootstrap
from specbench.analysis.stats.bootstrap import FloatArray, Variance
from specbench.errors import UserError
from specbench.measure.local.threads import FASTER
from specbench.measure.local.tuning import ROWS
from specbench.measure.methods import BASELINE, PATHS, RunMethod, parse_methods
from specbench.registry import MethodChoice
from specbench.tune.replay import BOUNDED, FREE, replay_counted
from specbench.tune.stored_cost import AGAIN, Curve
from specbench.tune.stored_profile import Profile, ProfiledMethod
from specbench.tune.walk import Walk, mat

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


class Weighed(NamedTuple):
    """Answers of one task: how often each cost is in the time of each sample [samples, k]."""

    task: str
    samples: tuple[str, ...]
    baseline: FloatArray
    own: FloatArray

    def of(self, samples: Collection[str]) -> Weighed:
        """The part of some samples."""
        kept = [place for place, name in enumerate(self.samples) if name in samples]
        names = tuple(self.samples[place] for place in kept)
        return Weighed(self.task, names, self.baseline[kept], self.own[kept])


class Estimated(NamedTuple):
    """A speedup with the variance of its logarithm, and the place of its number of threads."""

    speedup: float
    variance: Variance
    place: int
    seconds: float

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of the logarithm."""
        return bootstrap.quantile(self.variance.degrees) * math.sqrt(self.variance.value)


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
    check_pair(profile, curve)
    answers = tuple(
        one for one in profile.answers if prompts is None or one.about.prompt in prompts
    )
    part = replace(profile, answers=answers)
    if settings is None:
        is_strict = False
        settings = [one for label in curve.header.methods for one in candidates(profile, label)]
    found = []
    for setting in settings:
        try:
            found.append(_predict(part, curve, setting))
        except UserError:
            if is_strict:
                raise
    return found


def check_pair(profile: Profile, curve: Curve) -> None:
    """Raise UserError, with both values, unless they are of one model, format and temperature."""
    own, about = profile.header, curve.header.about
    wanted = {
        "model": own.model.name,
        "dtype": own.model.dtype,
        "quantization": own.model.quantization,
        "temperature": str(own.sampling),
    }
    found = [
        f"  {name}: {one or 'none'} in the profile, {about[name] or 'none'} in the curve"
        for name, one in wanted.items()
        if one != about[name]
    ]
    if found:
        message = "\n".join(["The profile and the cost curve do not fit together:", *found])
        raise UserError(message, "Make both with the same --model, --dtype and --temperature.")


def _predict(profile: Profile, curve: Curve, setting: str) -> Prediction:
    (method,) = parse_methods([setting])
    label, options = label_of(curve, method), asdict(method.options)
    found = replay_counted(profile, setting)
    one = estimate(weigh(found.walks, curve, label, options), curve, label)
    return Prediction(
        method=method.method.name,
        settings=setting,
        options={name: options[name] for name in method.asked.given},
        speedup=one.speedup,
        low=one.speedup * math.exp(-one.half_width),
        high=one.speedup * math.exp(one.half_width),
        mat=mat(found.walks),
        threads=curve.header.threads[one.place],
        seconds=one.seconds * curve.header.vanilla_s,
        missed=found.num_missed / max(1, found.num_expanded),
        machine=curve.header.about["machine"],
    )


def label_of(curve: Curve, method: RunMethod) -> str:
    """The spelling under which a curve has a method.

    Raises:
        UserError: the curve lacks the method, or has it with other weights.
    """
    for label in curve.header.methods:
        (own,) = parse_methods([label])
        if own.method.name == method.method.name:
            mine, theirs = (getattr(one.options, "weights", "") for one in (method, own))
            if Path(mine).name == Path(theirs).name:
                return label
    listed = ", ".join(curve.header.methods) or "none"
    raise UserError(f"The cost curve has no {method.label}, only {listed}.", AGAIN)


def weigh(
    walks: Sequence[Walk], curve: Curve, label: str, options: Mapping[str, Any]
) -> list[Weighed]:
    """The walks of each task, a row a sample: the turns of one depend on each other."""
    rows: dict[str, dict[str, list[tuple[FloatArray, FloatArray]]]] = {}
    for walk in walks:
        task = walk.prompt.partition("/")[0]
        pair = (curve.weights(None, {}, walk), curve.weights(label, options, walk))
        sample = walk.prompt.rpartition("/")[0]
        rows.setdefault(task, {}).setdefault(sample, []).append(pair)
    found = []
    for task, samples in rows.items():
        sides = (
            np.stack([sum(pair[i] for pair in one) for one in samples.values()]) for i in (0, 1)
        )
        found.append(Weighed(task, tuple(samples), *sides))
    return found


def estimate(tasks: Sequence[Weighed], curve: Curve, label: str) -> Estimated:
    """The mean speedup over tasks, with the threads that a run would choose."""
    costs = [curve.costs(label, i, NUM_RESAMPLES) for i in range(len(curve.header.threads))]
    seconds = [float(sum(one.own.sum(0) @ each[0] for one in tasks)) for each in costs]
    place = min(range(len(costs)), key=lambda i: seconds[i] * (FASTER if i else 1))
    drawn, head = _speedups(tasks, curve, costs[place]), curve.header
    samples = sum(len(one.samples) for one in tasks)
    degrees = max(1, samples - len(tasks))
    wider = samples / degrees  # drawing from n clusters has the variance of dividing by n
    prompts = Variance(float(np.log(drawn[1:]).var()) * wider, degrees)
    variance = bootstrap.total([prompts, Variance(head.process, max(1, head.num_pairs))])
    return Estimated(float(drawn[0]), variance, place, seconds[place])


@cache
def _draws(task: str) -> bootstrap.Draws:
    return bootstrap.Draws(bootstrap.Bootstrap(NUM_RESAMPLES), f"tune/{task}")


def _speedups(tasks: Sequence[Weighed], curve: Curve, own: FloatArray) -> FloatArray:
    """The mean speedup over tasks and its resamples [1 + resamples], by the costs of a method.

    Prompts and blocks of the curve are drawn together; both sides of a ratio have the same.
    """
    baseline = curve.costs(None, 0, NUM_RESAMPLES)
    ratios = []
    for one in tasks:
        draws, times = _draws(one.task), []
        for weights, costs in ((one.baseline, baseline), (one.own, own)):
            sums = np.vstack([weights.sum(0), draws.sums(weights)])
            times.append((sums * costs).sum(1))
        ratios.append(times[0] / times[1])
    return np.asarray(np.mean(ratios, axis=0))


def candidates(profile: Profile, label: str) -> list[str]:
    """The settings of a profiled method that are tried, the paper's first.

    Those outside of the profile are left out.
    """
    recorded = profile.header.methods[label]
    if label == BASELINE:
        return []
    spelled = dict.fromkeys(spelling(profile, label, one) for one in ({}, *_grid(recorded)))
    return [one for one in spelled if _fits(recorded, one)]


def spelling(profile: Profile, label: str, values: Mapping[str, Any]) -> str:
    """A setting of a profiled method on the command line, with paths, which labels lack."""
    recorded, (method,) = profile.header.methods[label], parse_methods([label])
    free = FREE.get(recorded.kind, ("num_tokens",))
    kept = {
        name: recorded.about.options[name] if name in PATHS else value
        for name, value in method.asked.given.items()
        if name not in free
    }
    given = {name: str(value) for name, value in (kept | dict(values)).items()}
    return str(MethodChoice(method.method.name, given))


def _grid(recorded: ProfiledMethod) -> Iterator[dict[str, Any]]:
    options = recorded.about.options
    if recorded.kind == "pool":
        for depth in DEPTHS:
            for top_k in (1, 2, 4, 6, 10):
                size = 1 + top_k + depth * top_k**2
                for nodes in ROWS:
                    if depth + 2 <= nodes <= size:
                        yield {"total_tokens": nodes, "depth": depth, "top_k": top_k}
    elif recorded.kind == "ranks":
        yield from ({"nodes": nodes} for nodes in ROWS if nodes > 1)
    elif recorded.kind == "text":
        yield from ({"num_tokens": number} for number in COPIED if "num_tokens" in options)
    else:
        schedule = {"schedule": "constant"} if "schedule" in options else {}
        yield from ({"num_tokens": number, **schedule} for number in CHAINS)


def _fits(recorded: ProfiledMethod, setting: str) -> bool:
    (method,) = parse_methods([setting])
    own = recorded.about.options
    bounded = BOUNDED.get(recorded.kind, ())
    return all(getattr(method.options, name) <= own[name] for name in bounded)
