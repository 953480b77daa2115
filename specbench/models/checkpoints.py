"""Check that checkpoint folders are complete and consistent before anything is loaded.

This module loads no weights and imports no torch.
"""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.data.cache import cached_sha256
from specbench.engine.weight_files import (
    WEIGHT_SUFFIXES,
    check_copies,
    find_weights,
    is_weight_name,
    is_zip,
    names_of,
)
from specbench.errors import CheckpointError, reading
from specbench.log.model import FileHeader, WeightsHeader
from specbench.models.other_checkpoints import not_a_model
from specbench.models.tensor_header import DOWNLOAD_AGAIN, safetensors_header

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SMALL_FILE_SUFFIXES = (".json", ".model", ".jinja", ".txt", ".gguf")
"""Suffixes of the files, besides the weights, whose hashes identify a checkpoint."""

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt",
    "sentencepiece.bpe.model", "tekken.json",
)  # fmt: skip
"""Names of tokenizer files. A folder with a tokenizer has at least one of them."""
_LARGEST_SIZES = {
    "num_hidden_layers": 10_000, "n_layer": 10_000, "num_attention_heads": 2**16, "n_head": 2**16,
    "num_key_value_heads": 2**16, "head_dim": 2**16, "hidden_size": 2**24, "n_embd": 2**24,
    "vocab_size": 2**28, "max_position_embeddings": 2**40, "n_positions": 2**40,
}  # fmt: skip
"""The largest sizes that config.json may state. Larger ones would fill the memory."""
_POSITIVE_NUMBERS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta")
"""Numbers in config.json that must be above zero."""


def check_checkpoint(
    path: Path, *, what: str, needs_tokenizer: bool = True, kind: str = ""
) -> None:
    """Raise CheckpointError for the first fault that would make loading this folder fail.

    `kind` is the name that a model card gives a drafter's weights, or "" for a target.
    """
    if not path.is_dir():
        raise CheckpointError(f"{what}: the folder {path} does not exist.", DOWNLOAD_AGAIN)
    config = read_config(path, what)
    if needs_tokenizer:
        contents, hint = not_a_model(config, path, has_tokenizer=has_tokenizer(path))
        if contents:
            raise CheckpointError(f"{what}: {path} {contents}.", hint)
    missing = missing_files(path, needs_tokenizer=needs_tokenizer, kind=kind)
    if missing:
        raise CheckpointError(f"{what}: {path} lacks {', '.join(missing)}.", DOWNLOAD_AGAIN)
    for file in weight_files(path, kind):
        _check_weights(file, what)
    check_copies(find_weights(path, names_of(kind)).paths)


def read_config(path: Path, what: str) -> dict[str, Any]:
    """Read the folder's config.json, and check that its sizes are possible."""
    file = path / "config.json"
    if not file.is_file():  # a named pipe would be read for ever
        hint = "Give the folder that holds config.json and the weights."
        raise CheckpointError(f"{what}: {path} has no config.json.", hint)
    with reading(file, what, DOWNLOAD_AGAIN):
        config = json.loads(file.read_text(encoding="utf-8"))
        _check_config(config)
        return config


def without_tilde(path: str) -> Path:
    """Return a path with the home folder in place of `~`, or as it is if the user is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def config_if_readable(path: Path) -> dict[str, Any]:
    """Read the folder's config.json, or return {} if `read_config` refuses it."""
    try:
        return read_config(path, "")
    except CheckpointError:
        return {}


