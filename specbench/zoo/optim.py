"""Optimizers: Muon for the weight matrices of the layers, AdamW for everything else.

Muon (Jordan et al. 2024) applies momentum and then replaces the update by the nearest orthogonal
matrix, found by five Newton-Schulz steps. It is written out here because torch has it since 2.9
only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import cos, pi

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates, for matrices."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

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
                update = orthogonalised(param.grad.lerp(momentum, group["momentum"]))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                scale = max(1.0, param.shape[0] / param.shape[1]) ** 0.5
                param.add_(update, alpha=-group["lr"] * scale)


def orthogonalised(matrix: Tensor) -> Tensor:  # [rows, columns] -> [rows, columns]
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
    """Linear warm-up, then a cosine down to `final` of the peak learning rate."""

    num_steps: int
    warmup: int
    final: float = 0.02

    def factor(self, step: int) -> float:
        """What the peak learning rates are multiplied with at this step."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.num_steps - self.warmup)
        return self.final + (1 - self.final) * 0.5 * (1 + cos(pi * min(1.0, done)))


@dataclass(frozen=True, slots=True)
class Optimizers:
    """The optimizers of one run, stepped together; `peaks` are their peak learning rates."""

    parts: tuple[torch.optim.Optimizer, ...]
    peaks: tuple[float, ...]

    def step(self, factor: float) -> None:
        for part, peak in zip(self.parts, self.peaks, strict=True):
            for group in part.param_groups:
                group["lr"] = peak * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, object]]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, object]]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def optimizers_for(module: nn.Module, matrix_lr: float, other_lr: float) -> Optimizers:
    """Muon for the matrices inside the module's layers, AdamW for embeddings, norms and output."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, param in module.named_parameters():
        if param.requires_grad:
            is_matrix = param.ndim == 2 and "embed" not in name and "lm_head" not in name
            (matrices if is_matrix else others).append(param)
    return Optimizers(
        (
            Muon(matrices, lr=matrix_lr, weight_decay=0.01),
            torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ),
        (matrix_lr, other_lr),
    )
