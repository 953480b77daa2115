"""Checkpoint folders: is everything there, whole and matching, before anything is loaded.

Knows files, safetensors headers and config.json. Loads no weights and imports no torch.
"""

import json
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.cache import file_sha256
from specbench.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
"""Weight formats in order of preference."""

_INDEXES = {
    ".safetensors": "model.safetensors.index.json",
    ".bin": "pytorch_model.bin.index.json",
}
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
_AGAIN = "Download or copy the folder again (`specbench fetch --model NAME` for a known model)."
_LARGEST_HASHED = 64 * 2**20


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file of a checkpoint. `sha256` is None for a large file whose hash nobody has recorded."""

    name: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class CheckpointIdentity:
    """What run.json keeps of a checkpoint: the Hub commit, if it has one, and its files."""

    revision: str | None
    files: tuple[FileIdentity, ...]

    def describe(self) -> dict[str, Any]:
        files = {file.name: {"bytes": file.num_bytes, "sha256": file.sha256} for file in self.files}
        return {"revision": self.revision, "files": files}


def check_checkpoint(path: Path, *, what: str, needs_tokenizer: bool = True) -> None:
    """Raise CheckpointError for the first thing that would fail while loading this folder."""
    if not path.is_dir():
        raise CheckpointError(f"{what}: there is no folder {path}.", _AGAIN)
    read_config(path, what)
    if missing := missing_files(path, needs_tokenizer=needs_tokenizer):
        raise CheckpointError(f"{what}: {path} lacks {', '.join(missing)}.", _AGAIN)
    for file in weight_files(path):
        _check_weights(file, what)


def read_config(path: Path, what: str) -> dict[str, Any]:
    """The folder's config.json."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        hint = "Give the folder that holds config.json and the weights."
        raise CheckpointError(f"{what}: {path} has no config.json.", hint) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{what}: {file} cannot be read: {error}", _AGAIN) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{what}: {file} is no JSON object.", _AGAIN)
    return config


def missing_files(path: Path, *, needs_tokenizer: bool) -> list[str]:
    """Names of the files a checkpoint folder lacks, or what kind of file, if any name would do."""
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    weights = weight_files(path)
    missing += [file.name for file in weights if not file.is_file()]
    if not weights:
        missing.append("weights (model.safetensors or pytorch_model.bin)")
    if needs_tokenizer and not any((path / name).is_file() for name in _TOKENIZERS):
        missing.append("a tokenizer (tokenizer.json or tokenizer.model)")
    return missing


def weight_files(path: Path) -> list[Path]:
    """The weight files of a folder in one format, safetensors first; those an index names may lack.

    Training state and other formats' copies are not weights to load.
    """
    for suffix in WEIGHT_SUFFIXES:
        if names := _indexed(path / _INDEXES.get(suffix, "")):
            return [path / name for name in names]
        found = sorted(path.glob(f"*{suffix}"))
        files = [file for file in found if is_weight_name(file.name)]
        if files:
            return files
    return []


def is_weight_name(name: str) -> bool:
    """Whether a file of this name holds weights that are loaded, not a copy or training state."""
    is_other = name.startswith(("consolidated", "training_args", "optimizer", "scheduler", "rng_"))
    return name.endswith(WEIGHT_SUFFIXES) and not is_other


def safetensors_header(file: Path, what: str) -> dict[str, Any]:
    """Name -> {"dtype", "shape", "data_offsets"} of every tensor, from the file's first bytes.

    Raises CheckpointError for a file that is not safetensors or shorter than its header says.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size - 8:
                raise ValueError("the header is cut off")
            header = json.loads(stream.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        expected = 8 + length + max((e["data_offsets"][1] for e in tensors.values()), default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{what}: {file} is not a whole safetensors file ({error})."
        raise CheckpointError(message, _AGAIN) from error
    if size != expected:
        state = "truncated" if size < expected else "longer than its header says"
        message = f"{what}: {file} is {state}: {size:,} bytes, expected {expected:,}."
        raise CheckpointError(message, _AGAIN)
    return tensors


def identify(path: Path) -> CheckpointIdentity:
    """The commit and file hashes of a folder, without reading large files.

    In the Hugging Face cache a large file is stored under its sha256, which is taken from there.
    """
    revision = path.name if path.parent.name == "snapshots" else None
    suffixes = (".json", ".model", ".jinja", ".txt")
    files = [file for file in sorted(path.iterdir()) if file.suffix in suffixes and file.is_file()]
    return CheckpointIdentity(
        revision,
        tuple(
            FileIdentity(file.name, file.stat().st_size, _known_sha256(file))
            for file in [*files, *weight_files(path)]
        ),
    )


def check_same_vocabulary(
    target: "PreTrainedTokenizerBase", draft: "PreTrainedTokenizerBase", *, what: str = "draft"
) -> None:
    """Raise CheckpointError unless the draft knows every token of the target by the same id.

    Special tokens may have other names, and the draft may have more of them. Embedding matrices
    are not looked at: either model may pad them.
    """
    ours, theirs = _by_id(target), _by_id(draft)
    special = set(target.added_tokens_decoder) | set(draft.added_tokens_decoder)
    different = [
        i for i in ours if i not in theirs or (ours[i] != theirs[i] and i not in special)
    ] or [i for i in theirs if i not in ours and i not in special]
    if not different:
        return
    first = min(different)
    raise CheckpointError(
        f"The vocabulary of {what} is not the target's: {len(theirs):,} tokens against "
        f"{len(ours):,}, {len(different):,} differ. Id {first} is {theirs.get(first)!r} there and "
        f"{ours.get(first)!r} in the target.",
        "Use a draft that was made for this target, or one of the same model family.",
    )


def _by_id(tokenizer: "PreTrainedTokenizerBase") -> Mapping[int, str]:
    return {i: token for token, i in tokenizer.get_vocab().items()}


def _indexed(file: Path) -> Iterable[str]:
    """The file names an index lists; none if there is no index."""
    if not file.is_file():
        return ()
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
        return sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is no index of weight files: {error!r}", _AGAIN) from error


def _check_weights(file: Path, what: str) -> None:
    with file.open("rb") as stream:
        start = stream.read(40)
    if start.startswith(b"version https://git-lfs"):
        message = f"{what}: {file} is a Git LFS pointer, not the weights."
        raise CheckpointError(message, "Run `git lfs pull` in that folder.")
    if file.suffix == ".safetensors":
        safetensors_header(file, what)
    elif not start or (start.startswith(b"PK") and not zipfile.is_zipfile(file)):
        size = file.stat().st_size
        raise CheckpointError(f"{what}: {file} is truncated ({size:,} bytes).", _AGAIN)


def _known_sha256(file: Path) -> str | None:
    blob = file.resolve().name
    if len(blob) == 64 and not set(blob) - set("0123456789abcdef"):
        return blob
    return file_sha256(file) if file.stat().st_size <= _LARGEST_HASHED else None
