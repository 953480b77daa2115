"""Checks of a run's files alone: can `specbench run` have written them, and may the run enter
the leaderboard?
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from specbench.analysis.divergence import find_agreements
from specbench.analysis.metrics import BASELINE
from specbench.analysis.records import make_table
from specbench.data.prompts import known_prompts
from specbench.errors import RunFolderError
from specbench.judge.checks import Check, CheckedRun, Status
from specbench.log.audit import StoredAudit, find_unjudged, read_audit
from specbench.log.backend import WorkerHeader
from specbench.log.faults import find_faults
from specbench.log.header import Origin, RunHeader
from specbench.log.model import FileHeader
from specbench.log.run import Run
from specbench.log.store import is_cut, read_run
from specbench.machine.environment import BUSY_AT_START
from specbench.models.checkpoints import WEIGHT_SUFFIXES, identify
from specbench.report.facts import is_on_gpu
from specbench.report.notes import audit_note
from specbench.report.texts import Note
from specbench.report.warning_notes import audit_failure
from specbench.types import Record
from specbench.zoo import TINY

_MOST_FAULTS = 10
_NEED_A_BASELINE = ("samples", "output", "audit", "MAT", "speed")
_SHA256 = re.compile(r"[0-9a-f]{64}")

UNKNOWN_WEIGHTS = "The weights are unknown: the run names neither a commit nor a file of them."
WEIGHTS = (*WEIGHT_SUFFIXES, ".gguf")
LEAST_PARAMETERS = 100 * 10**6
_PER_BYTE = 2
"""Parameters in a byte of weights, at most: no checkpoint has fewer than four bits for each."""


def check_files(path: Path, *, for_leaderboard: bool = False) -> CheckedRun:
    """Check the run in a folder. A run that cannot be read fails a check and raises nothing.

    Reasons that keep the run off the leaderboard are failures only if it is meant for it.
    """
    name, num_records, audit = path.resolve().name, 0, ""
    unchecked, exclusions = list[str](), list[str]()
    try:
        run = read_run(path, is_lenient=True)
        cut = ["The last line of samples.jsonl is cut off."] * is_cut(path)
    except RunFolderError as error:
        faults = {"lines": [error.message]}
    else:
        header, records = run.header, run.records
        name, num_records = header.id, len(records)
        hashes, unchecked = check_hashes(header, records)
        faults = {
            "lines": [*run.left_out, *cut],
            "records": [*find_faults(header, records), *_against_audit(run)],
            "hashes": hashes,
        }
        exclusions = [*dict.fromkeys(find_exclusions(header, records, run.audit))]
        if run.audit:
            audit = audit_note(run.audit).text
        elif read_audit(run.folder):
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
    result = "sound, not for the leaderboard" if exclusions else "sound, for the leaderboard"
    if every:
        result = "1 fault" if len(every) == 1 else f"{len(every)} faults"
    return CheckedRun(
        run=name,
        checks=tuple(checks),
        summary=f"{name}: {result} (no baseline: files only)",
        notes=tuple(_notes(every, exclusions, unchecked, audit)),
        about={
            "num_records": num_records,
            "is_sound": not every,
            "is_eligible": not (every or exclusions),
            "faults": every,
            "exclusions": exclusions,
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


def check_hashes(header: RunHeader, records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """Missing and wrong hashes, samples that belong to no prompt, and tokens that belong to no
    vocabulary; then what cannot be checked on this machine; a sentence each.
    """
    faults = [*_without_hash("The model", header.model.files)]
    for spelling, about in header.methods.items():
        faults += _without_hash(spelling, about.weights.files if about.weights else {})
    unknown = [*_unknown_weights(header)]
    for one in header.prompts:
        if not _SHA256.fullmatch(one.sha256) and not header.origins:
            faults.append(f"The prompts of {one.task} have no sha256.")
        prompts = known_prompts(header, one)
        if prompts is None:
            text = f"The prompts of {one.task} are not on this machine: their hash is not checked."
            unknown.append(text)
            continue
        if prompts.sha256 != one.sha256 and not header.origins:
            text = f"Prompts of {one.task} do not match {one.origin} with the run's options."
            faults.append(text)
        ids = {prompt.sample_id for prompt in prompts.prompts}
        found = {record.key.sample_id for record in records if record.key.task == one.task}
        if strange := sorted(found - ids):
            faults.append(f"{one.origin} has no prompt {strange[0]!r}.")
    return [*faults, *_beyond_vocabulary(header, records)], unknown


def _beyond_vocabulary(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Token ids beyond the vocabulary, where the files tell its size."""
    if shape := header.model.shape:
        size = shape.vocab_size
    elif is_embedded(header):
        size = json.loads((TINY / "target" / "config.json").read_bytes())["vocab_size"]
    else:
        return
    for one in records:
        if (largest := max(one.token_ids, default=0)) >= size:
            where = f"{one.key.method} on {one.key.sample_id}"
            yield f"{where}: token {largest}, but the vocabulary has {size}."


def _unknown_weights(header: RunHeader) -> Iterator[str]:
    """Hashes of weights that cannot be checked on this machine."""
    if is_embedded(header):
        known = identify(TINY / "target").files
        changed = [name for name in known if known[name] != header.model.files.get(name)]
        if changed:
            yield f"The embedded model is not this version's: {', '.join(sorted(changed))} differ."
    elif not header.model.files and not header.model.revision:
        yield UNKNOWN_WEIGHTS
    # Files of weights that are here, with another hash than in the header:
    places = {} if header.model.is_stand_in else {header.model.source: header.model.files}
    for about in header.methods.values():
        folder = about.options.get("weights")
        if isinstance(folder, str) and about.weights and not about.weights.is_stand_in:
            places[folder] = about.weights.files
    for place, files in places.items():
        with suppress(OSError, ValueError):  # it is not on this machine
            own = identify(Path(place)).files
            if other := [name for name in files if name in own and own[name] != files[name]]:
                yield f"{place}: {', '.join(sorted(other))} changed since the run, or its hash did."


def _without_hash(whose: str, files: Mapping[str, FileHeader]) -> Iterator[str]:
    for name, file in files.items():
        if file.sha256 is None or not _SHA256.fullmatch(file.sha256):
            yield f"{whose}: the file {name} has no sha256."


def is_embedded(header: RunHeader) -> bool:
    """True if the target is the model that ships with this program, by its name or its weights."""
    model, weights = header.model, identify(TINY / "target").files["model.safetensors"]
    is_named = model.is_embedded or model.source == "embedded"
    return is_named or weights in model.files.values()


def find_exclusions(
    header: RunHeader, records: Sequence[Record], audit: StoredAudit | None
) -> Iterator[str]:
    """The reasons, a sentence each, the last about methods that failed the audit and lossless
    ones that were not in it; none for a run that may enter.
    """
    yield from _subject(header)
    if header.status != "complete":
        yield f"The run is {header.status}, not complete. Go on with --resume."
    if failed := sum(not record.is_ok for record in records):
        yield f"{failed} of {len(records)} answers failed."
    yield from _machine(header)
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
