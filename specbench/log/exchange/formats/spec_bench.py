"""Read and write answers of Spec-Bench. They have `decoding_steps` per turn, and the
`accept_lengths` of all turns in one list.
"""

from collections.abc import Iterator
from functools import partial

from specbench.log.exchange.answers import (
    StepsField,
    counts_of_turn,
    has_answers,
    read_answers,
    write_answers,
)
from specbench.log.exchange.arithmetic import (
    CountedTokens,
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

_STEPS = StepsField("decoding_steps", 1)
_FORMULA = "Spec-Bench's formula"


def _read(source: SourceFile) -> FileContent:
    content, _ = read_answers(source, _STEPS, lambda _turns: counts_of_turn)
    content.counting = "tokens: new_tokens; steps: decoding_steps, which emit accept_lengths"
    return content


def _figures(answers: MethodAnswers, count_tokens: CountTokens | None) -> Iterator[ImportedFigure]:
    """Yield Spec-Bench's speedups. Its script re-tokenises the baseline's texts to count the
    baseline's tokens.
    """
    rules = [*retokenised(count_tokens), CountedTokens(published_tokens, "new_tokens")]
    return speed_figures(answers, _FORMULA, rules)


FORMAT = Format(
    title="answers of Spec-Bench",
    tool="Spec-Bench",
    arithmetic="evaluation/speed.py: mean tokens/s over questions / the baseline's mean; "
    "the baseline's tokens are those of its re-tokenised texts, minus 1",
    average="rates",
    matches=partial(has_answers, steps_field=_STEPS),
    read=_read,
    figures=_figures,
    write=partial(write_answers, steps_field=_STEPS),
)
