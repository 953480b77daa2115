"""Tests of emitted tokens and drafted guesses as draws from distributions that are known.

One sample is tested against its own expectations, so no second sample adds noise. Each
residual has a known mean, variance and skewness given the tokens before it; sums of them are
compared with Pearson's type III distribution.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import chi2, fisher_exact, kstest, norm, pearson3

from specbench.audit.evidence import GuessNumbers, LogitNumbers, TokenNumbers
from specbench.audit.results import EPSILON
from specbench.audit.rule_cases import Outcomes
from specbench.log.audit import AuditTest

POWER = 0.8
"""Share of audits that find the smallest difference."""
_MAX_SKEW = 0.5
"""Sums of larger skewness hold too few uncertain tokens to be tested."""
_SURE = 0.9
"""A token with a larger best probability hardly depends on the random number drawn for it."""
_LEAST = 50


def token_tests(tokens: TokenNumbers) -> Iterator[AuditTest]:
    """Tests of sampled tokens: all, by depth in the step, after guesses and without any."""
    if not (num := len(tokens)):
        return
    if impossible := int((~tokens.is_possible).sum()):
        yield AuditTest("tokens", "impossible tokens", num, impossible, "tokens", p_value=0.0)
    smallest = float(tokens.tail.min())
    p_value = min(1.0, num * smallest)
    yield AuditTest("tokens", "least likely token", num, smallest, "tail mass", p_value)
    for name, is_kept in _strata(tokens).items():
        yield from _mean_tests(tokens.where(is_kept), name)
    yield from _serial_tests(tokens)


def _strata(tokens: TokenNumbers) -> dict[str, Any]:
    """Groups of tokens by what is known before a token is drawn.

    Accepted and rejected tokens are not such groups: likely tokens are accepted more often, so
    the accepted ones alone are not draws from p.
    """
    depth, has_draft = tokens.depth, tokens.has_draft
    return {
        "": np.ones(len(tokens), dtype=bool),
        ", prefill": depth == 0,
        ", depth 1": depth == 1,
        ", depth 2": depth == 2,
        ", depth 3 and more": depth > 2,
        ", after guesses": has_draft == 1,
        ", bonus without guesses": (has_draft == 0) & (depth > 0),
    }


def _mean_tests(tokens: TokenNumbers, stratum: str) -> Iterator[AuditTest]:
    best = tokens.best
    spread = best * (1 - best)
    for name, residual, variance, third, unit, step in (
        ("surprise", tokens.surprise - tokens.entropy, tokens.surprise_variance,
         tokens.surprise_third, "nats", 0.0),
        ("rank", tokens.rank - 0.5, tokens.rank_variance, tokens.rank_third, "mass", 0.0),
        ("likeliest token", tokens.is_best - best, spread, spread * (1 - 2 * best), "share", 1.0),
    ):  # fmt: skip
        p_value = sum_test(residual, variance, third, step)
        if p_value is not None:
            effect = float(residual.mean())
            yield AuditTest("tokens", f"{name}{stratum}", len(tokens), effect, unit, p_value)


def sum_test(residual: Any, variance: Any, third: Any, step: float = 0.0) -> float | None:
    """The two-sided p-value of a sum of independent residuals [n] with known moments.

    `step` is the distance between neighbouring values of the sum. None if there is too little
    to test.
    """
    total = variance.sum()
    if total <= 0 or abs(skew := third.sum() / total**1.5) > _MAX_SKEW:
        return None
    distance = max(0.0, abs(residual.sum()) - step / 2) * np.sign(residual.sum())
    law = pearson3(skew if abs(skew) > 1e-3 else 0.0)
    side = law.sf if distance > 0 else law.cdf
    return float(min(1.0, 2 * side(distance / np.sqrt(total))))


def _serial_tests(tokens: TokenNumbers) -> Iterator[AuditTest]:
    """Correlation of the random numbers behind neighbouring tokens, steps and answers."""
    is_first = tokens.depth == 1
    answer = (tokens.depth == 0).cumsum()
    for name, rows in (
        ("correlation of tokens", np.arange(len(tokens))),
        ("correlation of steps", np.flatnonzero(is_first)),
    ):
        is_open = tokens.best[rows] < _SURE
        pairs = is_open[1:] & is_open[:-1] & (answer[rows][1:] == answer[rows][:-1])
        around = np.sqrt(12) * (tokens.position[rows] - 0.5)
        now, before = around[1:][pairs], around[:-1][pairs]
        if len(now) < _LEAST:
            continue
        products, scale = float((now * before).sum()), float((before**2).sum())
        p_value = float(2 * norm.sf(abs(products / np.sqrt(scale))))
        yield AuditTest("tokens", name, len(now), products / scale, "", p_value)
    yield from _test_of_answers(tokens, answer)


def _test_of_answers(tokens: TokenNumbers, answer: Any) -> Iterator[AuditTest]:
    """Correlation of each answer's steps with the same steps of the answer before.

    One seed for all answers gives each the same random numbers. The places of tokens have no
    noise of their own here: two short answers may be equal, and would get the same.
    """
    rows = np.flatnonzero((answer > 0) & ((tokens.depth == 0) | (tokens.depth == 1)))
    begins = np.flatnonzero(tokens.depth[rows] == 0)
    step = np.arange(len(rows)) - begins[answer[rows] - 1]
    rows = rows[np.lexsort((answer[rows], step))]
    step = np.sort(step)
    before, now = rows[:-1], rows[1:]
    is_pair = (step[1:] == step[:-1]) & (answer[now] == answer[before] + 1)
    is_pair &= (tokens.best[now] < _SURE) & (tokens.best[before] < _SURE)
    around = tokens.middle[before[is_pair]] - 0.5
    products = around * (tokens.middle[now[is_pair]] - 0.5)
    variance = (around**2 * tokens.rank_variance[now[is_pair]]).sum()
    if len(around) >= _LEAST and variance > 0:
        effect = float(12 * products.mean())
        p_value = float(2 * norm.sf(abs(products.sum() / np.sqrt(variance))))
        yield AuditTest("tokens", "correlation of answers", len(around), effect, "", p_value)


def smallest_tv(tokens: TokenNumbers, error_rate: float) -> float:
    """The mean total variation that the test of the likeliest token finds in POWER of all audits.

    All of it moves mass to or from the likeliest token. No statistic between 0 and 1 changes
    by more than the total variation.
    """
    best = tokens.best
    quantiles = norm.isf(error_rate / 2) + norm.isf(1 - POWER)
    return float(min(1.0, quantiles * np.sqrt((best * (1 - best)).sum()) / max(len(tokens), 1)))


def guess_tests(guesses: GuessNumbers) -> Iterator[AuditTest]:
    """Tests of drawn guesses against the q that they claim."""
    num = len(guesses)
    if not num:
        return
    gap = float(np.abs(guesses.mass - 1).max())
    yield AuditTest("guesses", "mass of q", num, gap, "from 1", limit=1e-3)
    if impossible := int((guesses.probability <= 0).sum()):
        yield AuditTest("guesses", "impossible guesses", num, impossible, "guesses", p_value=0.0)
    drawn = guesses.where((guesses.probability > 0) & (guesses.probability < 1 - 1e-6))
    if len(drawn) < _LEAST:
        return
    for name, positions in (("rank", drawn.by_rank), ("position", drawn.by_id)):
        found = kstest(positions, "uniform")
        effect, p_value = float(found.statistic), float(found.pvalue)
        yield AuditTest("guesses", name, len(drawn), effect, "distance", p_value)


def logit_tests(
    logits: LogitNumbers, dtype: str, limit: float, baseline: LogitNumbers | None = None
) -> Iterator[AuditTest]:
    """Tests of logits along accepted paths: the largest deviation, flips and bits.

    Flips are compared with vanilla's. Bits are tested if all of vanilla's equal
    those of the engine's steps over plain chains: then the shape of a step does not change
    bits, and a difference is a bug.
    """
    if not len(logits):
        return
    largest = float((logits.deviation / (EPSILON[dtype] * logits.scale)).max())
    yield AuditTest("logits", "deviation", len(logits), largest, "epsilon", limit=limit)
    if baseline is None or not len(baseline):
        return
    flips = [int(one.is_flipped.sum()) for one in (logits, baseline)]
    table = [[flips[0], len(logits) - flips[0]], [flips[1], len(baseline) - flips[1]]]
    p_value = float(fisher_exact(table, alternative="greater").pvalue)
    yield AuditTest("logits", "flips", len(logits), flips[0] / len(logits), "share", p_value)
    if (baseline.is_exact == 1).all() and (logits.is_exact >= 0).any():
        num, differ = int((logits.is_exact >= 0).sum()), int((logits.is_exact == 0).sum())
        yield AuditTest("logits", "bits", num, differ, "rows that differ", limit=0.0)


def rule_tests(every: Sequence[Outcomes]) -> list[AuditTest]:
    """A test of a rule for each tree; for a rule that was not judged, one that says so."""
    tests = [rule_test(outcomes) for outcomes in every]
    return tests or [AuditTest("rule", "not judged: it fails on a small vocabulary", 0, 0.0)]


def rule_test(outcomes: Outcomes) -> AuditTest:
    """A chi-square test of a rule's outcomes on one tree."""
    expected = outcomes.probs * outcomes.counts.sum(1, keepdims=True)
    is_used = outcomes.counts.sum(1) > 0
    counts, expected = outcomes.counts[is_used], expected[is_used]
    is_impossible = bool(counts[expected == 0].any())
    gaps = (counts - expected) ** 2 / np.where(expected > 0, expected, 1.0)
    degrees = ((expected > 0).sum(1) - 1).sum()
    shares = counts / counts.sum(1, keepdims=True)
    effect = float(np.abs(shares - outcomes.probs[is_used]).sum(1).max() / 2)
    p_value = 0.0 if is_impossible else float(chi2.sf(gaps.sum(), degrees))
    num = int(outcomes.counts[0].sum())
    return AuditTest("rule", outcomes.name, num, effect, "total variation", p_value)
