"""Checks of a run's files alone: can `specbench run` have written them, and may the run enter
the leaderboard?
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specbench.analysis.divergence import find_agreements
from specbench.analysis.tables import tabled
from specbench.errors.kinds import RunFolderError
from specbench.judge.checks import Check, CheckedRun, Status
from specbench.judge.hashes import check_hashes
from specbench.judge.leaderboard import find_exclusions
from specbench.log.audit import read_audit
from specbench.log.faults import find_faults
from specbench.log.run import Run
from specbench.log.store import is_cut, read_run
from specbench.report.fact_notes import audit_note
from specbench.report.texts import Note

_MOST_FAULTS = 10
"""Faults that are listed on a terminal."""
_NEED_A_BASELINE = ("samples", "output", "audit", "MAT", "speed")
"""Checks that only a second run allows."""


@dataclass(frozen=True, slots=True)
class _Findings:
    """What the files of a run show, a sentence each."""

    faults: dict[str, list[str]]
    """By the name of the check."""
    exclusions: list[str] = field(default_factory=list)
    """Reasons that keep the run off the leaderboard."""
    unchecked: list[str] = field(default_factory=list)
    """What cannot be checked on this machine."""
    audit: str = ""
    """The result of the run's audit in words."""

    @property
    def all_faults(self) -> list[str]:
        return [fault for faults in self.faults.values() for fault in faults]

    @property
    def result(self) -> str:
        """The result in words."""
        if num_faults := len(self.all_faults):
            return "1 fault" if num_faults == 1 else f"{num_faults} faults"
        if self.exclusions:
            return "sound, not for the leaderboard"
        return "sound, for the leaderboard"

    def checks(self, *, for_leaderboard: bool) -> Iterator[Check]:
        """A failed check for each fault, or one that passed for each name without any; then the
        skipped ones. Exclusions fail only if the run is meant for the leaderboard.
        """
        for name, faults in self.faults.items():
            for fault in faults:
                yield Check(name, "failed", fault)
            if not faults:
                yield Check(name, "passed", "")
        for reason in self.unchecked:
            yield Check("hashes", "skipped", reason)
        status: Status = "failed" if for_leaderboard else "skipped"
        for reason in self.exclusions:
            yield Check("leaderboard", status, reason)
        for name in _NEED_A_BASELINE:
            yield Check(name, "skipped", "no baseline: files only")

    def notes(self) -> Iterator[Note]:
        """Notes for a terminal: the first faults, the exclusions, and what was not checked."""
        faults = self.all_faults
        for fault in faults[:_MOST_FAULTS]:
            yield Note("Fault", fault, is_warning=True)
        if (num_more := len(faults) - _MOST_FAULTS) > 0:
            yield Note("Fault", f"{num_more} more: --json lists them.", is_warning=True)
        for reason in self.exclusions:
            yield Note("Excluded", reason, is_warning=True)
        for reason in self.unchecked:
            yield Note("Unchecked", reason)
        if self.audit:
            yield Note("Audit", self.audit)
        names = ", ".join(_NEED_A_BASELINE)
        yield Note("Skipped", f"{names}: give a run to compare with by `--baseline RUN`")


def check_files(path: Path, *, for_leaderboard: bool = False) -> CheckedRun:
    """Check the run in a folder. A run that cannot be read fails a check and raises nothing.

    Reasons that keep the run off the leaderboard are failures only if it is meant for it.
    """
    name = path.resolve().name
    num_records = 0
    try:
        run = read_run(path, is_lenient=True)
        has_cut_line = is_cut(path)
    except RunFolderError as error:
        findings = _Findings({"lines": [error.message]})
    else:
        name = run.header.id
        num_records = len(run.records)
        findings = _find(run, has_cut_line=has_cut_line)
    faults = findings.all_faults
    return CheckedRun(
        run=name,
        checks=tuple(findings.checks(for_leaderboard=for_leaderboard)),
        summary=f"{name}: {findings.result} (no baseline: files only)",
        notes=tuple(findings.notes()),
        about={
            "num_records": num_records,
            "is_sound": not faults,
            "is_eligible": not (faults or findings.exclusions),
            "faults": faults,
            "exclusions": findings.exclusions,
            "unchecked": findings.unchecked,
            "audit": findings.audit,
        },
        is_doubtful=bool(findings.exclusions),
    )


def _find(run: Run, *, has_cut_line: bool) -> _Findings:
    """The faults of a run that was read, and the reasons that keep it off the leaderboard.

    With `has_cut_line`, samples.jsonl ends in the middle of a line.
    """
    header, records = run.header, run.records
    line_faults = [*run.left_out]  # lines that could not be read
    if has_cut_line:
        line_faults.append("The last line of samples.jsonl is cut off.")
    hashes = check_hashes(header, records)
    unchecked = hashes.unchecked
    audit_text = ""
    if run.audit:
        audit_text = audit_note(run.audit).text
    elif read_audit(run.folder):
        unchecked = [
            *unchecked,
            "audit.json judged other records. Run `specbench audit` again.",
        ]
    return _Findings(
        faults={
            "lines": line_faults,
            "records": [*find_faults(header, records), *_against_audit(run)],
            "hashes": hashes.faults,
        },
        exclusions=[*dict.fromkeys(find_exclusions(header, records, run.audit))],
        unchecked=unchecked,
        audit=audit_text,
    )


def _against_audit(run: Run) -> Iterator[str]:
    """Greedy answers that differ from vanilla's although the audit found them identical."""
    method_audits = run.audit.results if run.audit else ()
    identical_methods = [
        result.method
        for result in method_audits
        if result.status == "identical" and result.temperature == 0
    ]
    if not identical_methods:
        return
    # method -> its agreement with vanilla's greedy answers
    agreements = find_agreements(tabled(run).table, run.header.spec.values.history)
    for method in identical_methods:
        agreement = agreements.get(method)
        if agreement and agreement.divergences:
            yield (
                f"{method}: {len(agreement.divergences)} greedy answers differ from "
                "vanilla's, but the audit found all identical."
            )
