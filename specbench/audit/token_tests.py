"""Tests of emitted and drafted tokens as draws from known distributions: one sample against its
own expectations, so that no second sample adds noise."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2, kstest, norm, pearson3

from specbench.audit.numbers import Array, DraftNumbers, TokenNumbers
from specbench.audit.rule_cases import Outcomes
from specbench.log.audit import AuditTest

POWER = 0.8
"""Share of audits that find the smallest difference."""
_MAX_SKEW = 0.5
"""Sums of larger skewness hold too few uncertain tokens to be tested."""
_SURE = 0.9
"""A token with a larger best probability hardly depends on the random number drawn for it."""
_LEAST = 50
"""Fewest draws, or pairs of them, for a test."""
_FIXED = 1 - 1e-6
"""A draft token with a larger probability was not drawn but chosen."""
_MASS_SLACK = 1e-3
"""Largest distance of the sum of q from 1."""


def token_tests(tokens: TokenNumbers) -> Iterator[AuditTest]:
    """Tests of sampled tokens: all, by depth in the step, after draft tokens and without any.

    `tokens` has a column [tokens] for each number that is known about a token and its distribution.
    A test has a part, a name, the number tested, the effect's size and unit, and a p-value. A token
    is possible unless sampling settings rule it out beyond rounding.
    """
    if not (num_tokens := len(tokens)):
        return
    if num_impossible := int((~tokens.is_possible).sum()):
        yield AuditTest(
            "tokens", "impossible tokens", num_tokens, num_impossible, unit="tokens", p_value=0.0
        )
    # A token's tail is the mass of the tokens that are at most as likely: its own p-value.
    smallest_tail = float(tokens.tail.min())
    p_value = min(1.0, num_tokens * smallest_tail)  # of the smallest of these tails
    yield AuditTest("tokens", "least likely token", num_tokens, smallest_tail, "tail mass", p_value)
    for stratum, is_kept in _strata(tokens).items():  # name of a group -> its tokens
        yield from _mean_tests(tokens.where(is_kept), stratum)
    yield from _serial_tests(tokens)


def _strata(tokens: TokenNumbers) -> dict[str, Array]:
    """Groups of tokens by facts that are known before a token is drawn: [tokens] each.

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


class Residuals(NamedTuple):
    """Differences of numbers from their expectations, and the differences' moments: [n] each."""

    residual: Array
    variance: Array
    third: Array
    """Third central moment."""


def _mean_tests(tokens: TokenNumbers, stratum: str) -> Iterator[AuditTest]:
    """Tests that the means of surprises, ranks and likeliest tokens are the expected ones.

    `stratum` ends a test's name. Arrays are [tokens]. A surprise is -log p(token), a rank the mass
    of the likelier tokens plus half of the token's own, `best` the likeliest token's probability;
    "third" is a central moment.
    """
    best = tokens.best
    # The likeliest token is drawn with probability b, `best`: a Bernoulli number, with variance
    # b (1 - b) and third central moment b (1 - b) (1 - 2 b).
    best_variance = best * (1 - best)
    best_third = best_variance * (1 - 2 * best)
    surprise_residuals = Residuals(
        tokens.surprise - tokens.entropy, tokens.surprise_variance, tokens.surprise_third
    )
    rank_residuals = Residuals(tokens.rank - 0.5, tokens.rank_variance, tokens.rank_third)
    best_residuals = Residuals(tokens.is_best - best, best_variance, best_third)
    # `step` is the distance between neighbouring values of a sum; 0 if it is continuous.
    for name, residuals, unit, step in (
        ("surprise", surprise_residuals, "nats", 0.0),
        ("rank", rank_residuals, "mass", 0.0),
        ("likeliest token", best_residuals, "share", 1.0),
    ):
        p_value = sum_test(*residuals, step)
        if p_value is not None:
            effect = float(residuals.residual.mean())
            yield AuditTest("tokens", f"{name}{stratum}", len(tokens), effect, unit, p_value)


