"""Answers with parts that their run did not ask for, or that their text does not show."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from specbench.analysis.warnings import RunWarning
from specbench.log.model import ChatHeader
from specbench.types import Record
from specbench.types.reply import split_thinking


def find_odd_answers(records: Sequence[Record], chat: ChatHeader | None) -> Iterator[RunWarning]:
    """Warnings about answers with parts that the run did not ask for or that servers did not send.

    There are three: answers that go on after an end token (servers may not stop at it), answers
    with tokens that the server counted but did not send, and answers with reasoning in a run
    without thinking. `chat` describes the model's chat template; None in older runs, which get no
    warning. `serving` has a server's counts for an answer; None if there was no server.
    """
    if chat is None:
        return
    answers = [record for record in records if record.is_ok]
    # `chat.ends` has the ids of end tokens, by the place that names them
    end_ids = {token_id for token_ids in chat.ends.values() for token_id in token_ids}
    # an end token before the last token
    yield from _counts("passed_ends", answers, lambda record: end_ids & {*record.token_ids[:-1]})
    yield from _counts(
        "hidden_tokens", answers, lambda record: record.serving and record.serving.num_hidden
    )
    # No thinking mode in the template (`thinking` is None) and an unknown one (`is_on` is None)
    # count as no thinking.
    if not (chat.thinking and chat.thinking.is_on):
        yield from _counts("think_marks", answers, lambda record: _has_reasoning(record, chat))


def _has_reasoning(record: Record, chat: ChatHeader) -> bool:
    """True if an answer has reasoning. Marks may be special tokens, which its text lacks."""
    is_sent_apart = bool(record.serving and record.serving.num_reasoning)
    is_marked = split_thinking(record.text) or {*chat.think_ids} & {*record.token_ids}
    return is_sent_apart or bool(is_marked)


def _counts(
    key: str, answers: Sequence[Record], is_odd: Callable[[Record], object]
) -> Iterator[RunWarning]:
    """Yield the warning of this key with each method's number of odd answers, if there are any.

    `is_odd` gives a true value for an odd answer.
    """
    # both by method
    num_answers = Counter(answer.key.method for answer in answers)
    num_odd = Counter(answer.key.method for answer in answers if is_odd(answer))
    if num_odd:
        methods = [
            {"method": method, "number": number, "answers": num_answers[method]}
            for method, number in num_odd.items()
        ]
        yield RunWarning(key, {"methods": methods})
