"""Compute speeds with the arithmetic and the counting rules of publishers."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specbench.log.exchange.format import CountTokens, MethodAnswers
from specbench.log.imported import ImportedFigure
from specbench.types import Record

SPEEDUP = "speedup"
TOTALS = "the ratio of totals"
CountOf = Callable[[Record], int]
"""Returns the number of an answer's tokens under a counting rule."""


def published_tokens(record: Record) -> int:
    """The number of an answer's tokens as its publisher counts them."""
    return record.imported.published_tokens if record.imported else record.num_tokens


def our_tokens(record: Record) -> int:
    """The number of an answer's tokens as specbench counts them."""
    return record.num_tokens


class CountedTokens(NamedTuple):
    """A counting rule with its name."""

    count: CountOf
    name: str
    has_failed: bool = True
    """True to count failed answers with the numbers of their file, as publishers do."""

    def of(self, records: Sequence[Record]) -> Sequence[Record]:
        """The answers that count."""
        return [record for record in records if record.is_ok or self.has_failed]


def mean_of_rates(records: Sequence[Record], count: CountOf) -> float:
    """The mean of the questions' tokens/s, or 0.0 if no record has a time.

    The tokens (counted by `count`) and the seconds of a question are sums over its turns. A
    question counts once per pass.
    """
    tokens: dict[tuple[str, int], int] = defaultdict(int)  # by question
    seconds: dict[tuple[str, int], float] = defaultdict(float)  # by question
    for record in records:
        question = (record.key.sample_id, record.key.repeat)  # in one pass
        tokens[question] += count(record)
        seconds[question] += record.wall_s or 0.0
    rates = [tokens[question] / seconds[question] for question in seconds if seconds[question]]
    return sum(rates) / len(rates) if rates else 0.0


def rate_of_totals(records: Sequence[Record], count: CountOf) -> float:
    """All tokens (counted by `count`) / all seconds, or 0.0 if no record has a time."""
    seconds = sum(record.wall_s or 0.0 for record in records)
    return sum(map(count, records)) / seconds if seconds else 0.0


def speed_figures(
    answers: MethodAnswers, formula: str, rules: Sequence[CountedTokens]
) -> Iterator[ImportedFigure]:
    """Yield a method's tokens/s and its speedups over the baseline, as the scripts of EAGLE and
    Spec-Bench compute them. Yield nothing if the method has no times or no tokens.

    `rules` count the baseline's tokens. Each rule gives two speedups, or none if the baseline has
    no times or tokens. `rule.of` picks the records that count. The first speedups are ratios of
    mean rates per question, which is the scripts' formula (`formula` is its name). The others are
    ratios of totals, which are all tokens / all seconds.
    """
    method, records = answers.method, answers.records
    mean_rate = mean_of_rates(records, published_tokens)  # tokens/s
    if not mean_rate:
        return
    yield ImportedFigure(method, "mean tokens/s per question", mean_rate, rule=formula)
    base_records = answers.baseline_records  # empty without a baseline
    for averaging, rate_of in ((formula, mean_of_rates), (TOTALS, rate_of_totals)):
        rate = rate_of(records, published_tokens)  # tokens/s
        for rule in rules:
            base_rate = rate_of(rule.of(base_records), rule.count)
            if base_rate:
                speedup = rate / base_rate
                yield ImportedFigure(
                    method, SPEEDUP, speedup, rule=averaging, counting=rule.name, unit="x"
                )


def why_ours_differs(figures: Sequence[ImportedFigure]) -> Iterator[str]:
    """Yield a sentence per method. It splits (the publisher's speedup / our speedup) into two
    factors: one for the average, and one for the counting of the baseline's tokens.

    `figures` are in the order of `speed_figures`: a method's first speedup is the publisher's, and
    its last is ours. Methods without a ratio of totals by the publisher's counting are left out.
    """
    speedups: dict[str, list[ImportedFigure]] = defaultdict(list)  # by method
    for figure in figures:
        if figure.name == SPEEDUP:
            speedups[figure.method].append(figure)
    for method, speedups_of_method in speedups.items():
        published = speedups_of_method[0]
        # Counting rule of the baseline's tokens -> the speedup as a ratio of totals.
        totals = {figure.counting: figure for figure in speedups_of_method if figure.rule == TOTALS}
        if published.counting not in totals:
            continue
        *_, our_figure = totals.values()  # the last one
        same_counting = totals[published.counting]  # our average, but the publisher's counting
        # published / ours = (published / same counting) * (same counting / ours)
        averaging_factor = published.value / same_counting.value
        sentence = (
            f"{method}: {published.value:.3f}x / {our_figure.value:.3f}x = "
            f"{published.value / our_figure.value:.4f}. Averaging accounts for "
            f"{averaging_factor:.4f} ({published.rule} instead of totals)"
        )
        if same_counting != our_figure:
            counting_factor = same_counting.value / our_figure.value
            rules = f"{published.counting} instead of {our_figure.counting}"
            sentence += f", counting for {counting_factor:.4f} ({rules})"
        yield sentence


def draft_figures(answers: MethodAnswers, _count: CountTokens | None) -> Iterator[ImportedFigure]:
    """Yield a method's tokens/s, and its MAT as users of llama.cpp compute it, which is tokens /
    (tokens - accepted draft tokens). Tokens/s is left out without times, and MAT without accepted
    tokens.

    `_count`, the tokenizer's count of a text, is not used.
    """
    done = [record for record in answers.records if record.is_ok]
    # Seconds after the first token, or of the whole answer if it lacks this time.
    decode_s = sum(record.decode_s or record.wall_s or 0.0 for record in done)
    if decode_s:
        rate = sum(map(published_tokens, done)) / decode_s
        yield ImportedFigure(answers.method, "tokens/s", rate, rule="all its tokens / all seconds")
    num_tokens = sum(record.num_tokens for record in done)
    all_counts = [record.imported for record in done if record.imported]
    # A step emits its accepted tokens and one more, so accepted = emitted - steps.
    num_accepted = sum((counts.num_emitted or 0) - (counts.num_steps or 0) for counts in all_counts)
    if num_accepted:
        mat = num_tokens / (num_tokens - num_accepted)
        yield ImportedFigure(answers.method, "MAT", mat, rule="tokens / (tokens - accepted)")


def retokenised(count_tokens: CountTokens | None) -> list[CountedTokens]:
    """The scripts' rule for counting the baseline's tokens, or no rule without a tokenizer."""
    if count_tokens is None:
        return []
    # Minus one, because the tokenizer puts a BOS before the text.
    return [CountedTokens(lambda record: count_tokens(record.text) - 1, "re-tokenised texts - 1")]
