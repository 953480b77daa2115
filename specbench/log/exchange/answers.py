"""Read and write the answers of EAGLE, Medusa, Spec-Bench and REST, in lists with an element per
turn.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
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
from specbench.types import ImportedCounts, Record, RecordKey

FAILED = "ERROR"
"""The answer that these tools write for a turn that raised an error."""
_CLOCK_DIGITS = 4
"""A time with more decimals than this was measured. Other times may be rounded or made up."""
_LACKS = ("token ids", "prompt tokens", "the time to the first token", "stop reasons", "seeds")


class Turn(NamedTuple):
    """The answer to one turn, with the numbers of the file."""

    key: RecordKey
    """Key of the answer within its file."""
    line: Fields
    """The object with the answer, for notes with its place."""
    text: str
    new_tokens: int
    wall_time: float
    """Seconds."""
    steps: int
    """Number of steps: `idxs` + 1, or `decoding_steps`."""
    accept_lengths: tuple[int, ...] = ()
    """Tokens of each step [steps]. Empty if unknown."""

    @property
    def counts(self) -> tuple[float, ...]:
        """Tokens, steps and seconds."""
        return (self.new_tokens, self.steps, self.wall_time)


CountTurn = Callable[[Turn], ImportedCounts]
"""Counts a turn's tokens, steps and seconds by the rule of its file."""


class StepsField(NamedTuple):
    """The list in a file that has the number of steps of each turn."""

    name: str
    """Key of the list."""
    first: int
    """The value for a turn with one step. It is 1, or 0 if the list has the index of the last step.
    """


class ReadAnswers(NamedTuple):
    """The answers of a file as records, and its turns with the numbers of the file."""

    content: FileContent
    turns: Sequence[Turn]


def has_answers(first_line: Fields, steps_field: StepsField) -> bool:
    """True if the first line of a file has answers with this list of steps."""
    has_choices = first_line.has("question_id", "choices")
    return has_choices and first_line.first("choices").has("turns", steps_field.name)


def counts_of_turn(turn: Turn) -> ImportedCounts:
    """The counts of a turn whose `new_tokens` is the number of tokens that its steps emitted."""
    emitted = (sum(turn.accept_lengths) or turn.new_tokens) if turn.steps else 0
    return ImportedCounts(
        turn.new_tokens, num_emitted=emitted, num_steps=turn.steps, total_s=turn.wall_time
    )


def read_answers(
    source: SourceFile, steps_field: StepsField, counts_of: Callable[[Sequence[Turn]], CountTurn]
) -> ReadAnswers:
    """Read the answers of a file, with a record per turn, and its turns, both in the file's order.

    `steps_field` describes the file's list of steps per turn. `counts_of` takes all turns of the
    file, and returns the function that counts a turn. The caller adds the counting rule in words. A
    turn that failed gets a failed record, and is noted as an oddity of the file. For such a turn,
    these tools write the counts and the time of the turn before it.

    Raises:
        UserError: a question occurs twice, or a field is missing or wrong.
    """
    turns: list[Turn] = []
    models: set[str] = set()
    questions: set[tuple[str, int]] = set()  # (question, pass) read so far
    for line in source.entries:  # one question per line; its choices are passes over it
        models.add(line.get("model_id", str, ""))
        question = str(line.get("question_id", int | str))
        for repeat, choice in enumerate(line.each("choices")):
            if (question, repeat) in questions:
                raise line.error(f"question {question} occurs twice")
            questions.add((question, repeat))
            task = line.get("category", str, "")
            turns += _turns(choice, steps_field, answer_key(question, task=task, repeat=repeat))
    count_turn = counts_of(turns)  # counts a turn's tokens, steps and seconds
    previous_turns = [None, *turns]  # for each turn, the turn before it in the file
    content = FileContent(
        records=[
            _record(turn, previous, count_turn(turn))
            for turn, previous in zip(turns, previous_turns, strict=False)
        ],
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
            "a token: only the sums of these turns are kept",
        )
    return ReadAnswers(content, turns)


