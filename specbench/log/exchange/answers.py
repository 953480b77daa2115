"""The form of answers of EAGLE, Medusa, Spec-Bench and REST: lists per turn of a question."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from specbench.log.exchange.format import (
    FileContent,
    WrittenAnswers,
    answer_key,
    failed,
    rate_figure,
    steps_of,
)
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.record import Amount, Whole
from specbench.types import ImportedCounts, Record

FAILED = "ERROR"
"""The answer that these tools write for a turn that raised an error."""
_CLOCK_DIGITS = 4
"""Seconds with more decimal digits than this were measured, not rounded or made up."""
_LACKS = ("token ids", "prompt tokens", "the time to the first token", "stop reasons", "seeds")


class Turn(NamedTuple):
    """The answer to one turn, with its place in the file."""

    line: Fields
    text: str
    new_tokens: int
    wall_time: float
    steps: int
    """`idxs` + 1 or `decoding_steps`."""
    accept_lengths: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[float, ...]:
        """Tokens, steps and seconds."""
        return (self.new_tokens, self.steps, self.wall_time)


Counts = Callable[[Turn], ImportedCounts]
"""The counts of a turn by the rule of its file."""


class StepsField(NamedTuple):
    """The list of a file that has the steps of each turn."""

    name: str
    """Key of the list."""
    first: int
    """The value that stands for one step: 1, or 0 if values are indices of last steps."""


class ReadAnswers(NamedTuple):
    """The answers of a file, and its turns as the file lists them."""

    content: FileContent
    turns: Sequence[Turn]


def has_answers(first: Fields, steps_field: StepsField) -> bool:
    """True if the first line of a file has answers with this list of steps."""
    has_choices = first.has("question_id", "choices")
    return has_choices and first.first("choices").has("turns", steps_field.name)


def counts_of_turn(turn: Turn) -> ImportedCounts:
    """The counts of a turn whose `new_tokens` are those that its steps emitted."""
    emitted = sum(turn.accept_lengths) or turn.new_tokens
    return ImportedCounts(
        turn.new_tokens, num_emitted=emitted, num_steps=turn.steps, total_s=turn.wall_time
    )


def read_answers(
    source: SourceFile, steps_field: StepsField, counts_of: Callable[[Sequence[Turn]], Counts]
) -> ReadAnswers:
    """The answers of a file. `steps_field` is the list of steps per turn; `counts_of` chooses the
    counting rule from all turns of the file.

    A failed turn is reported and left out: for it, these tools write the counts and the time of the
    turn before.
    """
    records: list[Record] = []
    turns: list[Turn] = []
    models: set[str] = set()
    questions: set[tuple[str, int]] = set()  # (question, pass) read so far
    for line in source.entries:  # a question each; its choices are passes
        models.add(line.get("model_id", str, ""))
        question = str(line.get("question_id", int | str))
        for repeat, choice in enumerate(line.each("choices")):
            if (question, repeat) in questions:
                raise line.error(f"question {question} occurs twice")
            questions.add((question, repeat))
            for number, turn in enumerate(_turns(choice, steps_field)):
                task = line.get("category", str, "")
                key = answer_key(question, turn=number, task=task, repeat=repeat)
                records.append(Record(key, "ok", 0, text=turn.text))
                turns.append(turn)
    count = counts_of(turns)  # from a turn to its tokens, steps and seconds
    counted_records = []
    for record, turn in zip(records, turns, strict=True):
        lengths = () if 0 in turn.accept_lengths else turn.accept_lengths
        counted_records.append(replace(record, imported=count(turn), accept_lengths=lengths))
    content = FileContent(
        records=[*_without_failures(counted_records, turns)],
        counting="",
        lacks=_LACKS,
        model=models.pop() if len(models) == 1 else "",
    )
    all_lengths = [length for turn in turns for length in turn.accept_lengths]
    if all_lengths:
        mat = sum(all_lengths) / len(all_lengths)
        content.figures.append(rate_figure("MAT", mat, "the mean of accept_lengths"))
    if 0 in all_lengths:
        source.note(
            "",
            f"{all_lengths.count(0)} of {len(all_lengths)} accept_lengths are 0, but a step emits "
            "a token: of their turns, only the sums are kept",
        )
    return ReadAnswers(content, turns)


def _turns(choice: Fields, steps_field: StepsField) -> Iterator[Turn]:
    """The turns of a choice, whose lists must have an element per turn.

    The steps of a turn are the value of `steps_field`, such as 4, or one more if that is the index
    of the last step. `accept_lengths` has the tokens of each step, turn after turn.
    """
    texts = choice.get("turns", list[str])
    tokens = choice.get("new_tokens", list[Whole])
    seconds = choice.get("wall_time", list[Amount])
    last_steps = choice.get(steps_field.name, list[Whole])
    for name, elements in zip(
        ("new_tokens", "wall_time", steps_field.name), (tokens, seconds, last_steps), strict=True
    ):
        if len(elements) != len(texts):
            raise choice.error(f"{len(texts)} turns, but {name} has {len(elements)}")
    steps = [last_step - steps_field.first + 1 for last_step in last_steps]
    lengths = choice.get("accept_lengths", list[Whole], [])
    if lengths and len(lengths) != sum(steps):
        choice.note(
            f"accept_lengths has {len(lengths)} elements for {sum(steps)} steps: it is left out"
        )
        lengths = []
    # `end` is the number of steps up to the end of the turn.
    for turn, (text, end) in enumerate(zip(texts, accumulate(steps), strict=True)):
        lengths_of_turn = tuple(lengths[end - steps[turn] : end])
        yield Turn(choice, text, tokens[turn], seconds[turn], steps[turn], lengths_of_turn)


def _without_failures(records: Sequence[Record], turns: Sequence[Turn]) -> Iterator[Record]:
    """The records, with only the publisher's counts in records of failed turns."""
    previous: Turn | None = None
    for record, turn in zip(records, turns, strict=True):
        reason = _failure(turn, previous)
        if reason:
            where = f"question {record.key.sample_id}, turn {record.key.turn + 1}"
            turn.line.note(f"{where}: {reason}; it is left out")
        yield failed(record, reason) if reason else record
        previous = turn


