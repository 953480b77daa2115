"""Hashes of a run: prompts are hashed again, and every file of weights must have a hash."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from specbench.data.prompts import known_prompts
from specbench.log.header import FileHeader, RunHeader
from specbench.models.checkpoints import identify
from specbench.types import Record
from specbench.zoo import TINY

_SHA256 = re.compile(r"[0-9a-f]{64}")
_EMBEDDED, _WEIGHTS = "embedded", "model.safetensors"
UNKNOWN_WEIGHTS = "The weights are unknown: the run names neither a commit nor a file of them."


def is_embedded(header: RunHeader) -> bool:
    """True if the target is the model that ships with this program, by its name or its weights."""
    model, weights = header.model, identify(TINY / "target").files[_WEIGHTS]
    is_named = model.is_embedded or model.source == _EMBEDDED
    return is_named or weights in model.files.values()


def hash_faults(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """Missing and wrong hashes, samples that belong to no prompt, and tokens that belong to no
    vocabulary; a sentence each.
    """
    yield from _files("The model", header.model.files)
    for spelling, about in header.methods.items():
        yield from _files(spelling, about.weights.files if about.weights else {})
    for one in header.prompts:
        if not _SHA256.fullmatch(one.sha256) and not header.origins:
            yield f"The prompts of {one.task} have no sha256."
        prompts = known_prompts(header, one)
        if prompts is None:
            continue
        if prompts.sha256 != one.sha256 and not header.origins:
            yield f"Prompts of {one.task} do not match {one.origin} with the run's options."
        ids = {prompt.sample_id for prompt in prompts.prompts}
        found = {record.key.sample_id for record in records if record.key.task == one.task}
        if strange := sorted(found - ids):
            yield f"{one.origin} has no prompt {strange[0]!r}."
    yield from _beyond_vocabulary(header, records)


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


def unknown_hashes(header: RunHeader) -> Iterator[str]:
    """Hashes that cannot be checked on this machine, a sentence each."""
    if is_embedded(header):
        known = identify(TINY / "target").files
        changed = [name for name in known if known[name] != header.model.files.get(name)]
        if changed:
            yield f"The embedded model is not this version's: {', '.join(sorted(changed))} differ."
    elif not header.model.files and not header.model.revision:
        yield UNKNOWN_WEIGHTS
    yield from _changed_files(header)
    for one in header.prompts:
        if known_prompts(header, one) is None:
            yield f"The prompts of {one.task} are not on this machine: their hash is not checked."


def _changed_files(header: RunHeader) -> Iterator[str]:
    """Files of weights that are on this machine, with another hash than in the header."""
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


def _files(whose: str, files: Mapping[str, FileHeader]) -> Iterator[str]:
    for name, file in files.items():
        if file.sha256 is None or not _SHA256.fullmatch(file.sha256):
            yield f"{whose}: the file {name} has no sha256."
