"""The verification of a stored run: its faults, and what keeps it off the leaderboard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specbench.errors import RunFolderError
from specbench.judge.hashes import hash_faults, unknown_hashes
from specbench.judge.leaderboard import find_exclusions
from specbench.judge.records import find_faults
from specbench.log.store import SAMPLES, read_run
from specbench.report.sentences import audit_text


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one run.

    `faults` are what no run can have written, `exclusions` the reasons against the leaderboard, and
    `unchecked` what cannot be told on this machine. `audit` is the result of the stored audit.
    """

    run: str
    path: Path
    num_records: int
    faults: tuple[str, ...]
    exclusions: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    audit: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.faults

    @property
    def is_eligible(self) -> bool:
        """True if the run may enter the leaderboard."""
        return not (self.faults or self.exclusions)


def verify(path: Path) -> Verification:
    """Verify the run in a folder. A run that cannot be read is a fault, not an error."""
    try:
        run = read_run(path, is_lenient=True)
        is_cut = _is_cut(path / SAMPLES)
    except RunFolderError as error:
        return Verification(path.resolve().name, path, 0, faults=(error.message,))
    cut = ["The last line of samples.jsonl is cut off."] if is_cut else []
    header, records = run.header, run.records
    return Verification(
        header.id,
        path,
        len(records),
        faults=(
            *run.left_out,
            *cut,
            *find_faults(header, records),
            *hash_faults(header, records),
        ),
        exclusions=tuple(dict.fromkeys(find_exclusions(header, records, run.audit))),
        unchecked=tuple(unknown_hashes(header)),
        audit=audit_text(run.audit),
    )


def _is_cut(file: Path) -> bool:
    """True if the file's last line has no end. Raises RunFolderError if it cannot be read."""
    try:
        with file.open("rb") as content:
            content.seek(0, 2)
            if not content.tell():
                return False
            content.seek(-1, 2)
            return content.read(1) != b"\n"
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {error.strerror or error}.") from error
