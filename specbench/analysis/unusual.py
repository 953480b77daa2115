"""Find unusual answers of a run. They may be right, but a reader should know about them."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from specbench.analysis.grouping import group_by
from specbench.types import Record

UNLIKELY = 1e-3
"""Equal times are reported if the probability of that many by chance is below this. None of 230,000
pairs of honest answers had both times equal.
"""
MOST_BY_CHANCE = 2
"""Equal pairs are reported if their number is more than this many times what chance explains. Three
equal answers are three pairs, so numbers of pairs vary more than those of independent events.
"""
LEAST_TOKENS = 8
"""The fewest tokens of an answer whose decode time is long enough to differ from others."""
_ITERATIONS = 50
"""The number of iterations that solve the equation of `_by_chance`. Each reduces the error."""


def find_unusual(records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each kind of unusual answer."""
    answers = [record for record in records if record.is_ok]
    yield from _other_texts(answers)
    yield from _equal_times(answers)


def _other_texts(answers: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence if answers with equal token ids have different texts.

    It counts the answers whose text differs from that of the first answer with the same token ids,
    and names the first of them. Answers without token ids (imported ones) are left out, and so are
    answers with a number of tokens that the server reported: their ids were made from the text.
    """
    first_by_ids: dict[tuple[int, ...], Record] = {}  # token ids -> first answer with these ids
    deviating: list[Record] = []  # answers whose text is not that of the first answer
    for answer in answers:
        if answer.token_ids and (answer.serving is None or answer.serving.reported_tokens is None):
            first_answer = first_by_ids.setdefault(answer.token_ids, answer)
            if answer.text != first_answer.text:
                deviating.append(answer)
    if deviating:
        number = "1 answer differs" if len(deviating) == 1 else f"{len(deviating)} answers differ"
        example = deviating[0]
        yield (
            f"{number} in text from an answer with the same token ids, first "
            f"{example.key.method} on {example.key.sample_id}: {example.text[:40]!r}."
        )


def _num_pairs(group_sizes: Iterable[int]) -> int:
    """Count the pairs of members within groups of these sizes."""
    return sum(math.comb(size, 2) for size in group_sizes)


def _equal_times(answers: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each method with too many pairs of answers whose times are equal.

    Two answers are equal if their prefill times and their decode times are both the same, to the
    last digit. There are too many such pairs if chance makes their number unlikely, and if they are
    more than MOST_BY_CHANCE times as many as chance explains.
    """
    from scipy.special import pdtrc

    long_answers = [
        answer
        for answer in answers
        if answer.num_tokens >= LEAST_TOKENS and answer.prefill_s and answer.decode_s
    ]
    answers_by_method = group_by(long_answers, key=lambda answer: answer.key.method)
    for method, timed_answers in answers_by_method.items():
        # (prefill time, decode time) in seconds -> the answers that took these times
        by_times = group_by(timed_answers, key=lambda answer: (answer.prefill_s, answer.decode_s))
        # number of pairs of answers with both times equal, and (below) the part due to chance
        num_both = _num_pairs([len(equal_answers) for equal_answers in by_times.values()])
        if not num_both:
            continue
        num_by_chance = _by_chance(
            num_both,
            num_prefill=_num_pairs(Counter(answer.prefill_s for answer in timed_answers).values()),
            num_decode=_num_pairs(Counter(answer.decode_s for answer in timed_answers).values()),
            num_pairs=math.comb(len(timed_answers), 2),
        )
        # P(at least num_both pairs), for a Poisson distribution with the mean `num_by_chance`
        is_unlikely = pdtrc(num_both - 1, num_by_chance) < UNLIKELY
        if is_unlikely and num_both > MOST_BY_CHANCE * num_by_chance:
            earlier, later, *_ = next(equal for equal in by_times.values() if len(equal) > 1)
            pairs = "1 pair" if num_both == 1 else f"{num_both} pairs"
            yield (
                f"{method}: {pairs} of answers took the same time to the last digit, first "
                f"{earlier.key.sample_id} and {later.key.sample_id} ({earlier.decode_s:g} s)."
            )


def _by_chance(num_both: int, *, num_prefill: int, num_decode: int, num_pairs: int) -> float:
    """Estimate the number of pairs of answers in which a coarse clock makes both times equal.

    Of all `num_pairs` pairs, `num_prefill` have equal prefill times, `num_decode` equal decode
    times, and `num_both` both. A pair with equal times is a copy or a coincidence. If the two times
    of pairs that are not copies are independent, the number e of coincidences in both times is

        e = (num_prefill - copies) * (num_decode - copies) / num_pairs,  copies = num_both - e
    """
    num_by_chance = float(num_both)
    for _ in range(_ITERATIONS):
        copies = num_both - num_by_chance
        num_by_chance = (num_prefill - copies) * (num_decode - copies) / num_pairs
    return min(num_by_chance, num_both)
