"""Find the weight files in a folder. One rule decides which files are loaded and checked."""

import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import CheckpointError, few, reading

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
"""Endings of weight files, in order of preference."""
FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files, in order of preference. Each file may be in shards."""
_HEAD_FILES = {
    "medusa": ("medusa_lm_head.pt", "medusa_lm_head.safetensors", *FILES),
    "hydra": ("hydra_lm_head.pt", "hydra_lm_head.safetensors", *FILES),
    "mtp": FILES[:1],
}
_AGAIN = "Download or copy the folder again."


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weight files that are read, in one format. Files that an index names may be missing."""

    paths: tuple[Path, ...]
    index: Path | None = None
    """The index that names these files, or None if there is no index."""
    unread_index: Path | None = None
    """An index of other files in the folder, which are not read."""

    @property
    def note(self) -> str:
        """A sentence about the index that is not read, or ""."""
        if self.unread_index is None:
            return ""
        read, unread = self.paths[0].name, self.unread_index.name
        return (
            f"The folder of the weights has {read} and {unread}: {read} was read, and the files of "
            "the index were not. Remove the stale one."
        )


def names_of(kind: str) -> tuple[str, ...]:
    """Names of files for weights that a model card names `kind`, in order of preference."""
    return _HEAD_FILES.get(kind, FILES)


def is_weight_name(name: str) -> bool:
    """True for weights to load, False for other copies and for training state."""
    is_other = name.startswith(("consolidated", "training_args", "optimizer", "scheduler", "rng_"))
    return name.endswith(WEIGHT_SUFFIXES) and not is_other


def find_weights(
    folder: Path, names: Sequence[str] = FILES, *, prefers_index: bool = False
) -> WeightFiles:
    """Find the weight files in a folder that transformers would read.

    A whole file is preferred to an index. A file that config.json names comes before `names`. With
    `prefers_index`, an index is preferred to a whole file, and config.json is not read, as in vLLM
    and SGLang. The result may have no files.
    """
    if names == FILES and not prefers_index and (named_file := _named_in_config(folder)):
        prefers_index = named_file.endswith(".index.json")
        names = (named_file.removesuffix(".index.json"),)
    for name in names:
        whole, index = folder / name, folder / f"{name}.index.json"
        if whole.is_file() and not (prefers_index and index.is_file()):
            is_stale = index.is_file() and not _names_only(index, name)
            return WeightFiles((whole,), unread_index=index if is_stale else None)
        if index.is_file() and (shards := sorted(set(weight_map(index).values()))):
            return WeightFiles(tuple(folder / shard for shard in shards), index)
    return WeightFiles(())


def _named_in_config(folder: Path) -> str:
    """The name of the file that config.json gives to transformers, or "".

    Raises:
        CheckpointError: it is not beside config.json.
    """
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # other readers of config.json name the fault
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = config.get("transformers_weights") if isinstance(config, dict) else None
    if name and not (Path(str(name)).name == name and (folder / name).is_file()):
        raise CheckpointError(
            f"{folder}: transformers_weights is {name!r} in config.json, not a file beside it.",
            "Move the file into the folder, and give its name there.",
        )
    return name or ""


def weight_map(index: Path) -> Mapping[str, str]:
    """The name of each tensor in an index, and the file that has the tensor.

    Raises:
        CheckpointError: the index cannot be read, or names a file that is not beside it.
    """
    with reading(index, "The index of weight files", _AGAIN):
        names: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        for name in names.values():
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"{name!r} is not the name of a file beside it")
        return names


def _names_only(index: Path, name: str) -> bool:
    """True if an index names only this file. The file itself is not read."""
    with suppress(CheckpointError):
        return set(weight_map(index).values()) == {name}
    return False


def check_copies(paths: Sequence[Path]) -> None:
    """Refuse files with different values of one tensor. Only tensors in several files are read.

    Raises:
        CheckpointError: a file cannot be read, or two files have different values of a tensor. The
            message then names the tensor and both files.
    """
    holders: dict[str, Path] = {}  # the first file of each tensor
    for path in paths if len(paths) > 1 else ():
        with reading(path, "The weights", _AGAIN):
            names = tensor_names(path)
            for name in sorted(names & holders.keys()):
                if not _are_equal(_tensor(holders[name], name), _tensor(path, name)):
                    raise CheckpointError(
                        f"{path.parent} has two values of {name}: one in {holders[name].name}, "
                        f"another in {path.name}.",
                        _AGAIN,
                    )
            holders |= dict.fromkeys(names - holders.keys(), path)


def _are_equal(first: "Tensor", second: "Tensor") -> bool:
    import torch

    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    # Bytes are compared, because some types of 8 bits cannot be.
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (first, second)))


def tensor_names(path: Path) -> set[str]:
    """The names of the tensors in a weight file. Nothing in the file is executed."""
    if path.suffix != ".safetensors":
        return {*_mapped(path)}
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return {*file.keys()}


def _tensor(path: Path, name: str) -> "Tensor":
    if path.suffix != ".safetensors":
        return _mapped(path)[name]
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.get_tensor(name)


def _mapped(path: Path) -> "dict[str, Tensor]":
    """The tensors of a pickle file. They are read from the disk when they are used."""
    import torch

    # A pickle from before torch 1.6 is not a zip archive, and is read as a whole.
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip(path))


def is_zip(path: Path) -> bool:
    """True if a file is a whole zip archive, as torch writes. False if its end is damaged."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # the archive's end claims several disks
        return False


def unlisted_names(weights: WeightFiles) -> set[str]:
    """The names of tensors that the files hold but their index does not list."""
    if weights.index is None:
        return set()
    present = [path for path in weights.paths if path.is_file()]
    names = {name for path in present for name in tensor_names(path)}
    return names - weight_map(weights.index).keys()


def holders_text(weights: WeightFiles, names: Collection[str]) -> str:
    """A clause about files that are not read although they have some of these missing tensors."""
    clauses = []
    for path in sorted(weights.paths[0].parent.iterdir()) if weights.paths else ():
        if is_weight_name(path.name) and path not in weights.paths:
            present: set[str] = set()
            with suppress(Exception):  # the clause is optional
                present = tensor_names(path) & {*names}
            if present:
                clauses.append(f"; {path.name}, which is not read, has {few(sorted(present))}")
    return "".join(clauses)
