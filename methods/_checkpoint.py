"""Head checkpoints: a folder of tensors, of which every key and shape is accounted for.

Knows files and tensors. Knows nothing of what a head computes. Nothing in a file is executed:
pickles are read with `weights_only=True`.
"""

import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from specbench.engine.drafter import BuildContext
from specbench.errors import CheckpointError, UserError

CONFIG = "config.json"


class Checkpoint:
    """The tensors of one head, each handed out by name; `close` refuses what nobody asked for.

    Floating tensors are converted to the target's dtype, all are moved to its device.
    """

    def __init__(self, method: str, context: BuildContext, file_names: tuple[str, ...]) -> None:
        if context.weights is None:
            raise UserError(
                f"{method} has no checkpoint for this target.",
                f"Name one: --method {method}:weights=DIR_OR_HUB_ID",
            )
        self.method = method
        self._weights = weights = context.weights
        self._dtype = context.target.dtype
        self.device = context.target.device
        if isinstance(weights, Path):
            self._tensors = _read_tensors(method, weights, file_names)
        else:
            self._tensors = dict(weights.tensors(self.device, self._dtype))
        self._unread = set(self._tensors)

    def config(self) -> dict[str, Any]:
        """The folder's config.json, or what a source has in its place."""
        if not isinstance(self._weights, Path):
            return dict(self._weights.config)
        path = self._weights / CONFIG
        try:
            config = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise self.error(f"has no readable {CONFIG} ({error})") from error
        if not isinstance(config, dict):
            raise self.error(f"has a {CONFIG} that is no object")
        return config

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of a tensor that has to be there."""
        if key not in self._tensors:
            raise self.error(f"lacks {key}")
        return tuple(self._tensors[key].shape)

    def expect(self, key: str, *shape: int) -> None:
        """Account for a tensor, which has to be there and of that shape."""
        if self.shape(key) != shape:
            raise self.error(f"has {key} of shape {list(self.shape(key))}, not {list(shape)}")
        self._unread.discard(key)

    def take(self, key: str, *shape: int) -> Tensor:
        """The tensor of that name, which has to be there and of that shape."""
        self.expect(key, *shape)
        tensor = self._tensors[key]
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device, dtype)

    def linear(self, name: str, size_in: int, size_out: int, *, bias: bool) -> nn.Linear:
        """The linear layer of that name."""
        weight = self.take(f"{name}.weight", size_out, size_in)
        with torch.device("meta"):
            layer = nn.Linear(size_in, size_out, bias=bias)
        layer.weight = frozen(weight)
        if bias:
            layer.bias = frozen(self.take(f"{name}.bias", size_out))
        return layer

    def stack(self, names: list[str], *shape: int) -> Tensor:
        """Equally shaped tensors in one [names, *shape]."""
        return torch.stack([self.take(name, *shape) for name in names])

    def count(self, key: Callable[[int], str]) -> int:
        """How many of the keys `key(0)`, `key(1)`, ... there are, up to the first gap."""
        return next(n for n in itertools.count() if key(n) not in self._tensors)

    def skip(self, *keys: str) -> None:
        """Accept these tensors, which the format may hold and nobody needs."""
        self._unread.difference_update(keys)

    def close(self) -> None:
        """Refuse a checkpoint with a tensor that was neither taken nor skipped."""
        if self._unread:
            unread = sorted(self._unread)
            more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
            raise self.error(
                f"holds {', '.join(unread[:3])}{more}, which such a head does not have"
            )
        self._tensors.clear()

    def error(self, what: str) -> CheckpointError:
        """The error of a checkpoint that is not what the method expects."""
        weights = self._weights
        where = f"in {weights}" if isinstance(weights, Path) else f"of {weights.name}"
        return CheckpointError(
            f"The {self.method} checkpoint {where} {what}.",
            f"Give one that was trained as {self.method} for this very target, or copy it again.",
        )


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter that is not trained."""
    return nn.Parameter(tensor, requires_grad=False)


def _read_tensors(method: str, folder: Path, file_names: tuple[str, ...]) -> dict[str, Tensor]:
    hint = "Copy or download the checkpoint again."
    path = next((folder / name for name in file_names if (folder / name).is_file()), None)
    if path is None:
        raise CheckpointError(
            f"{folder} holds no {method} checkpoint: there is no {' or '.join(file_names)}.", hint
        )
    try:
        if path.suffix == ".safetensors":
            tensors: Any = load_file(path)
        else:
            with warnings.catch_warnings():  # a strange pickle is an error or none, never both
                warnings.simplefilter("ignore")
                tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file may fail in any way
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} cannot be read as tensors, and nothing in it was executed: {reason}", hint
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in tensors.items()
    ):
        raise CheckpointError(f"{path} is no flat dictionary of named tensors.", hint)
    return tensors
