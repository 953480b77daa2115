"""The notes about an imported run: its files, the publisher's numbers, and missing facts."""

from collections.abc import Iterator

from specbench.analysis.metrics import RunMetrics
from specbench.report.fact_notes import samples
from specbench.report.texts import Note, make_note


def imported_notes(run: RunMetrics) -> Iterator[Note]:
    """The notes about the facts of an imported run, which was read from other tools' files.

    They are in the order of a report. The first argument of `make_note` is the note's key in
    `texts.toml`; the others fill its sentence.
    """
    imported = run.info.imported  # what is known of the files; None for a run of specbench
    assert imported is not None
    files = [f"{file.name}, sha256 {file.sha256[:12]}" for file in imported.files]
    yield make_note("imported", tools=imported.tools, files=files)
    # The rules by which the methods' files count tokens and steps, and the publisher's arithmetic.
    rules = [{"by": method, "rule": rule} for method, rule in imported.counting.items()]
    yield make_note("imported_counting", counting=rules, arithmetic=imported.arithmetic)
    if imported.figures:  # the publisher's numbers, such as a speedup, each with its rule in words
        yield make_note("imported_figures", figures=[figure.text for figure in imported.figures])
    if imported.findings:  # sentences about counting and budgets, as the files show them
        yield make_note("imported_findings", findings=[*imported.findings])
    yield make_note("imported_lacks", lacks=[*imported.lacks])  # facts that the files lack
    key, numbers = samples(run)  # of samples and completions
    yield make_note(key, run.info, **numbers)
    for oddity in imported.oddities:  # sentences about oddities in the files, which are warnings
        yield make_note("imported_oddity", text=oddity)
