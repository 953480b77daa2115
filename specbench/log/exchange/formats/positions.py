"""Read answers of SpecDecode-Bench's simulator, which has accepted lengths but no times.

Each position of an answer has an accepted length, which includes the target's token. With K draft
tokens, a step takes at most K + 1 tokens, and the next step begins where it ends. The oracle drafts
as many tokens as will be accepted.
"""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from specbench.log.exchange.format import (
    CountTokens,
    FileContent,
    Format,
    MethodAnswers,
    answer_key,
)
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.imported import ImportedFigure
from specbench.log.record import Positive, Whole
from specbench.types import ImportedCounts, Record

_LENGTHS = (1, 3, 5)
"""Numbers of draft tokens per step of the simulated methods."""
_ORACLE = 10**6
"""More draft tokens than any step accepts."""
_PREFIX = "acc_"
_ARITHMETIC = "accepted tokens per step, over all steps"
_Lengths = Annotated[list[Positive], Meta(min_length=1)]


def _matches(first_value: Fields) -> bool:
    return first_value.has("prompt_token_ids") and any(
        key.startswith(_PREFIX) for key in first_value.content
    )


def walk(lengths: list[int], num_draft_tokens: int) -> tuple[int, ...]:
    """The tokens of each step of a walk through the positions of an answer.

    `lengths` has, for each position, the tokens that a step there would accept. A step takes at
    most its draft tokens and one more, and no token after the last position. The next step begins
    where the step ends.
    """
    step_lengths: list[int] = []
    position = 0
    while position < len(lengths):
        most = min(num_draft_tokens + 1, len(lengths) - position)
        step_lengths.append(min(lengths[position], most))
        position += step_lengths[-1]
    return tuple(step_lengths)


def _read(source: SourceFile) -> FileContent:
    """Read the answers of a file, which has a line per prompt with a field acc_DRAFTER per drafter.

    The list `acc_len` of this field has, for each position of the answer, the tokens that a step
    there would accept. An answer gets a record for each method of `_walks`.
    """
    records: list[Record] = []
    num_doubled = 0  # prompts that begin with two equal tokens
    for line in source.entries:
        prompt_ids = line.get("prompt_token_ids", list[Whole])
        num_doubled += bool(prompt_ids) and prompt_ids[:1] == prompt_ids[1:2]
        for name in line.content:
            if name.startswith(_PREFIX):
                lengths = line.get(f"{name}.acc_len", _Lengths)
                sample_id, drafter = str(line.get("id", int | str)), name.removeprefix(_PREFIX)
                records += _walks(sample_id, len(prompt_ids), drafter, lengths)
    if num_doubled:
        source.note(
            "",
            f"{num_doubled} of {len(source.entries)} prompts begin with two equal tokens (BOS)",
        )
    return FileContent(
        records=records,
        counting="tokens and steps: a walk over the positions; steps emit all tokens",
        # facts that such files do not have
        lacks=("times", "texts", "the end of answers", "stop reasons"),
    )


def _walks(
    sample_id: str, num_prompt_tokens: int, drafter: str, lengths: list[int]
) -> Iterator[Record]:
    """Yield a record of the answer for each simulated method. The methods draft K tokens per step,
    or (the oracle) as many as will be accepted. `lengths` is the input of `walk`.
    """
    draft_tokens_by_method = {f"{drafter} K={k}": k for k in _LENGTHS}
    draft_tokens_by_method[f"{drafter} oracle"] = _ORACLE
    for name, num_draft_tokens in draft_tokens_by_method.items():
        steps = walk(lengths, num_draft_tokens)
        counts = ImportedCounts(len(lengths), num_emitted=len(lengths), num_steps=len(steps))
        key = answer_key(sample_id, method=name)
        yield Record(key, "ok", num_prompt_tokens, accept_lengths=steps, imported=counts)


def _figures(answers: MethodAnswers, _count: CountTokens | None) -> Iterator[ImportedFigure]:
    """Yield the MAT over all steps of all walks."""
    steps = [length for record in answers.records for length in record.accept_lengths]
    yield ImportedFigure(answers.method, "MAT", sum(steps) / len(steps), rule=_ARITHMETIC)


FORMAT = Format(
    title="positions of SpecDecode-Bench",
    tool="SpecDecode-Bench",
    arithmetic=_ARITHMETIC,
    matches=_matches,
    read=_read,
    figures=_figures,
)
