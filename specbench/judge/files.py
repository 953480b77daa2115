"""Checks of a run's files alone: can `specbench run` have written them, and may the run enter
the leaderboard?
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from specbench.analysis.divergence import find_agreements
from specbench.analysis.records import make_table
from specbench.data.prompts import known_prompts
from specbench.errors import RunFolderError
from specbench.judge.checks import Check, CheckedRun, Status
from specbench.judge.leaderboard import UNKNOWN_WEIGHTS, find_exclusions, is_embedded
from specbench.log.audit import read_audit
from specbench.log.faults import find_faults
from specbench.log.header import FileHeader, RunHeader
from specbench.log.run import Run
from specbench.log.store import is_cut, read_run
from specbench.models.checkpoints import identify
from specbench.report.notes import audit_note
from specbench.report.texts import Note
from specbench.types import Record
from specbench.zoo import TINY

_MOST_FAULTS = 10
_NEED_A_BASELINE = ("samples", "output", "audit", "MAT", "speed")
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
