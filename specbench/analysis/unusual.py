"""Unusual answers of a run: they may be right, but a reader should know of them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from specbench.types import Record

UNLIKELY = 1e-3
"""Equal times are reported if the probability of so many by chance is below this. Of 230,000 pairs
of honest answers, none was equal in both times.
"""
MOST_BY_CHANCE = 2
"""Equal pairs are reported if there are more than this many times as many as chance explains. Three
equal answers are three pairs, so pairs vary more than independent events.
"""
LEAST_TOKENS = 8
"""Fewest tokens of an answer whose decode time is long enough to differ from other answers'."""
_ITERATIONS = 50
"""Iterations that solve the equation of `_by_chance`; each makes the error smaller."""


def find_unusual(records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each kind of answers that are unusual."""
    answers = [record for record in records if record.is_ok]
    yield from _other_texts(answers)
    yield from _equal_times(answers)


def _other_texts(answers: Sequence[Record]) -> Iterator[str]:
    """A sentence if equal token ids have different texts. Ids that were made from a server's text
    are left out.
    """
    first_by_ids: dict[tuple[int, ...], Record] = {}
    others: list[Record] = []  # their texts differ from the first one's
    for answer in answers:
        if answer.serving is None or answer.serving.reported_tokens is None:
            first = first_by_ids.setdefault(answer.token_ids, answer)
            if answer.text != first.text:
                others.append(answer)
    if others:
        number = "1 answer has" if len(others) == 1 else f"{len(others)} answers have"
        yield (
            f"{number} a different text from an answer with the same token ids, first "
            f"{others[0].key.method} on {others[0].key.sample_id}: {others[0].text[:40]!r}."
        )


def _num_pairs(group_sizes: Iterable[int]) -> int:
    """The pairs within groups of these sizes."""
    return sum(math.comb(size, 2) for size in group_sizes)


def _equal_times(answers: Sequence[Record]) -> Iterator[str]:
    """A sentence for each method with answers whose times are both equal to the last digit, if
    they are too many for chance.
    """
    from scipy.special import pdtrc

    answers_by_method: dict[str, list[Record]] = defaultdict(list)
    for answer in answers:
        if answer.num_tokens >= LEAST_TOKENS and answer.prefill_s and answer.decode_s:
            answers_by_method[answer.key.method].append(answer)
    for method, timed in answers_by_method.items():
        # both times -> the answers that took them
        by_times: dict[tuple[float | None, float | None], list[Record]] = defaultdict(list)
        for answer in timed:
            by_times[answer.prefill_s, answer.decode_s].append(answer)
        # pairs of answers with both times equal, and the number of them that chance explains
        num_both = _num_pairs([len(equal) for equal in by_times.values()])
        if not num_both:
            continue
        by_chance = _by_chance(
            num_both,
            num_prefill=_num_pairs(Counter(answer.prefill_s for answer in timed).values()),
            num_decode=_num_pairs(Counter(answer.decode_s for answer in timed).values()),
            num_pairs=math.comb(len(timed), 2),
        )
        is_unlikely = pdtrc(num_both - 1, by_chance) < UNLIKELY  # P(num_both or more)
        if is_unlikely and num_both > MOST_BY_CHANCE * by_chance:
            first, second, *_ = next(equal for equal in by_times.values() if len(equal) > 1)
            pairs = "1 pair" if num_both == 1 else f"{num_both} pairs"
            yield (
                f"{method}: {pairs} of answers took the same time to the last digit, first "
                f"{first.key.sample_id} and {second.key.sample_id} ({first.decode_s:g} s)."
            )


def _by_chance(num_both: int, *, num_prefill: int, num_decode: int, num_pairs: int) -> float:
    """The number of pairs in which both times are equal by chance, as a coarse clock makes likely.

    A pair with equal prefill times, or with equal decode times, is a copy or a coincidence. If the
    two times of pairs that are not copies are independent, the number e of coincidences is

        e = (num_prefill - copies) * (num_decode - copies) / num_pairs,  copies = num_both - e
    """
    by_chance = float(num_both)
    for _ in range(_ITERATIONS):
        copies = num_both - by_chance
        by_chance = (num_prefill - copies) * (num_decode - copies) / num_pairs
    return min(by_chance, num_both)