def _turns(choice: Fields, steps_field: StepsField, first_key: RecordKey) -> Iterator[Turn]:
    """Yield the turns of a choice, which are the answers to one question in one pass, in order.

    `first_key` is the key of the first turn.

    The lists of a choice have an element per turn, except `accept_lengths`, which has the tokens of
    each step of the first turn, then of the second, and so on. The list of steps has the number of
    a turn's steps, or the index of its last step (see `steps_field`).

    Raises:
        UserError: the lists with an element per turn differ in length, or a list is missing or
            wrong. If `accept_lengths` does not have an element per step, this is only noted.
    """
    texts = choice.get("turns", list[str])
    num_tokens = choice.get("new_tokens", list[Whole])
    seconds = choice.get("wall_time", list[Amount])
    stored_steps = choice.get(steps_field.name, list[Whole])  # numbers or indices
    for name, elements in zip(
        ("new_tokens", "wall_time", steps_field.name),
        (num_tokens, seconds, stored_steps),
        strict=True,
    ):
        if len(elements) != len(texts):
            raise choice.error(f"{len(texts)} turns, but {name} has {len(elements)}")
    # `first` stands for one step: 1 for numbers of steps, 0 for indices.
    num_steps = [stored - steps_field.first + 1 for stored in stored_steps]
    lengths = choice.get("accept_lengths", list[Whole], [])  # tokens per step
    if lengths and len(lengths) != sum(num_steps):
        choice.note(
            f"accept_lengths has {len(lengths)} elements for {sum(num_steps)} steps: it is left out"
        )
        lengths = []
    # `end` is the number of steps of this turn and all turns before it.
    for turn_index, (answer_text, end) in enumerate(zip(texts, accumulate(num_steps), strict=True)):
        lengths_of_turn = tuple(lengths[end - num_steps[turn_index] : end])
        yield Turn(
            replace(first_key, turn=turn_index),
            choice,
            answer_text,
            num_tokens[turn_index],
            seconds[turn_index],
            num_steps[turn_index],
            lengths_of_turn,
        )


def _record(turn: Turn, previous: Turn | None, counts: ImportedCounts) -> Record:
    """The record of a turn with these counts. `previous` is the turn before it in the file.

    If the turn failed, it gets a failed record, which keeps the text, the number of tokens as the
    file's publisher counts them, and the seconds. The failure is noted as an oddity of the file.
    """
    # A length of 0 is wrong, because every step emits a token.
    lengths = () if 0 in turn.accept_lengths else turn.accept_lengths
    record = Record(
        turn.key,
        "ok",
        prompt_tokens=0,  # unknown
        text=turn.text,
        accept_lengths=lengths,
        imported=counts,
    )
    reason = _failure(turn, previous)  # empty if the turn did not fail
    if not reason:
        return record
    where = f"question {turn.key.sample_id}, turn {turn.key.turn + 1}"
    turn.line.note(f"{where}: {reason}; it counts as failed")
    return failed(record, reason)


def _failure(turn: Turn, previous: Turn | None) -> str:
    """The reason why a turn failed, or an empty text if it did not fail.

    `previous` is the turn before it in the file, None for the first turn. A turn is a copy if it
    has the counts and the time of `previous`, since two measured times never agree in all digits. A
    rounded time shows a copy only if the answer is also an error.
    """
    is_error = turn.text.strip() == FAILED
    # A time with few decimals was rounded or made up.
    is_measured = round(turn.wall_time, _CLOCK_DIGITS) != turn.wall_time
    is_copy = previous is not None and turn.counts == previous.counts and (is_error or is_measured)
    reasons = [f"the answer is {FAILED}"] if is_error else []
    if is_copy:
        reasons.append(f"it repeats the counts and the {turn.wall_time:.3f} s of the turn before")
    elif not turn.wall_time:
        reasons.append("it has no time")
    return ", and ".join(reasons)


def write_answers(written: WrittenAnswers, steps_field: StepsField) -> str:
    """The text of a file with these answers. Each line has the JSON object of a question.

    The answers are those of a method at one temperature and load, in one pass over the prompts.
    `steps_field` describes the list that has the steps of each turn in such a file.

    Raises:
        UserError: the steps of an answer are unknown.
    """
    # (task, sample id) -> the records of the question's turns, in order
    records_by_question: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in written.records:
        records_by_question[record.key.task, record.key.sample_id].append(record)
    lines = []
    for (task, sample_id), records in records_by_question.items():
        steps = [steps_of(record).num_steps for record in records]  # per turn; 0 if it failed
        # An index cannot say "no step", so such a turn gets one step of one token.
        lengths_without_steps = (1,) * (1 - steps_field.first)
        lengths_by_turn = [
            record.accept_lengths if num_steps else lengths_without_steps
            for record, num_steps in zip(records, steps, strict=True)
        ]
        has_all_lengths = all(
            record.accept_lengths or not num_steps
            for record, num_steps in zip(records, steps, strict=True)
        )
        # The lists have an element per turn, except `accept_lengths`, which has one per step.
        choice = {
            "index": 0,
            "turns": [record.text if record.is_ok else FAILED for record in records],
            # Numbers of steps if `first` is 1, or indices of last steps if it is 0.
            steps_field.name: [max(0, num_steps + steps_field.first - 1) for num_steps in steps],
            "new_tokens": [record.num_tokens for record in records],
            "wall_time": [record.wall_s or 0.0 for record in records],
            # Empty if a turn with steps does not list them, as in some imported runs.
            "accept_lengths": list(chain(*lengths_by_turn)) if has_all_lengths else [],
        }
        question = {
            "question_id": sample_id,
            "category": task,
            "model_id": f"{written.header.model.label}-temperature-{records[0].key.temperature}",
            "choices": [choice],
        }
        lines.append(json.dumps(question) + "\n")
    return "".join(lines)
