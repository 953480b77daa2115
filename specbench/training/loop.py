"""Train in a loop. An interrupted training continues from a checkpoint with the same losses."""

import ctypes
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from specbench.errors import NonFiniteError, reading
from specbench.log.files import LineFile
from specbench.training.batches import Batch, BatchSource
from specbench.training.head import NON_FINITE_HINT
from specbench.training.head_files import write_saved
from specbench.training.optimizers import Optimizers, Schedule

Loss = Callable[[Batch], Tensor]
LogLine = dict[str, Any]
MAX_GRAD_NORM = 1.0
_MALLOC_OPTIONS = {
    -4: 0,  # M_MMAP_MAX
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD
    -8: 1,  # M_ARENA_MAX
}
"""Parameters of glibc's mallopt that keep freed memory."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The schedule of a training, and the numbers of steps between log lines and between saves."""

    schedule: Schedule

    log: LineFile
    """The log, which is in the same folder as the checkpoint."""

    log_every: int = 20
    save_every: int = 100
    on_log: Callable[[LogLine], None] = lambda line: None


def keep_memory() -> None:
    """Keep the memory of freed tensors for later tensors. glibc would return large blocks at once.

    New pages cost more than the work on them: with a vocabulary of 49,000, keeping them cuts a step
    over 1,900 tokens to 0.45 of its time on two cores. Only Linux has this setting.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        for option, setting in _MALLOC_OPTIONS.items():
            mallopt(option, setting)


@dataclass(slots=True)
class _Progress:
    """The number of steps so far, their tokens, and the seconds that they took."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def train(
    module: nn.Module,
    loss_of: Loss,
    batches: BatchSource,
    optimizers: Optimizers,
    plan: TrainingPlan,
    evaluate: Callable[[], Mapping[str, float]],
) -> None:
    """Train the module in place, from the checkpoint beside the plan's log if there is one.

    Raises:
        NonFiniteError: a loss or gradient is NaN or infinite. The step has not changed the module.
        UserError: the checkpoint or the log is damaged, or the disk is full.
    """
    keep_memory()
    checkpoint = plan.log.path.with_name("checkpoint.pt")
    progress = _resume(checkpoint, module, optimizers)
    _cut_log(plan.log, progress.step)
    started = time.perf_counter() - progress.seconds
    losses: list[float] = []  # of the steps since the log's last line
    while progress.step < plan.schedule.num_steps:
        batch = batches[progress.step].to(next(module.parameters()).device)
        loss = loss_of(batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), MAX_GRAD_NORM)
        losses.append(loss.item())
        _check_finite(losses[-1], float(norm), step=progress.step + 1)
        _update(optimizers, plan.schedule.factor(progress.step))
        progress.step += 1
        progress.tokens += batch.num_tokens
        progress.seconds = time.perf_counter() - started
        is_last = progress.step == plan.schedule.num_steps
        is_saved = is_last or progress.step % plan.save_every == 0
        if is_saved or progress.step % plan.log_every == 0:
            line = _line(progress, losses, norm, optimizers)
            losses.clear()
            if is_saved:
                module.eval()
                line["held_out"] = {name: round(rate, 4) for name, rate in evaluate().items()}
                module.train()
            plan.log.append(f"{json.dumps(line)}\n".encode())
            plan.on_log(line)
        if is_saved:
            _save(checkpoint, module, optimizers, progress)


def _check_finite(loss: float, norm: float, *, step: int) -> None:
    """Raise NonFiniteError if the loss or the norm of the gradient is NaN or infinite."""
    if not math.isfinite(loss + norm):
        message = f"The loss of step {step} is {loss:g}, its gradient {norm:g}."
        raise NonFiniteError(message, NON_FINITE_HINT)


def _update(optimizers: Optimizers, factor: float) -> None:
    """Update the parameters from their gradients, at this factor of the peak learning rates."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        optimizer.step()
        optimizer.zero_grad()


def _line(
    progress: _Progress, losses: Sequence[float], norm: Tensor, optimizers: Optimizers
) -> LogLine:
    """Return a line of the log, with the mean of these losses."""
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    return {
        "step": progress.step,
        "tokens": progress.tokens,
        "loss": round(sum(losses) / len(losses), 4),
        "grad_norm": round(float(norm), 3),
        "lr": [round(rate, 6) for rate in rates],
        "seconds": round(progress.seconds, 1),
    }


def _save(checkpoint: Path, module: nn.Module, optimizers: Optimizers, progress: _Progress) -> None:
    """Write the checkpoint that `_resume` reads."""
    state = {
        "module": module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": (progress.step, progress.tokens, progress.seconds),
    }
    write_saved(checkpoint, state)


def _resume(checkpoint: Path, module: nn.Module, optimizers: Optimizers) -> _Progress:
    """Load the checkpoint if there is one, and return its progress."""
    if not checkpoint.exists():
        return _Progress()
    hint = "Put a copy of the file in its place, or delete it to train from the first step."
    with reading(checkpoint, "The training cannot continue", hint):
        with ZipFile(checkpoint) as archive:
            damaged = archive.testzip()  # torch.load does not look at checksums
        if damaged:
            raise ValueError(f"{damaged} in it is damaged")
        device = next(module.parameters()).device
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        module.load_state_dict(state["module"])
        for optimizer, optimizer_state in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_state)
        return _Progress(*state["progress"])


def _cut_log(log: LineFile, step: int) -> None:
    """Drop the lines of the log for steps after `step`, which will be done again."""
    with reading(log.path, "The training cannot continue", "Delete the file: nothing needs it."):
        lines = log.path.read_bytes().splitlines(keepends=True)
        steps = [json.loads(line)["step"] for line in lines]
        if steps != sorted(steps):
            raise ValueError("its steps are out of order")
        num_bytes = sum(
            len(line) for line, line_step in zip(lines, steps, strict=True) if line_step <= step
        )
        log.cut(num_bytes)
