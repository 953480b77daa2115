"""Checks of checkpoint folders: completeness and consistency, before anything is loaded.

Loads no weights and imports no torch.
"""

import json
import math
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from specbench.data.cache import cached_sha256
from specbench.errors import CheckpointError, reading
from specbench.log.model import FileHeader, WeightsHeader

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
"""Weight formats in order of preference."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
_AGAIN = "Download or copy the folder again (`specbench fetch --model NAME` for a known model)."
_LONGEST_HEADER = 100 * 2**20
"""Bytes that the safetensors library accepts as a header."""
_SIZES = {
    "num_hidden_layers": 10_000, "n_layer": 10_000, "num_attention_heads": 2**16, "n_head": 2**16,
    "num_key_value_heads": 2**16, "head_dim": 2**16, "hidden_size": 2**24, "n_embd": 2**24,
    "vocab_size": 2**28, "max_position_embeddings": 2**40, "n_positions": 2**40,
}  # fmt: skip
"""The largest sizes in config.json that are believed: larger ones would fill the memory."""
_NUMBERS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta")
"""Numbers in config.json that are above zero."""
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64), **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
}  # fmt: skip

_Count = Annotated[int, msgspec.Meta(ge=0)]


class TensorEntry(TypedDict):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


def check_checkpoint(path: Path, *, what: str, needs_tokenizer: bool = True) -> None:
    """Raise CheckpointError for the first thing that would fail while loading this folder."""
    if not path.is_dir():
        raise CheckpointError(f"{what}: the folder {path} does not exist.", _AGAIN)
    read_config(path, what)
    if missing := missing_files(path, needs_tokenizer=needs_tokenizer):
        raise CheckpointError(f"{what}: {path} lacks {', '.join(missing)}.", _AGAIN)
    for file in weight_files(path):
        _check_weights(file, what)


def read_config(path: Path, what: str) -> dict[str, Any]:
    """The folder's config.json, with sizes that a model can have."""
    file = path / "config.json"
    if not file.is_file():  # a named pipe would be read for ever
        hint = "Give the folder that holds config.json and the weights."
        raise CheckpointError(f"{what}: {path} has no config.json.", hint)
    with reading(file, what, _AGAIN):
        config = json.loads(file.read_text(encoding="utf-8"))
        _check_config(config)
        return config


def config_if_readable(path: Path) -> dict[str, Any]:
    """The folder's config.json; empty if `read_config` refuses it."""
    try:
        return read_config(path, "")
    except CheckpointError:
        return {}


def quantization_of(config: dict[str, Any]) -> str:
    """Return the quantisation method of a checkpoint, such as "awq"; empty without one."""
    found = config.get("quantization_config")
    return str(found.get("quant_method") or "unknown") if isinstance(found, dict) else ""


def stored_format(config: dict[str, Any]) -> str:
    """The quantisation method and the numbers it stores, such as "bitsandbytes nf4" or "awq int4".

    Only the method if the config does not say more; empty without one.
    """
    method = quantization_of(config)
    found = config["quantization_config"] if method else {}
    kind, bits = found.get("bnb_4bit_quant_type"), found.get("bits")
    if found.get("load_in_4bit") is True:
        return f"{method} {kind if kind in ('fp4', 'nf4') else 'fp4'}"
    if found.get("load_in_8bit") is True:
        return f"{method} int8"
    return f"{method} int{bits}" if type(bits) is int else method


def _check_config(config: Any) -> None:
    """Raise ValueError for the first value of a wrong type or out of range."""
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")
    for name, most in _SIZES.items():
        value = config.get(name)
        if value is not None and not (type(value) is int and 1 <= value <= most):
            raise ValueError(f"{name} is {value!r}, not a whole number from 1 to {most:,}")
    for name in _NUMBERS:
        value = config.get(name)
        if value is not None and not (type(value) in (int, float) and 0 < value < math.inf):
            raise ValueError(f"{name} is {value!r}, not a number above 0")
    for name in ("dtype", "torch_dtype", "model_type"):
        if not isinstance(config.get(name, ""), str | None):
            raise ValueError(f"{name} is {config[name]!r}, not a name")
    if config.get("text_config") is not None:
        _check_config(config["text_config"])


def missing_files(path: Path, *, needs_tokenizer: bool) -> list[str]:
    """Names of missing files; a description where several names are possible."""
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    weights = weight_files(path)
    missing += [file.name for file in weights if not file.is_file()]
    if not weights:
        missing.append("weights (model.safetensors or pytorch_model.bin)")
    if needs_tokenizer and not any((path / name).is_file() for name in _TOKENIZERS):
        missing.append("a tokenizer (tokenizer.json or tokenizer.model)")
    return missing


