"""The notes on an imported run: its files, publisher's numbers, and missing facts."""

from collections.abc import Iterator

from specbench.analysis.metrics import RunMetrics
from specbench.log.imported import ImportedHeader
from specbench.report.fact_notes import samples
from specbench.report.texts import Note, make_note


def imported_notes(run: RunMetrics) -> Iterator[Note]:
    """The facts of an imported run, in the order of a report."""
    imported = run.info.imported
    assert imported is not None
    yield make_note("imported", tools=imported.tools, files=_files(imported))
    counting = [{"by": method, "rule": rule} for method, rule in imported.counting.items()]
    yield make_note("imported_counting", counting=counting, arithmetic=imported.arithmetic)
    if imported.figures:
        yield make_note("imported_figures", figures=[figure.text for figure in imported.figures])
    if imported.findings:
        yield make_note("imported_findings", findings=[*imported.findings])
    yield make_note("imported_lacks", lacks=[*imported.lacks])
    key, numbers = samples(run)
    yield make_note(key, run.info, **numbers)
    for oddity in imported.oddities:
        yield make_note("imported_oddity", text=oddity)


def _files(imported: ImportedHeader) -> list[str]:
    return [f"{file.name}, sha256 {file.sha256[:12]}" for file in imported.files]