def quantization_of(config: dict[str, Any]) -> str:
    """Return the quantisation method of a checkpoint, such as "awq", or "" if it has none."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return ""
    return str(quantization.get("quant_method") or "unknown")


def stored_format(config: dict[str, Any]) -> str:
    """Return the quantisation with its numbers, such as "bitsandbytes nf4" or "awq int4".

    If the config does not say more, return only the method. Without quantisation, return "".
    """
    method = quantization_of(config)
    if not method:
        return ""
    quantization = config["quantization_config"]
    if quantization.get("load_in_4bit") is True:
        kind = quantization.get("bnb_4bit_quant_type")
        return f"{method} {kind}" if kind in ("fp4", "nf4") else f"{method} fp4"
    if quantization.get("load_in_8bit") is True:
        return f"{method} int8"
    bits = quantization.get("bits")
    return f"{method} int{bits}" if type(bits) is int else method


def _check_config(config: Any) -> None:
    """Raise ValueError for the first value that has a wrong type or is out of range."""
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")
    for name, largest in _LARGEST_SIZES.items():
        size = config.get(name)
        if size is not None and not (type(size) is int and 1 <= size <= largest):
            raise ValueError(f"{name} is {size!r}, not a whole number from 1 to {largest:,}")
    for name in _POSITIVE_NUMBERS:
        parameter = config.get(name)
        is_number = type(parameter) in (int, float)
        if parameter is not None and not (is_number and 0 < parameter < math.inf):
            raise ValueError(f"{name} is {parameter!r}, not a number above 0")
    for name in ("dtype", "torch_dtype", "model_type"):
        if not isinstance(config.get(name, ""), str | None):
            raise ValueError(f"{name} is {config[name]!r}, not a name")
    if config.get("text_config") is not None:
        _check_config(config["text_config"])


def missing_files(
    path: Path, *, needs_tokenizer: bool, needs_weights: bool = True, kind: str = ""
) -> list[str]:
    """Return the names of missing files, or a description where several names are possible."""
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    weights = weight_files(path, kind) if needs_weights else ()
    missing += [file.name for file in weights if not file.is_file()]
    if needs_weights and not weights:
        missing.append("weights (model.safetensors or pytorch_model.bin)")
    if needs_tokenizer and not has_tokenizer(path):
        missing.append("a tokenizer (tokenizer.json or tokenizer.model)")
    return missing


def has_tokenizer(path: Path) -> bool:
    """Return True if the folder has a tokenizer file."""
    return any((path / name).is_file() for name in _TOKENIZER_FILES)


def weight_files(path: Path, kind: str = "", *, prefers_index: bool = False) -> Sequence[Path]:
    """Return the weight files that are read from a folder. All have one format.

    Files named by an index may be missing. Training state and copies in other formats are left out.
    If no file has a name for this kind of weights, as for the method of a plug-in, all weight files
    of one format are returned, safetensors first.
    """
    if paths := find_weights(path, names_of(kind), prefers_index=prefers_index).paths:
        return paths
    for suffix in WEIGHT_SUFFIXES:
        files = [file for file in sorted(path.glob(f"*{suffix}")) if is_weight_name(file.name)]
        if files:
            return files
    return ()


def count_parameters(folder: Path) -> int:
    """Count the parameters in the folder's weight files.

    A pickled head is assumed to have two bytes per parameter.
    """
    num_parameters = 0
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            tensors = safetensors_header(file, str(folder))
            num_parameters += sum(math.prod(tensor["shape"]) for tensor in tensors.values())
        else:
            with reading(file, str(folder), DOWNLOAD_AGAIN):
                num_parameters += file.stat().st_size // 2
    return num_parameters


def identify(path: Path, kind: str = "", *, prefers_index: bool = False) -> WeightsHeader:
    """Return the commit of a folder, and the hashes of the files in it that are read.

    The path may also be a single file.
    """
    if path.is_dir():
        is_snapshot = path.parent.name == "snapshots"  # in the cache of the Hub
        revision = path.name if is_snapshot else None
        files = [
            file
            for file in sorted(path.iterdir())
            if file.suffix in _SMALL_FILE_SUFFIXES and file.is_file()
        ]
        files += weight_files(path, kind, prefers_index=prefers_index)
    else:
        revision = None
        files = [path]
    headers = {file.name: FileHeader(file.stat().st_size, cached_sha256(file)) for file in files}
    return WeightsHeader(revision=revision, files=headers)


def hash_of(files: Mapping[str, FileHeader]) -> str:
    """Return one hash for all files of a checkpoint."""
    hashes = sorted((name, file.sha256 or str(file.bytes)) for name, file in files.items())
    return sha256(json.dumps(hashes).encode()).hexdigest()


def check_same_vocabulary(
    target: "PreTrainedTokenizerBase", draft: "PreTrainedTokenizerBase", *, what: str = "draft"
) -> None:
    """Raise CheckpointError unless every token of the target has the same id in the draft model.

    Special tokens may have other names, and the draft model may have more of them. Embedding
    matrices are not compared: either model may pad them.
    """
    target_tokens = {i: token for token, i in target.get_vocab().items()}
    draft_tokens = {i: token for token, i in draft.get_vocab().items()}
    special = set(target.added_tokens_decoder) | set(draft.added_tokens_decoder)
    different = [
        token_id
        for token_id, token in target_tokens.items()
        if token_id not in draft_tokens
        or (draft_tokens[token_id] != token and token_id not in special)
    ]
    if not different:  # the draft model's own tokens, which the target does not have
        different = [i for i in draft_tokens if i not in target_tokens and i not in special]
    if not different:
        return
    lowest = min(different)
    raise CheckpointError(
        f"The vocabulary of {what} is not the target's: it has {len(draft_tokens):,} tokens, the "
        f"target {len(target_tokens):,}, and {len(different):,} differ. Id {lowest} is "
        f"{draft_tokens.get(lowest)!r} in the draft, {target_tokens.get(lowest)!r} in the target.",
        "Use a draft that was made for this target, or one of the same model family.",
    )


def _check_weights(file: Path, what: str) -> None:
    with reading(file, what, DOWNLOAD_AGAIN), file.open("rb") as stream:
        first_bytes = stream.read(40)
    if first_bytes.startswith(b"version https://git-lfs"):
        message = f"{what}: {file} is a Git LFS pointer, not the weights."
        raise CheckpointError(message, "Run `git lfs pull` in that folder.")
    if file.suffix == ".safetensors":
        safetensors_header(file, what)
        return
    is_cut_zip = first_bytes.startswith(b"PK") and not is_zip(file)
    if not first_bytes or is_cut_zip:
        num_bytes = file.stat().st_size
        message = f"{what}: {file} is truncated or damaged ({num_bytes:,} bytes)."
        raise CheckpointError(message, DOWNLOAD_AGAIN)
