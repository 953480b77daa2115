"""Whether speedups are the same in every pass over the prompts (`--repeats`).

A pass asks the same prompts at another time. What differs between passes by more than chance is the
machine's doing, and no interval over prompts holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from specbench.analysis.columns import completion
from specbench.analysis.homogeneity import holm
from specbench.analysis.stats import FloatArray
from specbench.types import Record

ALPHA = 0.01
LEAST_SPREAD = 0.03
"""A speedup that moves less than this between passes is as steady as one can ask for."""
_LEAST_PROMPTS = 8


@dataclass(frozen=True, slots=True)
class Passes:
    """The speedups of a method in each pass, and how probable it is that chance alone parts them so
    far.
    """

    method: str
    temperature: float
    speedups: tuple[float, ...]
    p_value: float


def moved(baseline: str, measured: Iterable[Record]) -> list[Passes]:
    """The methods whose speedup differs from pass to pass, by claims that are together wrong with a
    probability of at most `ALPHA` where nothing moves.
    """
    by_method: dict[tuple[str, float], dict[tuple[str, str, int], dict[int, Record]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for record in measured:
        task, sample, turn, repeat = completion(record)
        own = by_method[record.key.method, record.key.temperature]
        own[task, sample, turn][repeat] = record
    found = []
    for (method, temperature), own in by_method.items():
        base = by_method.get((baseline, temperature))
        if method != baseline and base is not None:
            passes = _passes(base, own)
            if passes is not None:
                found.append(Passes(method, temperature, *passes))
    corrected = holm([passes.p_value for passes in found])
    return [
        passes
        for passes, p_value in zip(found, corrected, strict=True)
        if p_value < ALPHA and max(passes.speedups) > (1 + LEAST_SPREAD) * min(passes.speedups)
    ]


def _passes(
    base: Mapping[tuple[str, str, int], Mapping[int, Record]],
    own: Mapping[tuple[str, str, int], Mapping[int, Record]],
) -> tuple[tuple[float, ...], float] | None:
    """The speedup in each pass over what both finished in all of them, and the p-value."""
    passes = range(1 + max(repeat for done in own.values() for repeat in done))
    complete = [
        key
        for key, done in own.items()
        if all(i in done and i in base.get(key, {}) for i in passes)
    ]
    if len(passes) < 2 or len(complete) < _LEAST_PROMPTS:
        return None
    # [2, prompts, passes], of seconds and of tokens
    pairs = [[[side[key][i] for i in passes] for key in complete] for side in (base, own)]
    seconds = np.array([[[_wall_s(r) for r in row] for row in side] for side in pairs])
    tokens = np.array([[[len(r.token_ids) for r in row] for row in side] for side in pairs])
    rates = tokens.sum(1) / seconds.sum(1)
    logs = np.log(tokens / seconds)
    return tuple((rates[1] / rates[0]).tolist()), _p_value(logs[1] - logs[0])


def _wall_s(record: Record) -> float:
    return (record.prefill_s or 0.0) + (record.decode_s or 0.0)


def _p_value(values: FloatArray) -> float:
    """Of the hypothesis that no column of [prompts, passes] tends to be larger than another.

    Friedman's test as Conover and Iman 1981 give it: an analysis of variance of the ranks that the
    passes have within each prompt. Outliers weigh no more than others.
    """
    from scipy.special import fdtrc

    num_prompts, num_passes = values.shape
    ranks = values.argsort(1).argsort(1) - (num_passes - 1) / 2
    means = ranks.mean(0)
    between = num_prompts * float((means**2).sum())
    within = float(((ranks - means) ** 2).sum())
    degrees = num_passes - 1, (num_passes - 1) * (num_prompts - 1)
    if within == 0.0:
        return 1.0 if between == 0.0 else 0.0
    return float(fdtrc(*degrees, between / degrees[0] / (within / degrees[1])))
