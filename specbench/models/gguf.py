"""Dequantise a GGUF file once, into a folder of the cache that loads like any other."""

import importlib.util
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from specbench.data.cache import cache_dir, cached_sha256
from specbench.errors import (
    CheckpointError,
    UserError,
    few,
    os_errors,
    printable,
    reading,
    reason_of,
)
from specbench.models.cards import GGUF_TYPE
from specbench.models.gguf_metadata import differences, scales_rotary, unread_tensors

_DTYPE_OF_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Type of weights that are not quantised -> the dtype that they keep."""
_HASHES = "converted.sha256"
"""The JSON file that holds the hash of each converted file by its name."""
_AGAIN = "Copy or download it again."
_HINT = "Give the model's folder or Hub id instead."
_CHECKS = 2
"""Version of the checks that a file must pass. Folders from an earlier version are not used."""


def file_in_wheel(address: str) -> Path | None:
    """Find the file PACKAGE/FILE of an installed package. Return None if it is missing."""
    package, _, name = address.partition("/")
    spec = importlib.util.find_spec(package) if package else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    files = (Path(folder) / name for folder in folders)
    return next((file for file in files if file.is_file()), None)


def gguf_folder(file: Path, *, what: str) -> Path:
    """Return the folder with the file's weights, config, tokenizer and chat template.

    Quantised weights become bfloat16, and others keep their dtype. The folder holds a link to the
    file, for the hash in a run's header and for engines that read GGUF. A killed conversion is done
    again.

    Raises:
        CheckpointError: the file is broken, is one of several parts, or has an architecture that
            does not run here.
        UserError: the cache cannot be written.
    """
    from filelock import FileLock

    if not file.is_file():
        raise CheckpointError(f"{what}: the file {file} does not exist.", "Check the path.")
    file = file.resolve()
    folder = cache_dir() / "gguf" / f"{file.stem}-{cached_sha256(file)[:16]}-{_CHECKS}"
    partial = folder.with_name(f"{folder.name}.partial")
    with os_errors(
        f"{what}: {file} cannot be converted in {folder.parent}",
        "Free space there, or set SPECBENCH_CACHE to a folder that can be written.",
    ):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / _HASHES).is_file():  # older versions of specbench wrote no hashes
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                _convert(file, partial, what)
                hashes = {path.name: cached_sha256(path) for path in partial.iterdir()}
                (partial / _HASHES).write_text(json.dumps(hashes), encoding="utf-8")
                partial.rename(folder)
            _check_unchanged(folder, what)
            _link(file, folder / file.name)
    return folder


def _check_unchanged(folder: Path, what: str) -> None:
    """Refuse converted files that have changed since they were written.

    Raises:
        CheckpointError: the hash of a file has changed.
    """
    with reading(folder / _HASHES, what, f"Remove {folder}."):
        hashes: dict[str, str] = json.loads((folder / _HASHES).read_text(encoding="utf-8"))
    for name, sha256 in hashes.items():
        if cached_sha256(folder / name) != sha256:
            raise CheckpointError(
                f"{what}: {folder / name} has changed since it was converted.",
                f"Remove {folder}: the next run converts the GGUF file again.",
            )


def _link(file: Path, link: Path) -> None:
    if not link.is_symlink() or link.resolve() != file:
        link.unlink(missing_ok=True)
        link.symlink_to(file)


class _Contents(NamedTuple):
    """The contents of a file's header."""

    architecture: str
    fields: Mapping[str, Any]
    """The metadata of the architecture, with the prefix removed from its keys."""
    tensor_names: list[str]
    dtype: str
    """The dtype that most of the weights keep or are converted to."""
    quantisation: str
    """The file's own type, such as Q4_K_M, or "" if no weights are packed."""


