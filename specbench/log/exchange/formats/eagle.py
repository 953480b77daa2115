"""Answers of EAGLE, Medusa and REST: `idxs` has the index of the last step of each turn.

The number of steps is the index + 1, as these tools count it, so each turn has at least one step.
An answer without steps, which has only the prefill's token, is written with the index 0, and is
read as an answer of one step.

REST adds `accept_lengths:`, with a colon. In a baseline's file, `new_tokens` is always 0, and
`idxs` has the index of the last token.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from specbench.log.exchange.answers import (
    CountTurn,
    StepsField,
    Turn,
    counts_of_turn,
    has_answers,
    read_answers,
    write_answers,
)
from specbench.log.exchange.arithmetic import (
    CountedTokens,
    our_tokens,
    published_tokens,
    retokenised,
    speed_figures,
)
from specbench.log.exchange.format import (
    CountTokens,
    FileContent,
    Format,
    MethodAnswers,
)
from specbench.log.exchange.source import SourceFile
from specbench.log.imported import ImportedFigure
from specbench.types import ImportedCounts, Record

_STEPS = StepsField("idxs", 0)
_OF_METHOD = "tokens: new_tokens, emitted by steps; steps: idx + 1"
_OF_BASELINE = "tokens and steps: idx + 1, since new_tokens is 0 and idx is the last token's index"
_TEMPERATURE = re.compile(r"temperature-(\d+(?:\.\d+)?)")
"""The temperature in the names that these tools give models."""


def _is_baseline(turns: Sequence[Turn]) -> bool:
    return not any(turn.new_tokens for turn in turns)


def _counts_of_baseline(turn: Turn) -> ImportedCounts:
    """The counts of a turn without `new_tokens`. EAGLE's arithmetic uses the index instead."""
    tokens = turn.steps
    return ImportedCounts(
        tokens, tokens - 1, num_emitted=tokens, num_steps=tokens, total_s=turn.wall_time
    )


def _counts(turns: Sequence[Turn]) -> CountTurn:
    return _counts_of_baseline if _is_baseline(turns) else counts_of_turn


def _read(source: SourceFile) -> FileContent:
    """Read the answers of a file, and the temperature if the model's name has it. The counting rule
    depends on whether the file is a method's or the baseline's.
    """
    content, turns = read_answers(source, _STEPS, _counts)  # the turns of all dialogues
    content.counting = _OF_METHOD
    if _is_baseline(turns):
        source.note("", "new_tokens is 0 in all turns: tokens are idx + 1")
        content.counting = _OF_BASELINE
    if temperature_match := _TEMPERATURE.search(content.model):
        content.temperature = float(temperature_match[1])
    return content


def _figures(answers: MethodAnswers, count_tokens: CountTokens | None) -> Iterator[ImportedFigure]:
    """Yield a method's speedup by EAGLE's formula for each rule of counting the baseline's tokens,
    and its MAT by three rules. `count_tokens` counts the tokens of a text. It is None without a
    tokenizer.
    """
    rules = [*retokenised(count_tokens), CountedTokens(published_tokens, "new_tokens")]
    base_counts = [record.imported for record in answers.baseline_records if record.imported]
    # If new_tokens is 0 in the baseline's file, two other rules take the place of the last one.
    if any(counts.counted_tokens is not None for counts in base_counts):
        rules[-1:] = [
            CountedTokens(published_tokens, "idx"),
            CountedTokens(our_tokens, "idx + 1", has_failed=False),
        ]
    yield from speed_figures(answers, "EAGLE's formula", rules)
    done = [record for record in answers.records if record.is_ok]
    yield from _mat_figures(answers.method, done)


def _mat_figures(method: str, records: Sequence[Record]) -> Iterator[ImportedFigure]:
    """Yield the method's MAT by each of three rules, for its answers that did not fail (`records`).

    For each answer, `num_emitted` is the number of tokens that its steps emitted (the sum of
    accept_lengths in the file, or else new_tokens), and `num_steps` is the number of steps (idx +
    1). None stands for a number that a file of another format lacks. There is no figure without
    steps, or if each step emits one token, as for the baseline. The second rule needs more steps
    than turns.
    """
    counts_by_turn = [record.imported for record in records if record.imported]
    num_tokens = sum(counts.num_emitted or 0 for counts in counts_by_turn)
    num_steps = sum(counts.num_steps or 0 for counts in counts_by_turn)
    if not num_steps or num_tokens == num_steps:
        return
    rule = "new_tokens / (idx + 1), over all steps"
    yield ImportedFigure(method, "MAT", num_tokens / num_steps, rule=rule)
    num_turns = len(counts_by_turn)
    if num_steps > num_turns:
        rule = "new_tokens / idx, which leaves out a step per turn"
        yield ImportedFigure(method, "MAT", num_tokens / (num_steps - num_turns), rule=rule)
    # A turn whose steps are unknown counts as 0 / 1.
    mat_by_turn = [(counts.num_emitted or 0) / (counts.num_steps or 1) for counts in counts_by_turn]
    rule = "the mean over turns of new_tokens / (idx + 1)"
    yield ImportedFigure(method, "MAT", sum(mat_by_turn) / num_turns, rule=rule)


FORMAT = Format(
    title="answers of EAGLE, Medusa or REST",
    tool="EAGLE, Medusa or REST",
    arithmetic="speed.py: mean tokens/s over questions / the baseline's mean; the "
    "baseline's tokens are those of its re-tokenised texts, minus 1",
    average="rates",
    matches=partial(has_answers, steps_field=_STEPS),
    read=_read,
    figures=_figures,
    write=partial(write_answers, steps_field=_STEPS),
)
