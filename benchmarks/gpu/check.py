"""The result of a check, and the settings of checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specbench.types import Shape


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check. `is_ok` is None for a fact without a verdict."""

    name: str
    is_ok: bool | None
    text: str
    value: Any = None

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "PROBLEM", None: "note"}[self.is_ok]


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of checks. `shape` is the model's shape for products and layers."""

    device: torch.device
    dtype: torch.dtype
    shape: Shape | None
    num_prompts: int
    max_new_tokens: int
    num_replays: int

    @property
    def shapes_unsupported_reason(self) -> str | None:
        """Reason to skip operations in a model's shape; None if they can run."""
        if self.device.type != "cuda":
            return "needs a CUDA device"
        return None if self.shape else "needs a model whose shape is known"
