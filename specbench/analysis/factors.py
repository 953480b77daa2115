"""Split a speedup, or the ratio of two speedups, into factors whose product is exact.

For one side (a method in a run), over pairs of its answer and vanilla's to the same request,

    S = (T / W) / (T0 / W0) = MAT / cost * prefill
    MAT = E / K    cost = (D / K) / (D0 / K0)    prefill = (T / E * D / W) / (T0 / E0 * D0 / W0)
    printed number = S * prompts * counting * averaging * in flight

T are tokens, E tokens that steps emitted, K steps, W seconds of the request, D seconds of decoding.
0 marks vanilla's numbers. A step of vanilla emits one token. The printed number is a report's or an
imported file's. The factors lead from it back to the sums over the shared pairs:

1. averaging: the printed number / S of the sums over all pairs;
2. counting: S of all pairs by the side's own counts of tokens / by our counts;
3. prompts: S over all pairs / over the prompts and turns that both sides have;
4. MAT, cost and prefill of the shared pairs.

A throughput is T / B = (T / W) * in flight, with in flight = W / B. B are seconds of blocks: the
requests that a server completed together. Each answer has a part of its block's seconds. The
product is exact by construction, so it proves no cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from specbench.analysis.answer_pairs import AnswerPairs
from specbench.analysis.drawn_sums import DrawnPrompts, Sums, draw_prompts, undrawn
from specbench.analysis.printed_numbers import PRINTED_NUMBERS, over_tasks, speedup
from specbench.analysis.ratios import complete_units
from specbench.analysis.stats.arrays import BoolArray, FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, with_interval
from specbench.analysis.stats.variance import of_groups

IN_FLIGHT = "in flight"
AVERAGING = "averaging"
COUNTING = "counting"
PROMPTS = "prompts"
MAT = "MAT"
COST = "cost"
PER_TOKEN = "seconds per token"
PREFILL = "prefill"
STEP = "method's step"
BASE_STEP = "baseline's step"
FACTORS = (AVERAGING, IN_FLIGHT, COUNTING, PROMPTS, MAT, COST, PER_TOKEN, PREFILL)
"""All factors, in order. `PER_TOKEN` replaces `MAT` and `COST` if steps are unknown."""
WITHOUT_TIMES = (COUNTING, MAT)
"""The factors that depend only on counts, and so not on the machine."""
LESS_IS_FASTER = (COST, PER_TOKEN, STEP)
"""Numbers that lower the speedup as they grow. The effect of such a factor is the inverse ratio."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of the ratio subject / reference, or of the subject's own speedup."""

    name: str
    subject: float
    """The value for the subject. A high cost gives a low `effect`."""
    reference: float | None
    """The value for the reference; None if the subject is explained alone."""
    effect: Estimate
    """The number by which the factor multiplies the ratio, with its interval."""


@dataclass(frozen=True, slots=True)
class Product:
    """A ratio as a product of factors."""

    subject: float
    """The printed number of the subject."""
    reference: float | None
    """The printed number of the reference; None if the subject is explained alone."""
    factors: tuple[Factor, ...]
    """The factors. `explain` gives them in the order of FACTORS."""
    steps: tuple[Factor, ...]
    """The parts of the cost: the method's step and the baseline's; empty if there is no cost."""
    num_shared: int
    """The number of turns of prompts that all sides have."""
    has_prefill: bool
    """False if the cost includes the prefill, since a side has only total times."""

    @property
    def ratio(self) -> float:
        """The subject's printed number / the reference's, or just the subject's if it is alone."""
        return self.subject / (1.0 if self.reference is None else self.reference)

    @property
    def remainder(self) -> float:
        """The ratio / the product of the factors: 1 except for rounding."""
        return self.ratio / math.prod(factor.effect.value for factor in self.factors)

    def effect(self, name: str) -> float:
        """Return the number by which a factor multiplies the ratio; 1 if the product lacks it."""
        return math.prod(factor.effect.value for factor in self.factors if factor.name == name)


class _Available(NamedTuple):
    """Flags: True for numbers that are known for all answers of all sides."""

    steps: bool
    prefill: bool
    blocks: bool
    emitted: bool
    """True if, on each side, steps of the method and of vanilla emitted tokens."""


