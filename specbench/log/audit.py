"""Read and write `audit.json`, the result of the last audit of a run."""

import math
from collections.abc import Iterator
from hashlib import file_digest
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from specbench.errors import RunFolderError, printable_values
from specbench.log.files import REPEAT, folder_errors, open_lines, write_whole
from specbench.log.header import RunHeader
from specbench.types import BASELINE

AUDIT = "audit.json"
SAMPLES = "samples.jsonl"

Subject = Literal["answers", "logits", "guesses", "tokens", "rule"]
AuditStatus = Literal["identical", "numerics", "no difference", "bug", "lossy"]
"""Greedy output is `identical`, or differs because of rounding (`numerics`) or because of a `bug`.

For sampled output, there is `no difference` between the distributions, or a `bug`. In a method that
does not claim to be lossless, a bug is called `lossy`.
"""

MOST_UNSEEN = 0.2
"""The largest mean total variation that a test may miss. A test of sampled tokens counts as
evidence if it would find a difference of this size.
"""


class AuditTest(Struct, frozen=True, omit_defaults=True):
    """One test of one method's output."""

    subject: Subject
    """Subject of the test."""
    name: str
    """Name of the test."""
    num: int
    """Number of tested answers, rows of logits, draft tokens, sampled tokens or outcomes."""
    effect: float
    """Size of the difference found."""
    unit: str = ""
    """Unit of the effect."""
    p_value: float | None = None
    """P-value, corrected for the number of tests. Absent for a test with a limit."""
    limit: float | None = None
    """Largest effect that passes the test. Absent for a test with a p-value."""
    is_failed: bool = False
    """True if chance and rounding do not explain the difference."""


class MethodAudit(Struct, frozen=True, omit_defaults=True):
    """The tests of one method at one temperature."""

    method: str
    """Method with the options that were given."""
    temperature: float
    """Sampling temperature of the run."""
    level: float
    """Sampling temperature of the tested answers, which is the run's temperature or a higher one.
    """
    status: AuditStatus = msgspec.field(default="no difference", name="verdict")
    """Status of the method's answers."""
    num_answers: int = 0
    """Answers that were completed again or drawn."""
    num_replayed: int = 0
    """Recorded answers that were completed again."""
    num_same: int = 0
    """Recorded answers that were reproduced exactly."""
    num_tokens: int = 0
    """Sampled tokens tested."""
    smallest_tv: float | None = None
    """Smallest mean total variation, to or from the most likely token, that 80 % of audits would
    find. Absent if no sampled tokens were tested.
    """
    fault: str = ""
    """Error that stopped the method. Absent if there was none."""
    tests: tuple[AuditTest, ...] = ()
    """Tests of the method's answers."""

    @property
    def failures(self) -> tuple[AuditTest, ...]:
        return tuple(test for test in self.tests if test.is_failed)

    @property
    def is_raised(self) -> bool:
        return self.level != self.temperature


class StoredAudit(Struct, frozen=True, tag=1, tag_field="schema", kw_only=True):
    """An audit of a run: the content of `audit.json`."""

    created: str
    """Time in UTC, ISO 8601."""
    specbench: str
    """Version of specbench."""
    device: str
    """Device of the audit."""
    dtype: str
    """Number format of the audit."""
    num_records: int
    """Records of the run at the time of the audit."""
    records_sha256: str = ""
    """Hash of samples.jsonl at the time of the audit. Empty in audits of older versions."""
    results: tuple[MethodAudit, ...]
    """Results by method and temperature."""

    def at(self, method: str, temperature: float) -> tuple[MethodAudit, ...]:
        """The results of a method at a temperature of the run, and at the raised temperature that
        goes with it.
        """
        return tuple(
            audit
            for audit in self.results
            if audit.method == method and audit.temperature == temperature
        )

    def unjudged(self, method: str, temperature: float) -> str:
        """The reason why the audit gives no verdict on a method at a temperature of the run. Empty
        if there is a verdict.

        `method` is a spelling with options. The audit gives a verdict if a test failed, if greedy
        answers were compared with vanilla's (or are vanilla's), or if enough sampled tokens were
        tested to find a difference of MOST_UNSEEN. Answers that the audit drew at a raised
        temperature, above the run's, do not count, because they are a second test of the method.
        """
        # Without audits at a raised temperature, at most one audit is left.
        audits = (audit for audit in self.at(method, temperature) if not audit.is_raised)
        audit = next(audits, None)
        if audit is None:
            return "not in the audit"
        # Greedy answers of other methods, and of vanilla's server, are compared with vanilla's.
        is_compared = method != BASELINE or any(test.subject == "answers" for test in audit.tests)
        if audit.status != "no difference" or not (temperature or is_compared):
            return ""
        if temperature == 0:  # if greedy answers had been compared, they would have another status
            return "no answer to compare with vanilla's"
        # The smallest mean total variation that a test of `num_tokens` sampled tokens would find.
        if audit.smallest_tv is None:
            return "no sampled token was tested"
        if audit.smallest_tv <= MOST_UNSEEN:
            return ""
        # This smallest variation is proportional to 1 / sqrt(num_tokens).
        needed_tokens = math.ceil(audit.num_tokens * (audit.smallest_tv / MOST_UNSEEN) ** 2)
        return f"{audit.num_tokens} sampled tokens are too few: {needed_tokens} or more are needed"

    @property
    def smallest_tv(self) -> float | None:
        """The largest value of any method. The audit would find a difference larger than this in
        every method.
        """
        variations = [audit.smallest_tv for audit in self.results if audit.smallest_tv]
        return max(variations, default=None)


class Unjudged(NamedTuple):
    """A lossless method for which an audit gives no verdict at a temperature."""

    label: str
    """Method and temperature in words."""
    temperature: float
    """Sampling temperature of the run."""
    reason: str
    """The reason why there is no verdict."""


def find_unjudged(audit: StoredAudit, header: RunHeader) -> Iterator[Unjudged]:
    """Yield each pair of a lossless method and a temperature for which the audit has no verdict.

    Methods that did not run because they had no checkpoint are left out, and so is the baseline if
    other methods ran.
    """
    ran = [method for method in header.method_labels if method.spelling not in header.no_checkpoint]
    judged = [method for method in ran if method.spelling != BASELINE] or ran
    for method, temperature in product(judged, header.spec.values.temperatures):
        reason = audit.unjudged(method.spelling, temperature) if method.is_lossless else ""
        if reason:
            yield Unjudged(f"{method.label} at T={temperature:g}", temperature, reason)


def records_hash(folder: Path) -> str:
    """The SHA-256 hash of the file with a run's records, or an empty text without such a file."""
    try:
        with open_lines(folder / SAMPLES) as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def write_audit(folder: Path, audit: StoredAudit) -> None:
    """Replace the audit of the run in a folder.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    with folder_errors(folder / AUDIT, "run", REPEAT):
        content = msgspec.json.format(msgspec.json.encode(audit), indent=1)
        write_whole(folder / AUDIT, content + b"\n")


def read_audit(folder: Path) -> StoredAudit | None:
    """Read the audit of the run in a folder, or return None without an audit.

    Raises:
        RunFolderError: the file cannot be read, or is of a newer version.
    """
    file = folder / AUDIT
    try:
        content = msgspec.json.decode(file.read_bytes())
        return msgspec.convert(printable_values(content), StoredAudit)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", "Delete it, and run `specbench audit` again."
        ) from error
