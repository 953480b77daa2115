"""Speeds by the arithmetic of publishers, over tokens as they count them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specbench.log.exchange.format import CountTokens, MethodAnswers
from specbench.log.imported import ImportedFigure
from specbench.types import Record

SPEEDUP = "speedup"
TOTALS = "the ratio of totals"
CountOf = Callable[[Record], int]
"""Tokens of an answer by some counting rule."""


def published_tokens(record: Record) -> int:
    """Tokens of an answer as its publisher counts them."""
    return record.imported.published_tokens if record.imported else record.num_tokens


def our_tokens(record: Record) -> int:
    """Tokens of an answer as specbench counts them."""
    return record.num_tokens


class CountedTokens(NamedTuple):
    """A counting rule with its name."""

    count: CountOf
    name: str
    has_failed: bool = True
    """True if failed answers count with the numbers in their file, as publishers count them."""

    def of(self, records: Sequence[Record]) -> Sequence[Record]:
        """The answers that count."""
        return [record for record in records if record.is_ok or self.has_failed]


def mean_of_rates(records: Sequence[Record], count: CountOf) -> float:
    """The mean over questions of tokens / seconds; both are sums over the turns of a question."""
    tokens: dict[tuple[str, int], int] = defaultdict(int)
    seconds: dict[tuple[str, int], float] = defaultdict(float)
    for record in records:
        question = (record.key.sample_id, record.key.repeat)
        tokens[question] += count(record)
        seconds[question] += record.wall_s or 0.0
    rates = [tokens[question] / seconds[question] for question in seconds if seconds[question]]
    return sum(rates) / len(rates) if rates else 0.0


def rate_of_totals(records: Sequence[Record], count: CountOf) -> float:
    """All tokens / all seconds."""
    seconds = sum(record.wall_s or 0.0 for record in records)
    return sum(map(count, records)) / seconds if seconds else 0.0


def speed_figures(
    answers: MethodAnswers, formula: str, rules: Sequence[CountedTokens]
) -> Iterator[ImportedFigure]:
    """Tokens/s and speedups by the formula that EAGLE's and Spec-Bench's scripts share.

    Each speedup is shown by each of the `rules` for the baseline's tokens, first as the mean of
    rates per question (`formula`), then as the ratio of totals.
    """
    method, records = answers.method, answers.records
    mean_rate = mean_of_rates(records, published_tokens)  # tokens/s
    if not mean_rate:
        return
    yield ImportedFigure(method, "mean tokens/s per question", mean_rate, formula)
    base_records = answers.baseline_records
    for rule in rules:
        base_rate = mean_of_rates(rule.of(base_records), rule.count)
        if base_rate:
            yield ImportedFigure(method, SPEEDUP, mean_rate / base_rate, formula, rule.name, "x")
    total_rate = rate_of_totals(records, published_tokens)
    for rule in rules:
        base_rate = rate_of_totals(rule.of(base_records), rule.count)
        if base_rate:
            yield ImportedFigure(method, SPEEDUP, total_rate / base_rate, TOTALS, rule.name, "x")


def why_ours_differs(figures: Sequence[ImportedFigure]) -> Iterator[str]:
    """For each method, a sentence that takes (the publisher's first speedup / ours) apart into
    factors. Our speedup is the last ratio of totals: all of the baseline's tokens count.
    """
    speedups: dict[str, list[ImportedFigure]] = defaultdict(list)
    for figure in figures:
        if figure.name == SPEEDUP:
            speedups[figure.method].append(figure)
    for method, figures_of_method in speedups.items():
        published = figures_of_method[0]
        # Counting rule of the baseline's tokens -> the speedup as a ratio of totals.
        totals = {figure.counting: figure for figure in figures_of_method if figure.rule == TOTALS}
        if published.counting not in totals:
            continue
        *_, our_figure = totals.values()
        same_counting = totals[published.counting]
        # published / ours = (published / same counting) * (same counting / ours)
        averaging = published.value / same_counting.value
        sentence = (
            f"{method}: {published.value:.3f}x / {our_figure.value:.3f}x = "
            f"{published.value / our_figure.value:.4f}: {averaging:.4f} is averaging "
            f"({published.rule} instead of totals)"
        )
        if same_counting != our_figure:
            counting = same_counting.value / our_figure.value
            rules = f"{published.counting} instead of {our_figure.counting}"
            sentence += f", {counting:.4f} is counting ({rules})"
        yield sentence


def draft_figures(
    answers: MethodAnswers, _count: CountTokens | None = None
) -> Iterator[ImportedFigure]:
    """Tokens/s, and MAT as users of llama.cpp compute it, from answers with accepted drafts."""
    done = [record for record in answers.records if record.is_ok]
    # without the time of the prompt, if that is known
    decode_s = sum(record.decode_s or record.wall_s or 0.0 for record in done)
    if decode_s:
        rate = sum(map(published_tokens, done)) / decode_s
        yield ImportedFigure(answers.method, "tokens/s", rate, "all its tokens / all seconds")
    num_tokens = sum(record.num_tokens for record in done)
    all_counts = [record.imported for record in done if record.imported]
    # A step emits the accepted tokens and one more.
    num_accepted = sum((counts.num_emitted or 0) - (counts.num_steps or 0) for counts in all_counts)
    if num_accepted:
        mat = num_tokens / (num_tokens - num_accepted)
        yield ImportedFigure(answers.method, "MAT", mat, "tokens / (tokens - accepted)")


def retokenised(count_tokens: CountTokens | None) -> list[CountedTokens]:
    """The rule of both scripts for the baseline's tokens, if there is a tokenizer."""
    if count_tokens is None:
        return []
    # less one: the tokenizer puts a BOS before the text
    return [CountedTokens(lambda record: count_tokens(record.text) - 1, "re-tokenised texts - 1")]
