"""Check a run using only its files.

The checks find out if `specbench run` could have written the files, and if the run may enter the
leaderboard.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specbench.analysis.divergence import find_agreements
from specbench.analysis.tables import TabledRun, tabled
from specbench.analysis.unusual import find_unusual
from specbench.errors.kinds import RunFolderError
from specbench.judge.checks import Check, CheckedRun, Status
from specbench.judge.hashes import check_hashes
from specbench.judge.leaderboard import find_exclusions
from specbench.judge.sources import check_sources_alone
from specbench.log.audit import read_audit
from specbench.log.faults import find_faults
from specbench.log.run import Run
from specbench.log.store import is_cut, read_run
from specbench.report.fact_notes import audit_note
from specbench.report.facts import model_phrase
from specbench.report.texts import Note, count_text

_MOST_FAULTS = 10
"""Number of faults listed on a terminal."""
_NEED_A_BASELINE = ("samples", "output", "audit", "MAT", "speed")
"""Checks that need a second run."""


@dataclass(frozen=True, slots=True)
class _Findings:
    """The findings in the files of a run, as sentences."""

    faults: dict[str, list[str]]
    """Name of a check -> its faults: things that `specbench run` cannot have written."""
    exclusions: list[str] = field(default_factory=list)
    """Reasons that keep the run off the leaderboard."""
    unchecked: list[str] = field(default_factory=list)
    """Things that cannot be checked on this machine."""
    model: str = ""
    """The model in words; empty for a run that cannot be read."""
    audit: str = ""
    """The result of the run's audit in words."""
    sources: list[Check] = field(default_factory=list)
    """Checks that the speed comes from drafting."""
    unusual: list[str] = field(default_factory=list)
    """Unusual facts about the answers. The answers may still be right."""

    @property
    def all_faults(self) -> list[str]:
        return [fault for faults in self.faults.values() for fault in faults]

    @property
    def result(self) -> str:
        """The result in words."""
        if num_faults := len(self.all_faults):
            return count_text(num_faults, "fault")
        if self.exclusions:
            return "sound, not for the leaderboard"
        return "sound, for the leaderboard"

    def checks(self, *, for_leaderboard: bool) -> Iterator[Check]:
        """A failed check per fault, or a passed check per name without faults, then other checks.

        Exclusions are failed checks only if the run is meant for the leaderboard.
        """
        for name, faults in self.faults.items():
            for fault in faults:
                yield Check(name, "failed", fault)
            if not faults:
                yield Check(name, "passed", "")
        yield from self.sources
        for sentence in self.unusual:
            yield Check("records", "skipped", sentence)
        for reason in self.unchecked:  # mostly hashes of files that are not on this machine
            yield Check("hashes", "skipped", reason)
        status: Status = "failed" if for_leaderboard else "skipped"
        for reason in self.exclusions:
            yield Check("leaderboard", status, reason)
        for name in _NEED_A_BASELINE:  # checks that compare the run with another one
            yield Check(name, "skipped", "no baseline: files only")

    def notes(self) -> Iterator[Note]:
        """Notes for a terminal on the model, the first faults, doubts about speed and answers,
        exclusions, things that were not checked, and the audit.
        """
        if self.model:
            yield Note("Model", self.model)
        faults = self.all_faults
        for fault in faults[:_MOST_FAULTS]:
            yield Note("Fault", fault, is_warning=True)
        if (num_more := len(faults) - _MOST_FAULTS) > 0:
            yield Note("Fault", f"{num_more} more: --json lists them.", is_warning=True)
        for check in self.sources:
            if check.status != "passed":
                yield Note("Speed", check.text, is_warning=True)
        for sentence in self.unusual:
            yield Note("Unusual", sentence, is_warning=True)
        for reason in self.exclusions:
            yield Note("Excluded", reason, is_warning=True)
        for reason in self.unchecked:
            yield Note("Unchecked", reason)
        if self.audit:
            yield Note("Audit", self.audit)
        names = ", ".join(_NEED_A_BASELINE)
        yield Note("Skipped", f"{names}: these need a run to compare with (`--baseline RUN`)")


def check_files(path: Path, *, for_leaderboard: bool = False) -> CheckedRun:
    """Check the run in a folder. A run that cannot be read fails a check and raises nothing.

    Reasons that keep the run off the leaderboard are failures only with `for_leaderboard`.
    """
    name = path.resolve().name
    num_records = 0
    try:
        run = read_run(path, is_lenient=True)  # wrong lines are left out, and become faults
        has_cut_line = is_cut(path)
    except RunFolderError as error:  # there is no run, or its files cannot be read
        findings = _Findings(faults={"lines": [error.message]})
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
        about={  # only for the JSON document
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
    """Find the faults of a run that was read, and the reasons that keep it off the leaderboard.

    `has_cut_line` is True if samples.jsonl ends in the middle of a line.
    """
    header, records = run.header, run.records
    line_faults = [*run.left_out]  # sentences on lines that could not be read
    if has_cut_line:
        line_faults.append("The last line of samples.jsonl is cut off.")
    if not any(record.is_ok for record in records):
        line_faults.append(
            f"The run is {header.status} and has no answer: nothing was measured. Continue with "
            "--resume."
        )
    hashes = check_hashes(header, records)
    unchecked = hashes.unchecked
    audit_text = ""  # stays empty if these records were not audited
    if run.audit:
        audit_text = audit_note(run.audit).text
    elif read_audit(run.folder):  # the stored audit tested other records
        unchecked = [
            *unchecked,
            "audit.json judged other records. Run `specbench audit` again.",
        ]
    tabled_run = tabled(run)
    sources = [*check_sources_alone(tabled_run)]
    exclusions = [*dict.fromkeys(find_exclusions(header, records, run.audit))]
    exclusions += [check.text for check in sources if check.status == "failed"]
    return _Findings(
        faults={
            "lines": line_faults,
            "records": [*find_faults(header, records), *_against_audit(tabled_run)],
            "hashes": hashes.faults,
        },
        exclusions=exclusions,
        unchecked=unchecked,
        model=model_phrase(header),
        audit=audit_text,
        sources=sources,
        unusual=[*find_unusual(records)],
    )


def _against_audit(tabled_run: TabledRun) -> Iterator[str]:
    """A sentence for each method with greedy answers that differ from vanilla's, although the
    run's stored audit found them identical.
    """
    run = tabled_run.run
    method_audits = run.audit.results if run.audit else ()  # of each method and temperature
    identical_methods = [
        method_audit.method
        for method_audit in method_audits
        if method_audit.status == "identical" and method_audit.temperature == 0
    ]
    if not identical_methods:
        return
    # With the option `history`, later turns may see the method's own answers. Then turns after a
    # difference are not compared.
    agreements = find_agreements(tabled_run.table, run.header.spec.values.history)
    for method in identical_methods:
        agreement = agreements.get(method)
        if agreement and agreement.divergences:  # one for each answer that differs
            yield (
                f"{method}: {len(agreement.divergences)} greedy answers differ from "
                "vanilla's, but the audit found all identical."
            )