def _convert(file: Path, folder: Path, what: str) -> None:
    import torch
    import transformers

    from specbench.engine.load import without_weights
    from specbench.engine.quiet import quiet_transformers
    from specbench.engine.supported import check_attention, check_complete

    contents = _checked_contents(file, what)
    dtype = getattr(torch, contents.dtype)
    source: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    dequantisation: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # without it, the weights may stay packed
        dequantisation["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        # progress bars cannot be turned off
        with quiet_transformers(), redirect_stderr(StringIO()):
            config = transformers.AutoConfig.from_pretrained(file.parent, **source)
            check_attention(config, file)
            _check_is_read(contents, without_weights(config, dtype), f"{what}: {file}")
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=dtype, output_loading_info=True, **source, **dequantisation
            )
            check_complete(file, report, model.config)
            tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **source)
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except (UserError, OSError):
        raise
    except Exception as error:  # a damaged file may fail in any way
        message = f"{what}: {file} cannot be read: {reason_of(error)}"
        raise CheckpointError(message, _AGAIN) from error
    config_file = folder / "config.json"
    written = json.loads(config_file.read_text(encoding="utf-8"))
    if contents.quantisation:
        written[GGUF_TYPE] = contents.quantisation
    config_file.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def _check_is_read(contents: _Contents, model: Any, file: str) -> None:
    """Refuse a file if transformers skips part of its contents. `model` has no weights."""
    unread = unread_tensors(contents.architecture, contents.tensor_names, model)
    if unread:
        raise CheckpointError(f"{file} has tensors that transformers skips: {few(unread)}.", _HINT)
    changed = differences(contents.architecture, contents.fields, model.config, model)
    texts = [f"{key} is {in_file} (loaded: {loaded})" for key, in_file, loaded in changed]
    if texts:
        message = f"{file} has metadata that transformers skips: {few(sorted(texts))}."
        raise CheckpointError(message, _HINT)


def _checked_contents(file: Path, what: str) -> _Contents:
    """Return the contents of a file's header. Refuse a file that cannot be converted."""
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    try:
        reader = GGUFReader(file)
        keys = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("tokenizer.")
        }
        num_files = int(keys.get("split.count", 1))
        architecture = str(keys["general.architecture"])
        num_weights: Counter[str] = Counter()  # the number of weights by type
        for tensor in reader.tensors:
            num_weights[tensor.tensor_type.name] += int(tensor.n_elements)
        [(main_type, _)] = num_weights.most_common(1)
    except Exception as error:  # a damaged file may fail in any way
        message = f"{what}: {file} is not a whole GGUF file: {reason_of(error)}"
        raise CheckpointError(message, _AGAIN) from error
    if num_files > 1:
        raise CheckpointError(
            f"{what}: {file} is one of {num_files} parts.",
            "Join them with llama.cpp's `llama-gguf-split --merge`.",
        )
    prefix = f"{architecture}."
    fields = {name.removeprefix(prefix): keys[name] for name in keys if name.startswith(prefix)}
    names = [tensor.name for tensor in reader.tensors]
    has_factors = any(name.startswith("rope_f") for name in names)
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        reason = f"holds a {printable(architecture)} model, which is not converted"
    elif has_factors or scales_rotary(fields):
        reason = "scales its rotary embedding, which transformers does not read from a GGUF file"
    else:
        dtype = _DTYPE_OF_PLAIN.get(main_type, "bfloat16")
        quantisation = _quantisation(keys.get("general.file_type"), num_weights)
        return _Contents(architecture, fields, names, dtype, quantisation)
    raise CheckpointError(f"{what}: {file} {reason}.", _HINT)


def _quantisation(file_type: int | None, num_weights: Counter[str]) -> str:
    """Return the type that the file states, or else the type of most of its packed weights."""
    from gguf import LlamaFileType

    packed = [kind for kind, _ in num_weights.most_common() if kind not in _DTYPE_OF_PLAIN]
    names = {int(kind): kind.name.partition("_")[2] for kind in LlamaFileType}
    name = "" if file_type is None else names.get(file_type, "")
    if packed and name in ("", *_DTYPE_OF_PLAIN):
        return packed[0]
    return name if packed else ""
