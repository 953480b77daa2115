"""Warn about answers with parts that the run did not ask for, or that the text does not show."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from specbench.analysis.warnings import RunWarning
from specbench.log.model import ChatHeader
from specbench.types import Record
from specbench.types.reply import split_thinking


def find_odd_answers(records: Sequence[Record], chat: ChatHeader | None) -> Iterator[RunWarning]:
    """Yield warnings about answers with parts that nobody asked for or that servers did not send.

    There are three kinds: answers that go on after an end token (some servers do not stop at it),
    answers with tokens that the server counted but did not send, and answers with reasoning in a
    run without thinking. `chat` describes the model's chat template; it is None in older runs,
    which get no warning.
    """
    if chat is None:
        return
    answers = [record for record in records if record.is_ok]
    # `chat.ends`: place that names end tokens -> their ids
    end_ids = {token_id for token_ids in chat.ends.values() for token_id in token_ids}
    # an end token before the last token
    yield from _counts("passed_ends", answers, lambda record: end_ids & {*record.token_ids[:-1]})
    yield from _counts(
        "hidden_tokens", answers, lambda record: record.serving and record.serving.num_hidden
    )
    # A template without a thinking mode (`thinking` is None) counts as no thinking, and so does an
    # unknown mode (`is_on` is None).
    if not (chat.thinking and chat.thinking.is_on):
        yield from _counts("think_marks", answers, lambda record: _has_reasoning(record, chat))


def _has_reasoning(record: Record, chat: ChatHeader) -> bool:
    """Check if an answer has reasoning. Its marks may be special tokens, which the text lacks."""
    is_sent_apart = bool(record.serving and record.serving.num_reasoning)
    is_marked = split_thinking(record.text) or {*chat.think_ids} & {*record.token_ids}
    return is_sent_apart or bool(is_marked)


def _counts(
    key: str, answers: Sequence[Record], is_odd: Callable[[Record], object]
) -> Iterator[RunWarning]:
    """Yield the warning with this key and each method's number of odd answers, if there are any.

    `is_odd` returns a true value for an odd answer.
    """
    # by method
    num_answers = Counter(answer.key.method for answer in answers)
    num_odd = Counter(answer.key.method for answer in answers if is_odd(answer))
    if num_odd:
        methods = [
            {"method": method, "number": number, "answers": num_answers[method]}
            for method, number in num_odd.items()
        ]
        yield RunWarning(key, {"methods": methods})
