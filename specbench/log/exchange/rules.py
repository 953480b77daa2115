"""Infer from the answers how a tool counted tokens and steps.

An answer has n tokens, with its end token and without the tokens that the end cut, and k steps
after the prefill. A tool counts n tokens, n - 1 (without the prefill's), n - e (without the end
token) or n + c (with the cut tokens). It counts k steps, k + 1 (the prefill is a step) or k - 1
(the index of the last step).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from specbench.log.exchange.format import MethodAnswers
from specbench.types import Record, RequestKey

_LEAST_CUT = 3
"""A budget is reported only if at least this many answers have the largest number of tokens."""
_LEAST_FIRST = 20
"""Minimum number of answers from which to conclude that first steps of one token are prefills."""


def compare_counts(answers: MethodAnswers) -> Iterator[str]:
    """Yield sentences about the counting rules that the answers of a method and the baseline
    reveal.

    The first sentence is about steps whose tokens are listed, the second about answers with equal
    texts, and the third about a budget, which is the maximum number of tokens of an answer. A
    sentence is left out if the answers do not reveal its subject. A request is a key without the
    method.
    """
    done = [record for record in answers.records if record.is_ok]
    yield from _rule_of_steps(answers.method, done)
    base_by_request = {  # request -> the baseline's answer
        _request(record): record for record in answers.baseline_records if record.is_ok
    }
    # The method's and the baseline's answer to the same request.
    pairs = [
        (record, base_by_request[_request(record)])
        for record in done
        if _request(record) in base_by_request
    ]
    equal_pairs = [
        (answer, base) for answer, base in pairs if answer.text and answer.text == base.text
    ]
    if equal_pairs:
        # (the method's count of tokens - the baseline's) -> number of answers
        excess = Counter(answer.num_tokens - base.num_tokens for answer, base in equal_pairs)
        counts = ", ".join(
            f"{_more(difference)} in {num_answers}"
            for difference, num_answers in sorted(excess.items())
        )
        yield (
            f"{len(equal_pairs)} of {len(pairs)} answers of {answers.method} have "
            f"{answers.baseline}'s text; in these, {answers.method} counts {counts}. Its rule "
            f"relative to {answers.baseline}: {_rule_of_tokens(excess)}"
        )
    yield from _budget(answers, pairs)


def _rule_of_tokens(differences: Iterable[int]) -> str:
    """The method's rule for counting tokens, compared with the baseline's, in words.

    `differences` has each number (the method's tokens - the baseline's) that occurs among the
    answers with the baseline's text. There is at least one. The top of this file explains n, e and
    c.
    """
    distinct = set(differences)
    if distinct == {0}:
        return "the same rule"
    if distinct == {-1}:
        return "n - 1, without the prefill's token, or an index"
    if distinct == {-1, 0}:
        return "n - e, without end tokens"
    if min(distinct) >= 0:
        return "n + c, with tokens cut off at the end"
    return "no single rule"


def _rule_of_steps(method: str, records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence about how a method counts tokens and steps, if any record lists the tokens
    of its steps (`accept_lengths`).

    The rule follows from the differences (an answer's tokens - its steps' tokens). All are 1 if the
    steps emit all tokens except the prefill's.
    """
    records_with_steps = [record for record in records if record.accept_lengths]
    # Each number (tokens of an answer, less the tokens of its steps) that occurs.
    differences = {record.num_tokens - sum(record.accept_lengths) for record in records_with_steps}
    if not differences:
        return
    if differences == {1}:
        rule = "steps emit all tokens but the prefill's (n tokens, k steps)"
    elif differences == {0}:
        rule = _rule_of_first_steps(records_with_steps)
    elif differences <= {0, 1}:
        rule = "steps emit all tokens but the prefill's, without end tokens (n - e)"
    elif max(differences) <= 1:
        rule = "tokens cut off at the end are emitted by steps, but not counted"
    elif 1 in differences:
        rule = "tokens cut off at the end are counted, but no step emits them (n + c tokens)"
    else:
        rule = "some counted tokens are emitted by no step (n + c tokens, or k - 1 steps)"
    yield f"{method}: {rule}"


def _rule_of_first_steps(listed: Sequence[Record]) -> str:
    """The counting rule of a method, in words, if steps emit all tokens of the `listed` answers.

    A first step that emits several tokens is not a prefill, which emits one token.
    """
    if any(record.accept_lengths[0] > 1 for record in listed):
        return (
            "steps emit all tokens; some first steps emit several, so none is a prefill "
            "(n - 1 tokens)"
        )
    if len(listed) < _LEAST_FIRST or all(max(record.accept_lengths) == 1 for record in listed):
        return "steps emit all tokens: n - 1 tokens, or k + 1 steps; the file cannot tell which"
    return (
        "steps emit all tokens, and the first step of each answer emits one, as a prefill does: "
        "k + 1 steps, or n - 1 tokens if nothing is drafted there"
    )


def _budget(answers: MethodAnswers, pairs: Sequence[tuple[Record, Record]]) -> Iterator[str]:
    """Yield a sentence if the baseline's answers end at a budget that the method's answers exceed.

    `pairs` are the method's and the baseline's answers to the same requests. A budget shows in
    several answers of the baseline that have as many tokens as its longest one.
    """
    most = max((base.num_tokens for _, base in pairs), default=0)
    num_cut = sum(base.num_tokens == most for _, base in pairs)
    longest = max((answer.num_tokens for answer, _ in pairs), default=0)
    if num_cut >= _LEAST_CUT and longest > most:
        yield (
            f"{num_cut} answers of {answers.baseline} are cut at {most} tokens, but "
            f"{answers.method}'s have up to {longest:,}"
        )


def _more(difference: int) -> str:
    """A difference of tokens in words, such as "2 more" or "the same number of tokens"."""
    if not difference:
        return "the same number of tokens"
    return f"{abs(difference)} {'more' if difference > 0 else 'fewer'}"


def _request(record: Record) -> RequestKey:
    return replace(record.key, method="").request
