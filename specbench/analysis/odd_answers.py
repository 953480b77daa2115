"""Answers with something that their run did not ask for, or that their text does not show."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from specbench.analysis.warnings import RunWarning
from specbench.log.model import ChatHeader
from specbench.types import Record


def find_odd_answers(records: Sequence[Record], chat: ChatHeader | None) -> Iterator[RunWarning]:
    """Counts of answers that go on after the end of their turn.

    Only those of servers do: the engine stops there. `chat` is None in older runs, which are not
    judged.
    """
    if chat is None:
        return
    answers = [record for record in records if record.is_ok]
    end_ids = {token_id for token_ids in chat.ends.values() for token_id in token_ids}
    yield from _counts("passed_ends", answers, lambda record: end_ids & {*record.token_ids[:-1]})


def _counts(
    key: str, answers: Sequence[Record], is_odd: Callable[[Record], object]
) -> Iterator[RunWarning]:
    """The note of a key with the number of odd answers of each method that has any."""
    num_answers = Counter(answer.key.method for answer in answers)
    num_odd = Counter(answer.key.method for answer in answers if is_odd(answer))
    if num_odd:
        methods = [
            {"method": method, "number": number, "answers": num_answers[method]}
            for method, number in num_odd.items()
        ]
        yield RunWarning(key, {"methods": methods})