def sum_test(residual: Array, variance: Array, third: Array, step: float = 0.0) -> float | None:
    """The two-sided p-value of a sum of independent residuals [n] with known moments.

    Each residual has mean 0, its own variance [n] and third central moment [n]. `step` is the
    distance between neighbouring values of the sum. None if there is too little to test.
    """
    total_variance = variance.sum()
    if total_variance <= 0:
        return None
    skew = third.sum() / total_variance**1.5
    if abs(skew) > _MAX_SKEW:  # too few uncertain tokens for the law below
        return None
    # Half a step is the correction for continuity. A skew near 0 counts as the normal's, 0.
    residual_sum = residual.sum()
    corrected_sum = max(0.0, abs(residual_sum) - step / 2) * np.sign(residual_sum)
    standard_law = pearson3(skew if abs(skew) > 1e-3 else 0.0)  # of sum / standard deviation
    tail = standard_law.sf if corrected_sum > 0 else standard_law.cdf  # the sum's side
    return float(min(1.0, 2 * tail(corrected_sum / np.sqrt(total_variance))))


def _serial_tests(tokens: TokenNumbers) -> Iterator[AuditTest]:
    """Correlation of the random numbers behind neighbouring tokens, steps and answers."""
    number_of_answer = (tokens.depth == 0).cumsum()  # [tokens]; an answer begins at depth 0
    first_of_steps = np.flatnonzero(tokens.depth == 1)
    all_tokens = np.arange(len(tokens))
    yield from _test_of_neighbours(tokens, all_tokens, number_of_answer, "correlation of tokens")
    yield from _test_of_neighbours(tokens, first_of_steps, number_of_answer, "correlation of steps")
    yield from _test_of_answers(tokens, number_of_answer)


def _test_of_neighbours(
    tokens: TokenNumbers, rows: Array, number_of_answer: Array, name: str
) -> Iterator[AuditTest]:
    """Correlation of the position of each of these rows with that of the row before in its answer.

    `rows` are indices of tokens, in order; `number_of_answer` [tokens] is the answer of each token,
    from 1. `name` is the test's name.

    A position is uniform in [0, 1), so sqrt(12) * (position - 1/2) has mean 0 and variance 1:

        effect = sum(now * before) / sum(before**2)
        z = sum(now * before) / sqrt(sum(before**2)), which is normal
    """
    is_unsure = tokens.best[rows] < _SURE  # best: the likeliest token's probability
    answers = number_of_answer[rows]  # numbers of the answers of these rows
    # A pair is two successive rows of an answer. p made neither of their tokens nearly certain.
    is_pair = is_unsure[1:] & is_unsure[:-1] & (answers[1:] == answers[:-1])
    scores = np.sqrt(12) * (tokens.position[rows] - 0.5)  # of the rows
    scores_now, scores_before = scores[1:][is_pair], scores[:-1][is_pair]
    if len(scores_now) < _LEAST:  # pairs that a test needs
        return
    product_sum = float((scores_now * scores_before).sum())
    square_sum = float((scores_before**2).sum())
    p_value = float(2 * norm.sf(abs(product_sum / np.sqrt(square_sum))))
    yield AuditTest("tokens", name, len(scores_now), product_sum / square_sum, p_value=p_value)


def _test_of_answers(tokens: TokenNumbers, number_of_answer: Array) -> Iterator[AuditTest]:
    """Correlation of each answer's steps with the same steps of the answer before.

    `number_of_answer` [tokens] is the answer of each token, from 1; 0 before the first answer.

    If a method draws all answers with one seed, their random numbers are equal. Instead of a
    token's position, the middle of its stretch is tested, which has no random part: equal answers
    have equal random parts.

    With m the middle of a token's stretch of [0, 1), whose variance given p is the rank's:

        sum(products) = sum((m_before - 1/2) * (m_now - 1/2))
        variance = sum((m_before - 1/2)**2 * rank_variance_now)
    """
    # First tokens of steps (depth 1), and the prefill's token (depth 0) as step 0: [steps of all
    # answers]. `rows` are their indices in `tokens`, step_number the step's number in its answer.
    is_first = (tokens.depth == 0) | (tokens.depth == 1)
    rows = np.flatnonzero((number_of_answer > 0) & is_first)
    answers = number_of_answer[rows]  # numbers of the answers of these rows
    first_of_answer = np.flatnonzero(tokens.depth[rows] == 0)  # [answers]: indices in `rows`
    step_number = np.arange(len(rows)) - first_of_answer[answers - 1]
    # By step and then by answer: the same step of the answer before is the neighbour above.
    order = np.lexsort((answers, step_number))
    rows, answers, step_number = rows[order], answers[order], step_number[order]
    before, now = rows[:-1], rows[1:]
    # A pair is the same step of two successive answers. p made neither token nearly certain.
    is_pair = (step_number[1:] == step_number[:-1]) & (answers[1:] == answers[:-1] + 1)
    # `best` is the likeliest token's probability.
    is_pair &= (tokens.best[now] < _SURE) & (tokens.best[before] < _SURE)
    before, now = before[is_pair], now[is_pair]
    centred = tokens.middle[before] - 0.5  # m_before - 1/2 of each pair
    products = centred * (tokens.middle[now] - 0.5)  # of each pair
    variance = (centred**2 * tokens.rank_variance[now]).sum()
    if len(centred) >= _LEAST and variance > 0:  # pairs that a test needs
        effect = float(12 * products.mean())  # 1 for equal uniform numbers
        p_value = float(2 * norm.sf(abs(products.sum() / np.sqrt(variance))))
        yield AuditTest("tokens", "correlation of answers", len(centred), effect, p_value=p_value)


