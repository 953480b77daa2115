"""Reasons that keep a sound run off the leaderboard: its machine, its model, its audit."""

from collections.abc import Iterator, Sequence

from specbench.analysis.metrics import BASELINE
from specbench.log.audit import StoredAudit, find_unjudged
from specbench.log.backend import WorkerHeader
from specbench.log.header import RunHeader
from specbench.log.machine import Origin
from specbench.machine.environment import BUSY_AT_START
from specbench.models.checkpoints import WEIGHT_SUFFIXES, identify
from specbench.report.facts import is_on_gpu
from specbench.report.warning_notes import audit_failure
from specbench.types import Record
from specbench.zoo import TINY

UNKNOWN_WEIGHTS = "The weights are unknown: the run names neither a commit nor a file of them."
_EMBEDDED, _WEIGHTS = "embedded", "model.safetensors"
WEIGHTS = (*WEIGHT_SUFFIXES, ".gguf")
LEAST_PARAMETERS = 100 * 10**6
_PER_BYTE = 2
"""Parameters in a byte of weights, at most: no checkpoint has fewer than four bits for each."""


def is_embedded(header: RunHeader) -> bool:
    """True if the target is the model that ships with this program, by its name or its weights."""
    model, weights = header.model, identify(TINY / "target").files[_WEIGHTS]
    is_named = model.is_embedded or model.source == _EMBEDDED
    return is_named or weights in model.files.values()


def find_exclusions(
    header: RunHeader, records: Sequence[Record], audit: StoredAudit | None
) -> Iterator[str]:
    """The reasons, a sentence each; none for a run that may enter."""
    yield from _subject(header)
    if header.status != "complete":
        yield f"The run is {header.status}, not complete. Go on with --resume."
    if failed := sum(not record.is_ok for record in records):
        yield f"{failed} of {len(records)} answers failed."
    yield from _machine(header)
    yield from _audit(header, audit)


def _subject(header: RunHeader) -> Iterator[str]:
    """Reasons in the model, the prompts and the settings."""
    values = header.spec.values
    weights = [one for name, one in header.model.files.items() if name.endswith(WEIGHTS)]
    most = _PER_BYTE * sum(one.bytes for one in weights)
    if header.model.is_stand_in:
        yield "The model is a stand-in: the real shape, with tiny's answers."
    elif is_embedded(header):
        yield "The model is tiny, which is for trying the program."
    elif weights and most < LEAST_PARAMETERS:
        yield (
            f"The model has at most {most / 1e6:.0f} million parameters. A leaderboard is for "
            f"models of {LEAST_PARAMETERS // 10**6} million and more."
        )
    elif not weights and not header.model.revision:
        yield UNKNOWN_WEIGHTS
    if imitations := [one.title for one in header.prompts if one.is_imitation]:
        yield (
            f"The prompts of {', '.join(imitations)} come with specbench, and are only in the "
            "style of the task. Use --prompts paper."
        )
    if BASELINE not in header.methods:
        yield "Vanilla was not run: there is no speedup. Leave out --no-baseline."
    slowing = ("phases", "trace", "check_drafts")
    if asked := [f"--{name.replace('_', '-')}" for name in slowing if getattr(values, name)]:
        yield f"The steps were timed with {' and '.join(asked)}, which slows them."


def _machine(header: RunHeader) -> Iterator[str]:
    """A checkout with changes, other programs on the machine, throttling, several machines."""
    parts: Sequence[RunHeader | Origin | WorkerHeader]
    elsewhere = {name.rpartition("/")[0] for name in header.workers}  # of merged runs
    own = [one for one in header.origins if one.id not in elsewhere]
    parts = [*own, *header.workers.values()] or [header]
    environments = [part.environment for part in parts]
    environments += [segment.environment for segment in header.segments]
    if any(one.git and one.git.is_dirty for one in environments):
        yield "The checkout had uncommitted changes. Commit them, and repeat the run."
    if header.segments:
        yield "The run was continued on another machine or with other versions."
    if header.servers:  # to the client, they are other programs themselves
        yield from (text for text in header.warnings if text.startswith(BUSY_AT_START))
    for part in parts:
        if part.cpu is None:
            yield "The load of the machine was not recorded."
        elif not header.servers and (warning := part.cpu.others_warning):
            yield warning
        if part.gpu is not None:
            yield from part.gpu.warnings
        elif is_on_gpu(header):
            yield "The state of the GPU was not recorded."


def _audit(header: RunHeader, audit: StoredAudit | None) -> Iterator[str]:
    """Methods that failed the audit, and lossless ones that were not in it."""
    if audit is None:
        yield "There is no audit of these records. Run `specbench audit` on the run."
        return
    for one in audit.results:
        if one.status == "bug":
            text = audit_failure(one)
            yield f"{header.method(one.method).label} failed the audit at T={one.level:g}: {text}."
    if missing := [f"{label} ({reason})" for label, _, reason in find_unjudged(audit, header)]:
        yield (
            f"Not judged by the audit: {', '.join(missing)}. Run `specbench audit` on the run "
            "again."
        )
