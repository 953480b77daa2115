"""Checks of a run's files alone: can `specbench run` have written them, and may the run enter
the leaderboard?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specbench.analysis.divergence import find_agreements
from specbench.analysis.records import make_table
from specbench.errors import RunFolderError
from specbench.judge.checks import Check, CheckedRun, Status
from specbench.judge.hashes import hash_faults, unknown_hashes
from specbench.judge.leaderboard import find_exclusions
from specbench.log.audit import read_audit
from specbench.log.faults import find_faults
from specbench.log.run import Run
from specbench.log.store import is_cut, read_run
from specbench.report.notes import audit_note
from specbench.report.texts import Note

_MOST_FAULTS = 10
_NEED_A_BASELINE = ("samples", "output", "audit", "MAT", "speed")


def check_files(path: Path, *, for_leaderboard: bool = False) -> CheckedRun:
    """Check the run in a folder. A run that cannot be read fails a check and raises nothing.

    Reasons that keep the run off the leaderboard are failures only if it is meant for it.
    """
    try:
        run = read_run(path, is_lenient=True)
        cut = ["The last line of samples.jsonl is cut off."] * is_cut(path)
    except RunFolderError as error:
        return _checked(path.resolve().name, None, {"lines": [error.message]}, for_leaderboard)
    faults = {
        "lines": [*run.left_out, *cut],
        "records": [*find_faults(run.header, run.records), *_against_audit(run)],
        "hashes": [*hash_faults(run.header, run.records)],
    }
    return _checked(run.header.id, run, faults, for_leaderboard)


def _checked(
    name: str, run: Run | None, faults: Mapping[str, Sequence[str]], for_leaderboard: bool
) -> CheckedRun:
    exclusions = dict.fromkeys(find_exclusions(run.header, run.records, run.audit) if run else ())
    unchecked = [*unknown_hashes(run.header)] if run else []
    if run and run.audit is None and run.path and read_audit(run.path):
        unchecked.append("audit.json judged other records. Run `specbench audit` again.")
    every = [text for texts in faults.values() for text in texts]
    checks = [
        Check(about, "failed" if text else "passed", text)
        for about, texts in faults.items()
        for text in texts or [""]
    ]
    checks += [Check("hashes", "skipped", text) for text in unchecked]
    status: Status = "failed" if for_leaderboard else "skipped"
    checks += [Check("leaderboard", status, text) for text in exclusions]
    checks += [Check(about, "skipped", "no baseline: files only") for about in _NEED_A_BASELINE]
    audit = audit_note(run.audit).text if run and run.audit else ""
    result = "sound, not for the leaderboard" if exclusions else "sound, for the leaderboard"
    if every:
        result = "1 fault" if len(every) == 1 else f"{len(every)} faults"
    return CheckedRun(
        run=name,
        checks=tuple(checks),
        summary=f"{name}: {result} (no baseline: files only)",
        notes=tuple(_notes(every, [*exclusions], unchecked, audit)),
        about={
            "num_records": len(run.records) if run else 0,
            "is_sound": not every,
            "is_eligible": not (every or exclusions),
            "faults": every,
            "exclusions": [*exclusions],
            "unchecked": unchecked,
            "audit": audit,
        },
        is_doubtful=bool(exclusions),
    )


def _against_audit(run: Run) -> Iterator[str]:
    """Greedy answers that differ from vanilla's although the audit found them identical."""
    for one in run.audit.results if run.audit else ():
        if one.status == "identical" and one.temperature == 0:
            agreements = find_agreements(make_table(run.records), run.header.spec.values.history)
            agreement = agreements.get(one.method)
            if agreement and agreement.divergences:
                yield (
                    f"{one.method}: {len(agreement.divergences)} greedy answers differ from "
                    "vanilla's, but the audit found all identical."
                )


def _notes(
    faults: Sequence[str], exclusions: Sequence[str], unchecked: Sequence[str], audit: str
) -> Iterator[Note]:
    yield from (Note("Fault", text, is_warning=True) for text in faults[:_MOST_FAULTS])
    if (rest := len(faults) - _MOST_FAULTS) > 0:
        yield Note("Fault", f"{rest} more: --json lists them.", is_warning=True)
    yield from (Note("Excluded", text, is_warning=True) for text in exclusions)
    yield from (Note("Unchecked", text) for text in unchecked)
    if audit:
        yield Note("Audit", audit)
    yield Note(
        "Skipped", f"{', '.join(_NEED_A_BASELINE)}: give a run to compare with by `--baseline RUN`"
    )
