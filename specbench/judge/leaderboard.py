"""Find reasons that keep a sound run off the leaderboard: its model, its machine, its audit."""

from collections.abc import Iterator, Sequence

from specbench.analysis.metrics import BASELINE
from specbench.engine.weight_files import WEIGHT_SUFFIXES
from specbench.judge.hashes import UNKNOWN_WEIGHTS, is_embedded
from specbench.log.audit import StoredAudit, find_unjudged
from specbench.log.backend import WorkerHeader
from specbench.log.header import Origin, RunHeader
from specbench.machine.environment import BUSY_AT_START, with_one_start
from specbench.report.facts import is_on_gpu
from specbench.report.warning_notes import audit_failure
from specbench.types import Record

WEIGHTS = (*WEIGHT_SUFFIXES, ".gguf")
"""The endings of names of files with weights."""
LEAST_PARAMETERS = 100 * 10**6
"""Number of parameters of the smallest model that the leaderboard admits."""
_PER_BYTE = 2
"""The most parameters that a byte of weights can hold, since each takes at least four bits."""
_SLOWING = ("phases", "trace", "check_drafts")
"""Names of options that slow steps."""


def find_exclusions(
    header: RunHeader, records: Sequence[Record], audit: StoredAudit | None
) -> Iterator[str]:
    """Yield a sentence for each reason that keeps a run off the leaderboard.

    The reasons lie in the run's model and prompts, its answers, its machine, or its audit.
    """
    if header.imported:
        yield f"The run is imported ({header.imported.tools}): specbench did not measure it."
        return
    yield from _subject(header)
    if header.status != "complete":
        yield f"The run is {header.status}, not complete. Continue with --resume."
    if num_failed := sum(not record.is_ok for record in records):
        yield f"{num_failed} of {len(records)} answers failed."
    yield from _machine(header)
    yield from _audit(header, audit)


def _subject(header: RunHeader) -> Iterator[str]:
    """A sentence for each reason in the model, the prompts and the settings that keeps the run
    off the leaderboard.

    The sizes of the files with weights limit the number of parameters.
    """
    files = header.model.files
    weight_bytes = [file.bytes for name, file in files.items() if name.endswith(WEIGHTS)]
    most_parameters = _PER_BYTE * sum(weight_bytes)
    if header.model.is_stand_in:
        yield "The model is a stand-in: the real shape, with tiny's answers."
    elif is_embedded(header):  # it ships with this program
        yield "The model is tiny, which only serves to try out specbench."
    elif weight_bytes and most_parameters < LEAST_PARAMETERS:
        yield (
            f"The model has at most {most_parameters / 1e6:.0f} million parameters. The "
            f"leaderboard is for models with {LEAST_PARAMETERS // 10**6} million or more."
        )
    elif not weight_bytes and not header.model.revision:  # neither files nor a commit
        yield UNKNOWN_WEIGHTS
    # titles of tasks whose prompts only imitate the published ones
    if imitations := [prompts.title for prompts in header.prompts if prompts.is_imitation]:
        yield (
            f"The prompts of {', '.join(imitations)} come with specbench and only imitate the "
            "task. Use --prompts paper."
        )
    if BASELINE not in header.methods:
        yield "Vanilla was not run: there is no speedup. Leave out --no-baseline."
    if slowing_options := [name for name in _SLOWING if getattr(header.spec.values, name)]:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in slowing_options)
        yield f"The steps were timed with {flags}, which slows them."


def _machine(header: RunHeader) -> Iterator[str]:
    """A sentence for each reason in the machine that keeps the run off the leaderboard.

    The reasons are a checkout with changes, other programs, throttling, several machines, and a
    load or GPU that was not recorded.
    """
    machine_parts = _measured_parts(header)
    environments = [machine_part.environment for machine_part in machine_parts]
    # A segment is the rest of a run that was resumed on another machine or version.
    environments += [segment.environment for segment in header.segments]
    # `git` is the checkout of specbench, or None
    if any(environment.git and environment.git.is_dirty for environment in environments):
        yield "The checkout had uncommitted changes. Commit them, and repeat the run."
    if header.segments:
        yield "The run was continued on another machine or with other versions."
    # Servers count as other programs during the run, so only the load before the run is judged. A
    # warning about it starts with BUSY_AT_START. The two warnings of a resumed run are joined.
    if header.servers:
        yield from (
            warning
            for warning in with_one_start(header.warnings)
            if warning.startswith(BUSY_AT_START)
        )
    for machine_part in machine_parts:
        if machine_part.cpu is None:
            yield "The load of the machine was not recorded."
        elif not header.servers and machine_part.cpu.others_warning:
            yield machine_part.cpu.others_warning
        if machine_part.gpu is not None:
            yield from machine_part.gpu.warnings
        elif is_on_gpu(header):
            yield "The state of the GPU was not recorded."


def _measured_parts(header: RunHeader) -> Sequence[RunHeader | Origin | WorkerHeader]:
    """The parts of a run that were each measured on one machine. They are the workers and the
    merged runs without workers, or else the run itself.
    """
    merged_with_workers = {name.rpartition("/")[0] for name in header.workers}
    origins = [origin for origin in header.origins if origin.id not in merged_with_workers]
    return [*origins, *header.workers.values()] or [header]


def _audit(header: RunHeader, audit: StoredAudit | None) -> Iterator[str]:
    """Yield a sentence if there is no audit of the run's answers. Otherwise, yield a sentence for
    each method and temperature that failed the audit, and one on those that were not judged.
    """
    if audit is None:
        yield "There is no audit of these records. Run `specbench audit` on the run."
        return
    for method_audit in audit.results:
        if method_audit.status == "bug":
            label = header.method(method_audit.method).label
            # `level` is the temperature that was tested, which may be a raised one
            yield (
                f"{label} failed the audit at T={method_audit.level:g}: "
                f"{audit_failure(method_audit)}."
            )
    unjudged = [
        f"{unjudged_method.label} ({unjudged_method.reason})"
        for unjudged_method in find_unjudged(audit, header)
    ]
    if unjudged:
        yield (
            f"Not judged by the audit: {', '.join(unjudged)}. Run `specbench audit` on the run "
            "again."
        )
