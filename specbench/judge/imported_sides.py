"""Write notes on imported runs: the publisher's numbers, the counting of tokens, missing facts."""

from collections.abc import Iterator

from specbench.analysis.server_counters import mat_of_blocks
from specbench.analysis.stats.estimates import Estimate
from specbench.judge.explained_sides import ExplainedSide
from specbench.judge.explanation import Explanation
from specbench.report import formats
from specbench.report.texts import Note

_EXPLAINED = (
    "speedup",
    "MAT",
    "tokens/s",
    "mean tokens/s per question",
    "output_throughput",
)
"""Names of publishers' numbers that an explanation is about."""


def publisher_notes(explanation: Explanation) -> Iterator[Note]:
    """A note for each imported side with the publisher's numbers of its method."""
    for letter, side in zip("AB", explanation.sides, strict=False):
        figures = side.header.imported.figures if side.header.imported else ()
        # each number with the rule that gives it
        texts = [
            figure.text.removeprefix(f"{figure.method}: ")
            for figure in figures
            if figure.method == side.label and figure.name in _EXPLAINED
        ]
        if texts:
            yield Note(f"{letter}'s publisher", "; ".join(texts))


def file_notes(explanation: Explanation) -> Iterator[Note]:
    """Notes on the files of imported runs: the counting of tokens, the averages, oddities, and
    missing facts.

    If both sides are from one run, its files get one set of notes.
    """
    headers = [side.header for side in explanation.sides]
    if headers[0] == headers[-1]:
        headers = headers[:1]
    for letter, header in zip("AB", headers, strict=False):
        if imported := header.imported:
            rules = f"{imported.counting_text}; the publisher's arithmetic: {imported.arithmetic}"
            yield Note(f"{letter} counts", rules)
            if remarks := [*imported.findings, *imported.oddities]:
                yield Note(f"Seen in {letter}", "; ".join(remarks))
            yield Note(f"Not in {letter}", f"{', '.join(imported.lacks)} (not estimated)")
    names = {header.model.name for header in headers}
    # If the files of a run do not give the model's name (`untold_patterns`), names may differ
    # although the models are the same.
    if len(names) > 1 and any("model.name" in header.untold_patterns for header in headers):
        yield Note(
            "Model",
            "counts as unknown, since files may spell its name differently. Name it with "
            "`convert --model`",
        )


def steps_by_counters(side: ExplainedSide) -> str:
    """MAT of all answers in words, from the counters of a server that does not report the steps of
    each answer. It is empty if MAT is unknown.
    """
    blocks = [block for block in side.run.header.blocks if block.method == side.key.method]
    mat = mat_of_blocks(blocks)
    return f" ({formats.mat(mat)} by its server's counters)" if isinstance(mat, Estimate) else ""
