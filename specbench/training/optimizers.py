"""The optimizers of a training and their learning rates.

Muon is for the weight matrices inside a model, and AdamW for everything else. Muon (Jordan et al.
2024) applies momentum, and then replaces the update by the nearest orthogonal matrix, which five
Newton-Schulz steps find. torch has had Muon only since 2.9.
"""

import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Optimizers = Sequence[torch.optim.Optimizer]

_NUM_NEWTON_SCHULZ = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of a X + b (X X^T) X + c (X X^T)^2 X, which moves singular values close to one."""
_ADAM_BETAS = (0.9, 0.98)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates, for matrices."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": 0.95, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the matrices from their gradients."""
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                momentum = state["momentum"]
                # m = beta m + (1 - beta) g, and with Nesterov's look ahead (1 - beta) g + beta m
                momentum.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalize(param.grad.lerp(momentum, group["momentum"]))
                num_rows, num_columns = param.shape
                scale = max(1.0, num_rows / num_columns) ** 0.5
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(update, alpha=-group["lr"] * scale)


def has_fast_bfloat16(device: str) -> bool:
    """Return False for an x86 CPU without instructions for bfloat16. float32 is far faster there.

    The engine's `emulates_bfloat16` is narrower: it is true if torch has no vector instructions for
    bfloat16.
    """
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if not device.startswith("cpu") or not is_x86:
        return True
    has_instructions = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return has_instructions is None or bool(has_instructions())


def orthogonalize(matrix: Tensor) -> Tensor:  # [rows, columns] -> [rows, columns]
    """Return the matrix with all its singular values moved close to one."""
    is_fast = has_fast_bfloat16(matrix.device.type)
    wide = matrix.bfloat16() if is_fast else matrix.float()
    wide = wide / (wide.norm() + 1e-7)
    is_tall = wide.shape[0] > wide.shape[1]
    if is_tall:
        wide = wide.T
    linear, cubic, quintic = _COEFFICIENTS
    for _ in range(_NUM_NEWTON_SCHULZ):
        gram = wide @ wide.T
        wide = linear * wide + (cubic * gram + quintic * gram @ gram) @ wide
    return (wide.T if is_tall else wide).to(matrix.dtype)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A linear warm-up, the peak rate, and then a cosine down to `final` times the peak rate."""

    num_steps: int

    warmup: int
    """Number of steps of the warm-up."""

    final: float = 0.02

    decay: float = 1.0
    """The share of the steps after the warm-up that the cosine takes."""

    def factor(self, step: int) -> float:
        """Return the factor of the peak learning rates at this step."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        num_falling = max(1, round(self.decay * (self.num_steps - self.warmup)))
        num_left = self.num_steps - step
        progress = min(1.0, max(0.0, 1 - num_left / num_falling))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final + (1 - self.final) * cosine


def optimizers_for(
    module: nn.Module, vocab_weights: Iterable[Tensor], matrix_lr: float, other_lr: float
) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices except `vocab_weights`, and AdamW for all other parameters."""
    excluded = {id(weight) for weight in vocab_weights}
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for param in module.parameters():
        is_matrix = param.ndim == 2 and id(param) not in excluded
        (matrices if is_matrix else others).append(param)
    muon = Muon([{"params": matrices, "peak_lr": matrix_lr}])
    other_group = {"params": others, "peak_lr": other_lr}
    adam = torch.optim.AdamW([other_group], betas=_ADAM_BETAS, weight_decay=0.0)
    return [muon, adam]
