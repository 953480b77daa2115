"""Tests of emitted and drafted tokens as draws from known distributions.

A sample is compared with its expected values. A comparison with a second sample would add noise.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2, kstest, norm, pearson3

from specbench.audit.numbers import Array, DraftNumbers, TokenNumbers
from specbench.audit.rule_cases import Outcomes
from specbench.log.audit import AuditTest

POWER = 0.8
"""Share of audits that find an error as large as `smallest_tv`."""
_MAX_SKEW = 0.5
"""Largest skewness of a sum that is tested. A more skewed sum has too few uncertain tokens."""
_SURE = 0.9
"""The draw hardly depends on chance if the likeliest token is more probable than this."""
_LEAST = 50
"""Minimum number of draws, or of pairs of draws, for a test."""
_FIXED = 1 - 1e-6
"""A draft token with a probability above this was chosen, not drawn."""
_MASS_SLACK = 1e-3
"""Largest distance of the sum of q from 1."""


def token_tests(tokens: TokenNumbers) -> Iterator[AuditTest]:
    """Test that sampled tokens are draws from the distributions p that they should come from.

    There are tests of impossible tokens (if any), of the least likely token, of means over all
    tokens and over groups of tokens, and of correlations between tokens.
    """
    if not (num_tokens := len(tokens)):
        return
    # `is_possible` is false if the sampling settings rule a token out, even allowing for rounding.
    num_impossible = int((~tokens.is_possible).sum())
    if num_impossible:
        yield AuditTest(
            "tokens", "impossible tokens", num_tokens, num_impossible, unit="tokens", p_value=0.0
        )
    # A token's tail is the mass of all tokens that are at most as likely: the p-value of one draw.
    # p-value of all draws = num_tokens * smallest tail (Bonferroni)
    smallest_tail = float(tokens.tail.min())
    p_value = min(1.0, num_tokens * smallest_tail)
    yield AuditTest("tokens", "least likely token", num_tokens, smallest_tail, "tail mass", p_value)
    for stratum, is_in_stratum in _strata(tokens).items():  # the first group has all tokens
        yield from _mean_tests(tokens.where(is_in_stratum), stratum)
    yield from _serial_tests(tokens)


def _strata(tokens: TokenNumbers) -> dict[str, Array]:
    """Groups of tokens. Maps the suffix that names a group's tests to a mask of tokens [tokens].

    A token's group depends only on facts that are known before the token is drawn. Acceptance is
    not known then. Likely tokens are accepted more often, so accepted tokens alone are not draws
    from p.
    """
    depth, has_draft = tokens.depth, tokens.has_draft
    return {
        "": np.ones(len(tokens), dtype=bool),
        ", prefill": depth == 0,
        ", depth 1": depth == 1,
        ", depth 2": depth == 2,
        ", depth 3 and more": depth > 2,
        ", after draft tokens": has_draft == 1,
        ", bonus without draft tokens": (has_draft == 0) & (depth > 0),
    }


class Residuals(NamedTuple):
    """Differences of numbers from their expected values. All arrays are [n]."""

    residual: Array
    """The difference."""
    variance: Array
    """The variance of the difference."""
    third: Array
    """The third central moment of the difference."""


def _mean_tests(tokens: TokenNumbers, stratum: str) -> Iterator[AuditTest]:
    """Test that three means over tokens are as expected: surprise, rank, share of the likeliest.

    A surprise is -log p(token). A rank is the mass of the likelier tokens plus half of the token's
    own mass, and 1/2 is expected. The likeliest token of p should be drawn with its probability b.
    All arrays are [tokens].

    Args:
        tokens: numbers about a group of tokens.
        stratum: the suffix of the group, with which the names of the tests end.
    """
    best_p = tokens.best  # b
    # A Bernoulli variable says if the likeliest token is drawn.
    best_variance = best_p * (1 - best_p)
    best_third = best_variance * (1 - 2 * best_p)  # third central moment
    surprise_residuals = Residuals(
        tokens.surprise - tokens.entropy, tokens.surprise_variance, tokens.surprise_third
    )
    rank_residuals = Residuals(tokens.rank - 0.5, tokens.rank_variance, tokens.rank_third)
    best_residuals = Residuals(tokens.is_best - best_p, best_variance, best_third)
    # `spacing` is the distance between neighbouring values of a sum; 0 for a continuous sum.
    for name, residuals, unit, spacing in (
        ("surprise", surprise_residuals, "nats", 0.0),
        ("rank", rank_residuals, "mass", 0.0),
        ("likeliest token", best_residuals, "share", 1.0),
    ):
        p_value = sum_test(*residuals, spacing)
        if p_value is not None:  # None: no variance, or too much skew
            effect = float(residuals.residual.mean())
            yield AuditTest("tokens", f"{name}{stratum}", len(tokens), effect, unit, p_value)


def sum_test(residual: Array, variance: Array, third: Array, spacing: float = 0.0) -> float | None:
    """The two-sided p-value of a sum of independent residuals, whose expected sum is 0. It is None
    if the sum has no variance, or too much skew to be tested.

    Args:
        residual: the residuals [n], of mean 0.
        variance: variance of each residual [n].
        third: third central moment of each residual [n].
        spacing: distance between neighbouring values of the sum; 0 for a continuous sum.
    """
    total_variance = variance.sum()
    if total_variance <= 0:
        return None
    skew = third.sum() / total_variance**1.5
    if abs(skew) > _MAX_SKEW:
        return None
    residual_sum = residual.sum()
    # The correction for continuity moves the sum by half a spacing towards 0.
    corrected_sum = max(0.0, abs(residual_sum) - spacing / 2) * np.sign(residual_sum)
    # The law of sum / standard deviation. A skew near 0 counts as 0, which gives the normal law.
    standard_law = pearson3(skew if abs(skew) > 1e-3 else 0.0)
    tail = standard_law.sf if corrected_sum > 0 else standard_law.cdf  # above or below the sum
    return float(min(1.0, 2 * tail(corrected_sum / np.sqrt(total_variance))))


def _serial_tests(tokens: TokenNumbers) -> Iterator[AuditTest]:
    """Test that the random numbers of neighbouring tokens, steps and answers do not correlate.

    The steps of an answer are compared with the same steps one answer before, too. They correlate
    if a method draws all answers with the same seed.
    """
    # The number of each token's answer, from 1 [tokens]. An answer begins with a token of depth 0.
    # It is 0 for tokens before the first answer.
    answer_numbers = (tokens.depth == 0).cumsum()
    first_of_steps = np.flatnonzero(tokens.depth == 1)  # indices of the first tokens of steps
    all_tokens = np.arange(len(tokens))
    for name, indices in (
        ("correlation of tokens", all_tokens),
        ("correlation of steps", first_of_steps),
    ):
        answers = answer_numbers[indices]
        is_pair = answers[1:] == answers[:-1]
        yield from _correlation_test(tokens, name, indices[:-1][is_pair], indices[1:][is_pair])
    # The first tokens of steps have depth 1. The prefill's token, of depth 0, counts as step 0.
    is_first = (tokens.depth == 0) | (tokens.depth == 1)  # [tokens]
    indices = np.flatnonzero((answer_numbers > 0) & is_first)  # of these tokens [steps]
    answers = answer_numbers[indices]  # [steps]
    starts = np.flatnonzero(tokens.depth[indices] == 0)  # place of each answer's step 0 [answers]
    steps = np.arange(len(indices)) - starts[answers - 1]  # number within the answer [steps]
    # Sort by step, then by answer: neighbours are the same step of successive answers.
    order = np.lexsort((answers, steps))
    indices, answers, steps = indices[order], answers[order], steps[order]
    is_pair = (steps[1:] == steps[:-1]) & (answers[1:] == answers[:-1] + 1)  # [steps - 1]
    pairs = indices[:-1][is_pair], indices[1:][is_pair]
    yield from _correlation_test(tokens, "correlation of answers", *pairs)


def _correlation_test(
    tokens: TokenNumbers, name: str, before: Array, after: Array
) -> Iterator[AuditTest]:
    """Test that the random numbers of pairs of tokens do not correlate.

    A random number is known up to the stretch of [0, 1) that its token takes. A point drawn within
    the stretch would need the same seed in every audit of an answer, so equal answers would get
    equal points, and would not be independent. So the middle m of the stretch is used. Given p, m
    has mean 1/2 and the variance of the rank:

        sum(products) = sum((m_before - 1/2) * (m - 1/2))
        variance = sum((m_before - 1/2)**2 * rank_variance)

    Args:
        tokens: numbers about all tokens.
        name: name of the test.
        before: indices of the earlier tokens of the pairs [pairs].
        after: indices of the later tokens [pairs].
    """
    # A nearly certain token says nothing about its random number (`best`: the largest p).
    is_unsure = (tokens.best[before] < _SURE) & (tokens.best[after] < _SURE)  # [pairs]
    before, after = before[is_unsure], after[is_unsure]
    centred_before = tokens.middle[before] - 0.5
    products = centred_before * (tokens.middle[after] - 0.5)
    variance = (centred_before**2 * tokens.rank_variance[after]).sum()
    if len(products) >= _LEAST and variance > 0:
        # 12 * mean(products) is about 1 for equal random numbers, whose variance is 1/12.
        effect = float(12 * products.mean())
        z = products.sum() / np.sqrt(variance)
        yield AuditTest("tokens", name, len(products), effect, p_value=float(2 * norm.sf(abs(z))))


def smallest_tv(tokens: TokenNumbers, error_rate: float) -> float:
    """The smallest mean total variation that a test of these tokens finds in POWER of all audits.

    The error moves probability to or from the likeliest token of each distribution. The test checks
    how often the likeliest token is drawn, with `error_rate` as its rate of false alarms.
    """
    # A test at `error_rate` finds a mean difference d with probability POWER if
    #   d = (z(error_rate / 2) + z(1 - POWER)) * sqrt(sum(b * (1 - b))) / n
    quantiles = norm.isf(error_rate / 2) + norm.isf(1 - POWER)
    standard_deviation = np.sqrt((tokens.best * (1 - tokens.best)).sum())
    return float(min(1.0, quantiles * standard_deviation / max(len(tokens), 1)))


def draft_tests(drafts: DraftNumbers) -> Iterator[AuditTest]:
    """Test that draft tokens are draws from the distributions q that they claim.

    One test checks that each q sums to 1. If draft tokens have probability 0, there is a test that
    fails. Two Kolmogorov-Smirnov tests check that positions in q, by rank and by id, are uniform in
    [0, 1). They leave out tokens that were impossible or nearly certain.
    """
    if not (num_drafts := len(drafts)):
        return
    largest_gap = float(np.abs(drafts.mass - 1).max())  # mass: the sum of q
    yield AuditTest("guesses", "mass of q", num_drafts, largest_gap, "from 1", limit=_MASS_SLACK)
    num_impossible = int((drafts.probability <= 0).sum())
    if num_impossible:
        yield AuditTest(
            "guesses", "impossible draft tokens", num_drafts, num_impossible, "draft tokens", 0.0
        )
    # tokens that were neither impossible nor nearly certain
    drawn = drafts.where((drafts.probability > 0) & (drafts.probability < _FIXED))
    if len(drawn) < _LEAST:
        return
    for name, positions in (("rank", drawn.by_rank), ("position", drawn.by_id)):
        ks_test = kstest(positions, "uniform")
        yield AuditTest(
            "guesses",
            name,
            num=len(drawn),
            effect=float(ks_test.statistic),
            unit="distance",
            p_value=float(ks_test.pvalue),
        )


def rule_tests(trees: Sequence[Outcomes]) -> list[AuditTest]:
    """Test a rule on each tree. A rule that was not judged gets one test that says so."""
    tests = [rule_test(outcomes) for outcomes in trees]
    return tests or [AuditTest("rule", "not judged: it fails on a small vocabulary", 0, 0.0)]


def rule_test(outcomes: Outcomes) -> AuditTest:
    """A chi-square test of the tokens that an acceptance rule emits on a tree.

    `Outcomes` says what the rows and columns of its arrays are about. Rows without draws are left
    out. A row has as many degrees of freedom as it has possible tokens, less 1:

        chi2 = sum((counts - expected)**2 / expected)
    """
    has_draws = outcomes.counts.sum(1) > 0
    counts, probs = outcomes.counts[has_draws], outcomes.probs[has_draws]  # [rows, 5]
    draws_of_rows = counts.sum(1, keepdims=True)  # [rows, 1]
    expected = probs * draws_of_rows  # [rows, 5]
    is_possible = expected > 0
    chi2_terms = (counts - expected) ** 2 / np.where(is_possible, expected, 1.0)  # no division by 0
    num_degrees = (is_possible.sum(1) - 1).sum()
    total_variations = np.abs(counts / draws_of_rows - probs).sum(1) / 2  # [rows]
    p_value = float(chi2.sf(chi2_terms.sum(), num_degrees))
    if counts[expected == 0].any():  # an impossible token was emitted
        p_value = 0.0
    num_trees = int(outcomes.counts[0].sum())  # draws of the tree
    largest_variation = float(total_variations.max())
    return AuditTest(
        "rule", outcomes.name, num_trees, largest_variation, "total variation", p_value
    )
