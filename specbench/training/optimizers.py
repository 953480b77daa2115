"""Muon for the weight matrices inside a model, AdamW for everything else, and their schedule.

Muon (Jordan et al. 2024) applies momentum and then replaces the update by the nearest
orthogonal matrix, found by five Newton-Schulz steps. torch has it since 2.9 only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates, for matrices."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": 0.95, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                momentum = state["momentum"]
                momentum.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalize(param.grad.lerp(momentum, group["momentum"]))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                scale = max(1.0, param.shape[0] / param.shape[1]) ** 0.5
                param.add_(update, alpha=-group["lr"] * scale)


def orthogonalize(matrix: Tensor) -> Tensor:  # [rows, columns] -> [rows, columns]
    """The matrix with all its singular values moved close to one."""
    x = matrix.bfloat16()
    x = x / (x.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.T if is_tall else x).to(matrix.dtype)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, the peak rate, then a cosine down to `final` of it.

    `decay` is the share of the steps after the warm-up that the cosine takes.
    """

    num_steps: int
    warmup: int
    final: float = 0.02
    decay: float = 1.0

    def factor(self, step: int) -> float:
        """The factor of the peak learning rates at this step."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        num_falling = max(1, round(self.decay * (self.num_steps - self.warmup)))
        done = min(1.0, max(0.0, 1 - (self.num_steps - step) / num_falling))
        return self.final + (1 - self.final) * 0.5 * (1 + cos(pi * done))


def optimizers_for(
    module: nn.Module, vocab_weights: Iterable[Tensor], *, matrix_lr: float, other_lr: float
) -> list[torch.optim.Optimizer]:
    """Muon for the module's matrices except `vocab_weights`; AdamW for these, norms and biases."""
    excluded = {id(weight) for weight in vocab_weights}
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for param in module.parameters():
        (matrices if param.ndim == 2 and id(param) not in excluded else others).append(param)
    muon = Muon([{"params": matrices, "peak_lr": matrix_lr}])
    adam = torch.optim.AdamW(
        [{"params": others, "peak_lr": other_lr}], betas=(0.9, 0.98), weight_decay=0.0
    )
    return [muon, adam]


def step(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Apply and clear the gradients, with the peak learning rates times `factor`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