def explain(
    subject: AnswerPairs,
    reference: AnswerPairs | None = None,
    *,
    is_one_run: bool = False,
    bootstrap: Bootstrap | None = None,
) -> Product:
    """Split the ratio of two sides' printed numbers, or one side's printed number, into factors.

    Both sides have a baseline, or neither has. If both come from one run (`is_one_run`), their
    passes are paired. Intervals are over prompts and, for times, over passes or runs (units).
    """
    sides = [subject] if reference is None else [subject, reference]
    turns_of_sides = [{*pairs.turns} for pairs in sides]  # prompts and turns of each side
    shared_turns = set.intersection(*turns_of_sides)
    # If the sides share no prompts, all prompts of each side count.
    counted_turns = shared_turns or set.union(*turns_of_sides)
    # for each side: True for the rows that count [rows]; and the side with only these rows
    is_counted = [np.array([turn in counted_turns for turn in pairs.turns]) for pairs in sides]
    counted = [pairs.where(rows) for pairs, rows in zip(sides, is_counted, strict=True)]
    available = _available(sides, counted)  # which numbers all sides have
    drawn = draw_prompts(sides, bootstrap or Bootstrap())
    degrees = drawn.degrees(counted)  # the resamples' degrees of freedom
    sides_with_rows = [*zip(sides, is_counted, strict=True)]  # pairs of a side and its flags
    with np.errstate(divide="ignore", invalid="ignore"):  # draws or passes without emitted tokens
        # For each side, two mappings: factor -> effect [1 + resamples], and
        # factor -> logarithm of the effect [units].
        effects = [_effects(*side, drawn, available) for side in sides_with_rows]
        logs = [_logs_of_units(*side, available) for side in sides_with_rows]

    def factor(name: str) -> Factor:
        """Make the factor of this name: subject's effect / reference's, with its interval."""
        effects_of_sides = [side_effects[name] for side_effects in effects]
        ratio = effects_of_sides[0] / (1.0 if reference is None else effects_of_sides[1])
        effect = Estimate(float(ratio[0]), resamples=ratio[1:], degrees=degrees)
        if name not in WITHOUT_TIMES:  # it depends on times, and so on the machine
            units = _units([side_logs[name] for side_logs in logs], is_one_run)
            effect = replace(effect, units=units, machine=of_groups(units))  # variance over units
        power = -1 if name in LESS_IS_FASTER else 1  # a cost is 1 / its effect
        numbers_of_sides = [float(side_effect[0]) ** power for side_effect in effects_of_sides]
        return Factor(
            name,
            subject=numbers_of_sides[0],
            reference=None if reference is None else numbers_of_sides[1],
            effect=with_interval(effect),
        )

    printed_numbers = [float(side_effects["printed"][0]) for side_effects in effects]
    return Product(
        subject=printed_numbers[0],
        reference=None if reference is None else printed_numbers[1],
        factors=tuple(factor(name) for name in FACTORS if name in effects[0]),
        steps=tuple(factor(name) for name in (STEP, BASE_STEP) if name in effects[0]),
        num_shared=len(shared_turns),
        has_prefill=available.prefill,
    )


def _available(sides: Sequence[AnswerPairs], counted: Sequence[AnswerPairs]) -> _Available:
    """Find the numbers that are known for all answers that count (`counted`).

    Seconds of blocks must be known for all answers (`sides`).
    """
    all_answers = [answers for pairs in counted for answers in (pairs.method, pairs.vanilla)]
    has_emitted = all(answers.emitted.sum() > 0 for answers in all_answers)
    # For each side: True if steps are unknown [rows]. An answer of a single token has no steps.
    steps_unknown = [np.isnan(pairs.method.steps) & (pairs.method.emitted > 0) for pairs in counted]
    return _Available(
        steps=has_emitted and not any(unknown.any() for unknown in steps_unknown),
        prefill=has_emitted and all(answers.decode_s.sum() > 0 for answers in all_answers),
        blocks=all(pairs.are_blocks_known for pairs in sides),
        emitted=has_emitted,
    )


def _effects(
    pairs: AnswerPairs, is_counted: BoolArray, drawn: DrawnPrompts, available: _Available
) -> dict[str, FloatArray]:
    """Compute the number by which each factor multiplies a side's printed number [1 + resamples].

    The keys are names of factors, and "printed" for the printed number itself. The module's
    docstring defines the factors. The first number of an array is without resampling. `is_counted`
    [rows] is True for the rows of `pairs` that count (see `explain`); `drawn` resamples the
    prompts.
    """
    by_task = drawn.sums(pairs)  # column -> [tasks, 1 + resamples]
    whole = over_tasks(by_task)  # column -> [1 + resamples], the sums over all rows
    counted = over_tasks(drawn.sums(pairs.where(is_counted)))  # the sums over rows that count
    printed = PRINTED_NUMBERS[pairs.arithmetic](by_task)  # by the side's way of averaging
    # S of all pairs, with the source's counts of tokens and with ours
    speedup_by_source = speedup(whole, "counted_tokens")
    our_speedup = speedup(whole, "tokens")
    effects = {AVERAGING: printed / speedup_by_source}
    effects[COUNTING] = speedup_by_source / our_speedup
    effects[PROMPTS] = our_speedup / speedup(counted, "tokens")
    effects |= _effects_of_steps(counted, available, pairs.step_unit_s)
    effects["printed"] = printed
    if available.blocks:  # the printed number is a throughput, or a ratio of two
        in_flight = whole["wall_s"] / whole["block_s"]  # W / B: requests at once, on average
        effects[IN_FLIGHT] = in_flight / (whole["base_wall_s"] / whole["base_block_s"])
        effects["printed"] = printed * effects[IN_FLIGHT]
    return effects