def _failure(turn: Turn, previous: Turn | None) -> str:
    """The reason why a turn failed; empty if it did not. `previous` is the turn before in the file.

    Two measured times agree in all digits only if one is a copy.
    """
    is_error = turn.text.strip() == FAILED
    is_measured = round(turn.wall_time, _CLOCK_DIGITS) != turn.wall_time
    is_copy = previous is not None and turn.counts == previous.counts and (is_error or is_measured)
    reasons = [f"the answer is {FAILED}"] if is_error else []
    if is_copy:
        reasons.append(f"it has the counts and the {turn.wall_time:.3f} s of the turn before")
    elif not turn.wall_time:
        reasons.append("it has no time")
    return ", and ".join(reasons)


def write_answers(written: WrittenAnswers, steps_field: StepsField) -> str:
    """The lines of a file: one per question, with its turns in order.

    `accept_lengths` has the tokens that each step emitted; not all of these tools write it.
    """
    questions: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in written.records:
        questions[record.key.task, record.key.sample_id].append(record)
    lines = []
    for (task, sample_id), records in questions.items():
        steps = [steps_of(record).num_steps for record in records]
        # A list has an element per turn, but `accept_lengths` one per step of all turns.
        choice = {
            "index": 0,
            "turns": [record.text if record.is_ok else FAILED for record in records],
            steps_field.name: [max(0, number + steps_field.first - 1) for number in steps],
            "new_tokens": [record.num_tokens for record in records],
            "wall_time": [record.wall_s or 0.0 for record in records],
            "accept_lengths": [n for record in records for n in record.accept_lengths],
        }
        model_id = f"{written.header.model.label}-temperature-{records[0].key.temperature}"
        question = {"question_id": sample_id, "category": task, "model_id": model_id}
        lines.append(json.dumps({**question, "choices": [choice]}) + "\n")
    return "".join(lines)
