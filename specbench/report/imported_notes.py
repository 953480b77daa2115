"""Make the notes about an imported run: its files, the publisher's numbers, and missing facts."""

from collections.abc import Iterator

from specbench.analysis.metrics import RunMetrics
from specbench.report.fact_notes import samples
from specbench.report.texts import Note, make_note


def imported_notes(run: RunMetrics) -> Iterator[Note]:
    """Yield the notes about an imported run, which was read from other tools' files, in order.

    The first argument of `make_note` is the key of the note in `texts.toml`. The others fill its
    sentence.
    """
    imported = run.info.imported  # None for a run of specbench
    assert imported is not None
    files = [f"{file.name}, sha256 {file.sha256[:12]}" for file in imported.files]
    yield make_note("imported", tools=imported.tools, files=files)
    # The files' rules for counting tokens and steps, and the publisher's rule for means.
    rules = [{"by": method, "rule": rule} for method, rule in imported.counting.items()]
    yield make_note("imported_counting", counting=rules, arithmetic=imported.arithmetic)
    if imported.figures:  # computed by the publisher's rules, in words
        yield make_note("imported_figures", figures=[figure.text for figure in imported.figures])
    if imported.findings:  # sentences about counting and budgets in the files
        yield make_note("imported_findings", findings=[*imported.findings])
    yield make_note("imported_lacks", lacks=[*imported.lacks])  # facts that the files lack
    key, numbers = samples(run)  # the numbers of samples and completions
    yield make_note(key, run.info, **numbers)
    # sentences about oddities in the files; their notes are warnings
    for oddity in imported.oddities:
        yield make_note("imported_oddity", text=oddity)