def _effects_of_steps(
    sums: Sums, available: _Available, step_unit_s: float
) -> dict[str, FloatArray]:
    """Compute the effects of MAT, cost, both steps and prefill on a speedup [1 + resamples].

    A higher cost lowers the speedup, so the effect of a cost is its inverse. The product of the
    effects of MAT, cost and prefill is the speedup; the product of the two steps' effects is the
    cost's. If steps are unknown, `PER_TOKEN` replaces MAT, cost and the two steps.

        effect of MAT = E / K    effect of cost = (D0 / K0) / (D / K)
        effect of prefill = (T / E * D / W) / (T0 / E0 * D0 / W0)

    The module's docstring explains the letters. If the prefill is not `available`, D is W; if
    emitted tokens are not, E is T.

    Args:
        sums: sums over the answers [1 + resamples], by column; vanilla's begin with "base_".
        available: tells which of the columns are known.
        step_unit_s: the unit in which the times of the two steps are given, in seconds.
    """
    decode = "decode_s" if available.prefill else "wall_s"
    emitted = "emitted" if available.emitted else "tokens"
    decode_s, base_decode_s = sums[decode], sums[f"base_{decode}"]  # D and D0
    # E and E0. Vanilla's steps emit a token each, so K0 = E0.
    num_emitted, base_emitted = sums[emitted], sums[f"base_{emitted}"]
    # T / E * D / W: all tokens per second / emitted tokens per second of decoding
    whole_per_decode = sums["tokens"] / num_emitted * decode_s / sums["wall_s"]
    base_whole_per_decode = sums["base_tokens"] / base_emitted * base_decode_s / sums["base_wall_s"]
    prefill = {PREFILL: whole_per_decode / base_whole_per_decode}
    base_step_s = base_decode_s / base_emitted
    if not available.steps:
        return {PER_TOKEN: num_emitted / decode_s * base_step_s, **prefill}
    step_s = decode_s / sums["steps"]
    return {
        MAT: num_emitted / sums["steps"],
        COST: base_step_s / step_s,
        STEP: step_unit_s / step_s,
        BASE_STEP: base_step_s / step_unit_s,
        **prefill,
    }


def _logs_of_units(
    pairs: AnswerPairs, is_counted: BoolArray, available: _Available
) -> Mapping[str, FloatArray]:
    """Compute the logarithm of each factor's effect in the units of a side: name -> [units].

    A unit is a pass over the prompts, or a run of a pool. The effects are over the turns of prompts
    that all complete units have. A unit gets NaN if it is incomplete, with half of all turns or
    fewer (such as an interrupted pass), or if it has no rows that count (`is_counted` [rows], see
    `explain`). A factor that the side lacks is NaN in all units.
    """
    # numbers of units and of turns of prompts, both from 0 [rows]
    units, unit_of_row = np.unique(pairs.units, return_inverse=True)
    number_of_turn = {turn: number for number, turn in enumerate({*pairs.turns})}
    turn_of_row = np.array([number_of_turn[turn] for turn in pairs.turns], dtype=np.intp)
    # `complete.has_row` is True for turns that all complete units have, even in incomplete units.
    complete = complete_units(unit_of_row, turn_of_row, len(units))
    # For each unit: factor -> effect, an array of one number. Empty for a unit that gets NaN.
    effects: list[dict[str, FloatArray]] = []
    for unit, is_complete in enumerate(complete.is_complete):
        is_in_unit = complete.has_row & (unit_of_row == unit)  # [rows]
        unit_pairs, is_unit_counted = pairs.where(is_in_unit), is_counted[is_in_unit]
        unit_effects: dict[str, FloatArray] = {}
        if is_complete and is_unit_counted.any():
            unit_effects = _effects(unit_pairs, is_unit_counted, undrawn(unit_pairs), available)
        effects.append(unit_effects)
    unknown = np.full(1, np.nan)
    return {
        name: np.log([unit_effects.get(name, unknown)[0] for unit_effects in effects])
        for name in (*FACTORS, STEP, BASE_STEP)
    }


def _units(logs: Sequence[FloatArray], is_one_run: bool) -> tuple[FloatArray, ...]:
    """Return a factor's log effects [units] of each side, or of their ratio within one run."""
    if is_one_run and len(logs) > 1:
        return (logs[0] - logs[1],) if len(logs[0]) == len(logs[1]) else ()
    return tuple(logs)