def smallest_tv(tokens: TokenNumbers, error_rate: float) -> float:
    """The mean total variation that the test of the likeliest token finds in POWER of all audits.

    It holds for errors that move probability to or from the likeliest token. No statistic between
    0 and 1 changes by more than the total variation.
    """
    # A test at `error_rate` finds a mean difference d with probability POWER if
    #   d = (z(error_rate / 2) + z(1 - POWER)) * sqrt(sum(b * (1 - b))) / n
    quantiles = norm.isf(error_rate / 2) + norm.isf(1 - POWER)
    spread = np.sqrt((tokens.best * (1 - tokens.best)).sum())
    return float(min(1.0, quantiles * spread / max(len(tokens), 1)))


def draft_tests(drafts: DraftNumbers) -> Iterator[AuditTest]:
    """Tests of drawn draft tokens against the distributions q that they claim.

    `drafts` has columns [draft tokens]. A token's positions in q, by rank and by id, are uniform in
    [0, 1) if it was drawn from q (Kolmogorov-Smirnov test). Tokens of probability 1 say nothing.
    """
    if not (num_drafts := len(drafts)):
        return
    largest_gap = float(np.abs(drafts.mass - 1).max())  # mass: the sum of q
    yield AuditTest("guesses", "mass of q", num_drafts, largest_gap, "from 1", limit=_MASS_SLACK)
    if num_impossible := int((drafts.probability <= 0).sum()):
        yield AuditTest(
            "guesses", "impossible guesses", num_drafts, num_impossible, unit="guesses", p_value=0.0
        )
    drawn = drafts.where((drafts.probability > 0) & (drafts.probability < _FIXED))
    if len(drawn) < _LEAST:  # draws that a test needs
        return
    for name, positions in (("rank", drawn.by_rank), ("position", drawn.by_id)):
        ks_test = kstest(positions, "uniform")
        distance = float(ks_test.statistic)
        yield AuditTest("guesses", name, len(drawn), distance, "distance", float(ks_test.pvalue))


def rule_tests(trees: Sequence[Outcomes]) -> list[AuditTest]:
    """A test of a rule for each tree; for a rule that was not judged, a test that says so."""
    tests = [rule_test(outcomes) for outcomes in trees]
    return tests or [AuditTest("rule", "not judged: it fails on a small vocabulary", 0, 0.0)]


def rule_test(outcomes: Outcomes) -> AuditTest:
    """A chi-square test of an acceptance rule's outcomes on one tree.

    `counts` and `probs` [1 + 4, 4] are the emitted tokens and their probabilities: the first row is
    of the first token after the root, the others of the token after each accepted token. The sum is
    over the rows with draws. A row has (number of possible tokens - 1) degrees of freedom:

        chi2 = sum((counts - expected)**2 / expected)
    """
    is_used = outcomes.counts.sum(1) > 0
    counts, probs = outcomes.counts[is_used], outcomes.probs[is_used]
    draws_of_rows = counts.sum(1, keepdims=True)  # [rows, 1]; below [rows, 4] or [rows]
    expected = probs * draws_of_rows
    is_possible = expected > 0
    chi2_terms = (counts - expected) ** 2 / np.where(is_possible, expected, 1.0)
    num_degrees = (is_possible.sum(1) - 1).sum()
    total_variations = np.abs(counts / draws_of_rows - probs).sum(1) / 2  # of each row
    p_value = float(chi2.sf(chi2_terms.sum(), num_degrees))
    if counts[expected == 0].any():  # impossible tokens
        p_value = 0.0
    num_trees = int(outcomes.counts[0].sum())
    effect = float(total_variations.max())
    return AuditTest("rule", outcomes.name, num_trees, effect, "total variation", p_value)
