"""Check a run's hashes: hash its prompts again, and require a hash of every file of weights."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from specbench.data.prompts import prompts_of_run
from specbench.log.header import PromptsHeader, RunHeader
from specbench.log.model import FileHeader
from specbench.models.checkpoints import identify
from specbench.types import Record
from specbench.zoo import TINY

_SHA256 = re.compile(r"[0-9a-f]{64}")

UNKNOWN_WEIGHTS = "The weights are unknown: the run names neither their commit nor their files."


class HashFindings(NamedTuple):
    """Sentences on the hashes of a run."""

    faults: list[str]
    """Sentences on missing and wrong hashes, on samples that belong to no prompt, and on tokens
    that the model cannot have.
    """
    unchecked: list[str]
    """Sentences on hashes that cannot be checked on this machine."""


def check_hashes(header: RunHeader, records: Sequence[Record]) -> HashFindings:
    """Check the hashes of a run's weights and prompts, and facts that follow from them."""
    if header.imported:
        return HashFindings([], ["The weights and the prompts of an imported run are unknown."])
    faults = [*_without_hash("The model", header.model.files)]
    for spelling, method in header.methods.items():
        if method.weights:  # those of the draft model
            faults += _without_hash(spelling, method.weights.files)
    unchecked = [*_unknown_weights(header)]
    for prompts in header.prompts:  # one element per task
        findings = _check_prompts(header, prompts, records)
        faults += findings.faults
        unchecked += findings.unchecked
    faults += _beyond_model(header, records)
    return HashFindings(faults, unchecked)


def _check_prompts(
    header: RunHeader, stored: PromptsHeader, records: Sequence[Record]
) -> HashFindings:
    """Check one task's prompts: their hash, and that every record belongs to a prompt.

    `stored` describes the prompts in the run's header. The hash of a merged run is not checked,
    since it is made from the hashes of several runs, the `origins`.
    """
    faults = []
    if not _SHA256.fullmatch(stored.sha256) and not header.origins:
        faults.append(f"The prompts of {stored.task} have no sha256.")
    prompts = prompts_of_run(header, stored)  # those on this machine
    if prompts is None:  # from the Hub or a user's file, or their file is missing or has changed
        unchecked = (
            f"The prompts of {stored.task} are not on this machine: their hash is not checked."
        )
        return HashFindings(faults, unchecked=[unchecked])
    # the `origin` of prompts is the name, URL or data set of their file
    if prompts.sha256 != stored.sha256 and not header.origins:
        fault = (
            f"The prompts of {stored.task} are not those that the run's options choose from "
            f"{stored.origin}."
        )
        faults.append(fault)
    prompt_ids = {prompt.sample_id for prompt in prompts.prompts}
    sample_ids = {record.key.sample_id for record in records if record.key.task == stored.task}
    if unknown_ids := sorted(sample_ids - prompt_ids):
        faults.append(f"{stored.origin} has no prompt {unknown_ids[0]!r}.")
    return HashFindings(faults, unchecked=[])


def _beyond_model(header: RunHeader, records: Sequence[Record]) -> Iterator[str]:
    """A sentence for each record with a token id beyond the model's vocabulary, or with more tokens
    than the model's context has. There is none if the model's config is not on this machine.
    """
    config = _config_of(header)
    vocab_size = config.get("vocab_size")
    # A server may have been started with a longer context.
    context = None if header.servers else config.get("max_position_embeddings")  # in tokens
    for record in records:
        label = f"{record.key.method} on {record.key.sample_id}"
        largest_id = max(record.token_ids, default=0)
        if isinstance(vocab_size, int) and largest_id >= vocab_size:
            yield f"{label}: token {largest_id}, but the vocabulary has {vocab_size} tokens."
        num_tokens = record.prompt_tokens + record.num_tokens
        if record.is_ok and isinstance(context, int) and num_tokens > context:
            yield f"{label}: {num_tokens} tokens with the prompt, but the context is {context}."


def _config_of(header: RunHeader) -> Mapping[str, Any]:
    """The config of the target: key -> value, empty if the config is not on this machine. For a
    multimodal target, it is the config of the text model. For a stand-in, only the size of the
    vocabulary is known.
    """
    if header.model.shape:  # only a stand-in, a small model in a real one's shape, has one
        return {"vocab_size": header.model.shape.vocab_size}
    # the small model that ships with this program, in the folder TINY, or the run's own folder
    folder = TINY / "target" if is_embedded(header) else Path(header.model.source)
    config: Any = {}
    with suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_bytes())
    if isinstance(config, Mapping):
        config = config.get("text_config") or config
    return config if isinstance(config, Mapping) else {}


def _unknown_weights(header: RunHeader) -> Iterator[str]:
    """Sentences on weights that are unknown, or whose hashes differ on this machine."""
    if not header.model.files and not header.model.revision:  # as for a running server
        yield UNKNOWN_WEIGHTS
    elif is_embedded(header):
        embedded_files = identify(TINY / "target").files
        if changed := [
            name for name in embedded_files if embedded_files[name] != header.model.files.get(name)
        ]:
            yield f"The embedded model is not this version's: {', '.join(sorted(changed))} differ."
    for folder, files_of_run in _folders_of_weights(header).items():
        with suppress(OSError, ValueError):  # it is not on this machine
            files_here = identify(Path(folder)).files
            changed = [
                name
                for name in files_of_run
                if name in files_here and files_here[name] != files_of_run[name]
            ]
            if changed:
                names = ", ".join(sorted(changed))
                yield f"{folder}: {names} changed since the run, or the run's hash is wrong."


def _folders_of_weights(header: RunHeader) -> dict[str, Mapping[str, FileHeader]]:
    """Folder or Hub id of weights -> the files that the run used from it: name -> size and hash. A
    stand-in, a small model in the shape of a real one, has no folder.
    """
    folders: dict[str, Mapping[str, FileHeader]] = {}
    if not header.model.is_stand_in:
        folders[header.model.source] = header.model.files  # a folder or a Hub id
    for method in header.methods.values():
        folder = method.options.get("weights")  # a path; None if the option is not set
        weights = method.weights  # None without a draft model
        if isinstance(folder, str) and weights and not weights.is_stand_in:
            folders[folder] = weights.files
    return folders


def _without_hash(owner: str, files: Mapping[str, FileHeader]) -> Iterator[str]:
    """A sentence for each file of a model or method (`owner`) without a well-formed hash."""
    for name, file in files.items():
        if file.sha256 is None or not _SHA256.fullmatch(file.sha256):
            yield f"{owner}: the file {name} has no sha256."


def is_embedded(header: RunHeader) -> bool:
    """True if the target has the name or the weights of the model that ships with this program."""
    model = header.model
    weights = identify(TINY / "target").files["model.safetensors"]
    is_named = model.is_embedded or model.source == "embedded"
    return is_named or weights in model.files.values()