def weight_files(path: Path) -> list[Path]:
    """The weight files of a folder in one format, safetensors first.

    Files named by an index may be missing. Training state and copies in other formats are left out.
    """
    for suffix in WEIGHT_SUFFIXES:
        stem = "model" if suffix == ".safetensors" else "pytorch_model"
        if names := _indexed(path / f"{stem}{suffix}.index.json"):
            return [path / name for name in names]
        found = sorted(path.glob(f"*{suffix}"))
        files = [file for file in found if is_weight_name(file.name)]
        if files:
            return files
    return []


def is_weight_name(name: str) -> bool:
    """True for weights to load; False for other copies and training state."""
    is_other = name.startswith(("consolidated", "training_args", "optimizer", "scheduler", "rng_"))
    return name.endswith(WEIGHT_SUFFIXES) and not is_other


def safetensors_header(file: Path, what: str) -> dict[str, TensorEntry]:
    """Dtype, shape and offsets of every tensor by name, from the file's first bytes.

    Raises CheckpointError for a file that is not safetensors, or whose tensors do not fill it
    exactly, one after the other.
    """
    with reading(file, what, _AGAIN):
        size = file.stat().st_size
        tensors, start = _read_entries(file, size)
        position = 0
        for name, entry in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            bits = math.prod(entry["shape"]) * _BITS.get(entry["dtype"], 0)
            if begin != position or end < begin or (bits and bits != 8 * (end - begin)):
                raise ValueError(f"the offsets {begin} to {end} of {name} are wrong")
            position = end
    if size != (expected := start + position):
        state = "truncated" if size < expected else "longer than its header says"
        message = f"{what}: {file} is {state}: {size:,} bytes, expected {expected:,}."
        raise CheckpointError(message, _AGAIN)
    return tensors


def count_parameters(folder: Path) -> int:
    """Parameters in the folder's weight files. Pickled heads are float16: two bytes each."""
    total = 0
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            header = safetensors_header(file, str(folder))
            total += sum(math.prod(entry["shape"]) for entry in header.values())
        else:
            with reading(file, str(folder), _AGAIN):
                total += file.stat().st_size // 2
    return total


def _read_entries(file: Path, size: int) -> tuple[dict[str, TensorEntry], int]:
    """The tensors, and where their bytes begin."""
    with file.open("rb") as stream:
        first = stream.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if not 0 < length <= min(size - 8, _LONGEST_HEADER):
            raise ValueError("it is not a whole safetensors file: the header is cut off")
        header = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
    header.pop("__metadata__", None)
    decode = msgspec.json.Decoder(TensorEntry).decode
    return {name: decode(entry) for name, entry in header.items()}, 8 + length


def identify(path: Path) -> WeightsHeader:
    """The commit of a folder and the hashes of its files, or the hash of a single file."""
    files, revision = [path], None
    if path.is_dir():
        revision = path.name if path.parent.name == "snapshots" else None
        suffixes = (".json", ".model", ".jinja", ".txt", ".gguf")
        here = sorted(path.iterdir())
        files = [one for one in here if one.suffix in suffixes and one.is_file()]
        files += weight_files(path)
    hashed = {one.name: FileHeader(one.stat().st_size, cached_sha256(one)) for one in files}
    return WeightsHeader(revision=revision, files=hashed)


def check_same_vocabulary(
    target: "PreTrainedTokenizerBase", draft: "PreTrainedTokenizerBase", *, what: str = "draft"
) -> None:
    """Raise CheckpointError unless every token of the target has the same id in the draft model.

    Special tokens may have other names, and the draft model may have more of them. Embedding
    matrices are not compared: either model may pad them.
    """
    ours, theirs = ({i: token for token, i in one.get_vocab().items()} for one in (target, draft))
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


def _indexed(file: Path) -> Iterable[str]:
    """The file names in an index; empty without an index."""
    if not file.is_file():
        return ()
    with reading(file, "The index of weight files", _AGAIN):
        names = set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values())
        if odd := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
            raise ValueError(f"{odd[0]!r} is not the name of a file beside it")
        return sorted(names)


def _check_weights(file: Path, what: str) -> None:
    with reading(file, what, _AGAIN), file.open("rb") as stream:
        start = stream.read(40)
    if start.startswith(b"version https://git-lfs"):
        message = f"{what}: {file} is a Git LFS pointer, not the weights."
        raise CheckpointError(message, "Run `git lfs pull` in that folder.")
    if file.suffix == ".safetensors":
        safetensors_header(file, what)
    elif not start or (start.startswith(b"PK") and not zipfile.is_zipfile(file)):
        size = file.stat().st_size
        raise CheckpointError(f"{what}: {file} is truncated ({size:,} bytes).", _AGAIN)
