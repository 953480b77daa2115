"""Read the checkpoints of heads, and check the keys and shapes of all their tensors.

Nothing in a file is executed, because pickles are read with `weights_only=True`.
"""

import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from specbench.engine.drafter import BuildContext
from specbench.engine.load import WeightSource
from specbench.engine.weight_files import FILES as FILES
from specbench.engine.weight_files import find_weights, holders_text, unlisted_names, weight_map
from specbench.errors import CheckpointError, SpecbenchError, UserError, few, reason_of

CONFIG = "config.json"
_AGAIN = "Copy or download the checkpoint again."


def given_weights(method: str, context: BuildContext) -> Path | WeightSource:
    """The checkpoint of a method. Raises UserError if it has none."""
    if context.weights is None:
        raise UserError(
            f"{method} has no checkpoint for this target.",
            f"Name one: --method {method}:weights=DIR_OR_HUB_ID",
        )
    return context.weights


class Checkpoint:
    """The tensors of a head, by name. `close` refuses a checkpoint with unread tensors.

    All tensors are moved to the target's device. Floating-point tensors get the target's dtype.
    """

    def __init__(
        self, method: str, context: BuildContext, file_names: tuple[str, ...], prefix: str = ""
    ) -> None:
        """Only tensors whose names begin with `prefix` are read."""
        self.method = method
        self._weights = weights = given_weights(method, context)
        self.target = context.target
        self.dtype = context.target.dtype
        self.device = context.target.device
        if isinstance(weights, Path):
            self._tensors = read_tensors(method, weights, file_names, prefix)
        else:
            tensors = weights.tensors(self.device, self.dtype)
            self._tensors = {key: tensor for key, tensor in tensors if key.startswith(prefix)}
        self._unread = set(self._tensors)
        self._read = find_weights(weights, file_names) if isinstance(weights, Path) else None
        self._file_names: dict[str, str] = {}  # names in the file, by renamed key
        self._renamed: list[tuple[str, str]] = []
        self.notes: list[str] = []
        """Notes on the head that the report shows as warnings."""
        self.facts: list[str] = []
        """Neutral facts about the head."""

    def config(self) -> dict[str, Any]:
        """The folder's config.json, or the config of a weight source."""
        if not isinstance(self._weights, Path):
            return dict(self._weights.config)
        path = self._weights / CONFIG
        try:
            config = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise self.error(f"has no readable {CONFIG} ({error})") from error
        if not isinstance(config, dict):
            raise self.error(f"has a {CONFIG} that is not a JSON object")
        return config

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def __iter__(self) -> Iterator[str]:
        """The names of the tensors."""
        return iter(self._tensors)

    def rename(self, *prefixes: tuple[str, str]) -> None:
        """Replace `prefixes` (published, internal) of keys. Errors name the published keys."""
        for published, internal in prefixes:
            for key in [key for key in self._tensors if key.startswith(published)]:
                new_key = internal + key.removeprefix(published)
                if new_key in self._tensors:
                    raise self.error(f"has both {key} and {new_key}")
                self._tensors[new_key] = self._tensors.pop(key)
                self._file_names[new_key] = self._file_names.pop(key, key)
                if internal and (published, internal) not in self._renamed:
                    self._renamed.append((published, internal))
        self._unread = set(self._tensors)

    def published(self, key: str) -> str:
        """The name of a key in the file. If it is missing, the name that it would have there."""
        if key in self._file_names:
            return self._file_names[key]
        for published, internal in self._renamed:
            if key.startswith(internal):
                return published + key.removeprefix(internal)
        return key

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of a tensor, which must exist."""
        if key not in self._tensors:
            name = self.published(key)
            holders = holders_text(self._read, [name]) if self._read else ""
            raise self.error(f"lacks {name}{holders}")
        return tuple(self._tensors[key].shape)

    def expect(self, key: str, *shape: int) -> None:
        """Mark a tensor as read. It must exist and have this shape."""
        if self.shape(key) != shape:
            actual = list(self.shape(key))
            name = self.published(key)
            raise self.error(f"has {name} of shape {actual}, not {list(shape)}")
        self._unread.discard(key)

    def take(self, key: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name, in `dtype` if given. It must exist and have this shape.

        Integers and 8-bit numbers are refused. They are quantised, but no format here has scales.
        """
        self.expect(key, *shape)
        tensor = self._tensors[key]
        name = self.published(key)
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise self.error(f"has {name} in {tensor.dtype}, without scales")
        taken = tensor.to(self.device, dtype or self.dtype)
        if not taken.isfinite().all():
            raise self.error(f"has {name} with NaN or infinite numbers")
        return taken

    def integers(self, key: str, size: int) -> Tensor:
        """The tensor [size] of this name as integers. The file must have integers or booleans."""
        self.expect(key, size)
        tensor = self._tensors[key]
        if tensor.is_floating_point():
            raise self.error(f"has {self.published(key)} in {tensor.dtype}, not in integers")
        return tensor.to(self.device).long()

    def linear(
        self, name: str, size_in: int, size_out: int, *, bias: bool | None = None
    ) -> nn.Linear:
        """The linear layer of this name. If `bias` is None, it has a bias if the file has one."""
        if bias is None:
            bias = f"{name}.bias" in self
        weight = self.take(f"{name}.weight", size_out, size_in)
        with torch.device("meta"):
            layer = nn.Linear(size_in, size_out, bias=bias)
        layer.weight = frozen(weight)
        if bias:
            layer.bias = frozen(self.take(f"{name}.bias", size_out))
        return layer

    def stack(self, names: list[str], *shape: int) -> Tensor:
        """Stack tensors of equal shape to [names, *shape]."""
        return torch.stack([self.take(name, *shape) for name in names])

    def count(self, key: Callable[[int], str]) -> int:
        """Number of keys `key(0)`, `key(1)`, ... up to the first missing one."""
        return next(n for n in itertools.count() if key(n) not in self._tensors)

    def note_zeros(self, key: str, tensor: Tensor) -> None:
        """Add a note if the tensor of that name is all zeros."""
        if not tensor.any():
            self.notes.append(
                f"Its {self.published(key)} is all zeros, so its drafts are useless. Copy or "
                "download the checkpoint again, or ask its publisher."
            )

    def skip(self, *keys: str) -> None:
        """Ignore these tensors, which the format may hold but nothing needs."""
        self._unread.difference_update(keys)

    def close(self) -> tuple[str, ...]:
        """Refuse a checkpoint with a tensor that was neither taken nor skipped. Returns the notes.

        Tensors that the index does not list are allowed.
        """
        unread = {*map(self.published, self._unread)}
        if unread and self._read:
            unread -= unlisted_names(self._read)
        if unread:
            raise self.error(f"has unexpected tensors: {few(sorted(unread))}")
        self._tensors.clear()
        return tuple(self.notes)

    @contextmanager
    def config_errors(self, what: str) -> Iterator[None]:
        """Turn transformers' errors about an invalid config into the checkpoint's error."""
        try:
            yield
        except SpecbenchError:
            raise
        except Exception as error:  # transformers validates a config in several ways
            why = " ".join(str(error).split())
            raise self.error(f"has a config that does not describe {what} ({why})") from error

    def error(self, problem: str) -> CheckpointError:
        """The error for a checkpoint that does not match the method."""
        weights = self._weights
        where = f"in {weights}" if isinstance(weights, Path) else f"of {weights.name}"
        return CheckpointError(
            f"The {self.method} checkpoint {where} {problem}.",
            f"Use a head that {self.method} runs, trained for this exact target, or copy it again.",
        )


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter that is not trained."""
    return nn.Parameter(tensor, requires_grad=False)


def read_tensors(
    method: str, folder: Path, file_names: tuple[str, ...], prefix: str = ""
) -> dict[str, Tensor]:
    """Tensors of the first file in `file_names` that exists, whole or in shards."""
    weights = find_weights(folder, file_names)
    if not weights.paths:
        raise CheckpointError(
            f"{folder} holds no {method} checkpoint: there is no {' or '.join(file_names)}.", _AGAIN
        )
    if weights.index is None:
        return _read_file(weights.paths[0], prefix)
    listed = {  # the file of each key
        key: name for key, name in weight_map(weights.index).items() if key.startswith(prefix)
    }
    tensors: dict[str, Tensor] = {}
    for name in sorted({*listed.values()}):
        tensors |= _read_file(folder / name, prefix)
    if missing := sorted(listed.keys() - tensors.keys()):
        holders = holders_text(weights, missing)
        message = f"{weights.index} and {listed[missing[0]]} disagree about {missing[0]}{holders}."
        raise CheckpointError(message, _AGAIN)
    return tensors


def _read_file(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors of one file whose names begin with `prefix`."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                keys = [key for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118
                return {key: file.get_tensor(key) for key in keys}
        with warnings.catch_warnings():  # a bad pickle raises; warnings would only repeat it
            warnings.simplefilter("ignore")
            tensors: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file may fail in any way
        message = f"{path} cannot be read as tensors (nothing in it was executed)"
        raise CheckpointError(f"{message}: {reason_of(error)}", _AGAIN) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} is not a flat dictionary of named tensors.", _AGAIN)
    return {key: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
