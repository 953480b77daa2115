"""The training loop, which goes on from a checkpoint to the same losses.

It knows batches, a loss function and optimizers, but not the model, nor where its text comes from.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from specbench.errors import NonFiniteError, reading
from specbench.log.files import LineFile
from specbench.training.batches import Batch, BatchSource
from specbench.training.files import NO_NUMBERS, replacing
from specbench.training.optimizers import Schedule, step

Loss = Callable[[Batch], Tensor]
Evaluation = Callable[[], Mapping[str, float]]
Optimizers = Sequence[torch.optim.Optimizer]
LogLine = Mapping[str, object]

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a run, and how often it logs, and evaluates and saves, in steps.

    The checkpoint is beside the log.
    """

    schedule: Schedule
    log: LineFile
    log_every: int = 20
    save_every: int = 100
    on_log: Callable[[LogLine], None] | None = None


@dataclass(slots=True)
class _Progress:
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def train(
    module: nn.Module,
    loss_of: Loss,
    batches: BatchSource,
    optimizers: Optimizers,
    plan: Plan,
    evaluate: Evaluation,
) -> None:
    """Train the module in place, from the checkpoint beside the plan's log if there is one.

    Raises:
        NonFiniteError: a loss or gradient is NaN or infinite. The module is as before the step.
        UserError: the checkpoint or the log is damaged, or the disk is full.
    """
    device = next(module.parameters()).device
    checkpoint = plan.log.path.with_name("checkpoint.pt")
    progress = _resume(checkpoint, module, optimizers, device)
    _cut(plan.log, progress.step)
    started = time.perf_counter() - progress.seconds
    losses: list[float] = []
    while progress.step < plan.schedule.num_steps:
        factor = plan.schedule.factor(progress.step)
        batch = batches[progress.step].to(device)
        loss = loss_of(batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), MAX_GRAD_NORM)
        losses.append(loss.item())
        if not math.isfinite(losses[-1] + float(norm)):
            told = f"The loss of step {progress.step + 1} is {losses[-1]:g}, its gradient {norm:g}."
            raise NonFiniteError(told, NO_NUMBERS)
        step(optimizers, factor)
        progress.step += 1
        progress.tokens += batch.num_tokens
        progress.seconds = time.perf_counter() - started
        is_last = progress.step == plan.schedule.num_steps
        is_saved = is_last or progress.step % plan.save_every == 0
        if is_saved or progress.step % plan.log_every == 0:
            line = _line(progress, losses, norm, optimizers)
            losses.clear()
            if is_saved:
                line["held_out"] = _evaluated(module, evaluate)
            plan.log.append(f"{json.dumps(line)}\n".encode())
            if plan.on_log:
                plan.on_log(line)
        if is_saved:
            _save(checkpoint, module, optimizers, progress)


def _line(
    progress: _Progress, losses: Sequence[float], norm: Tensor, optimizers: Optimizers
) -> dict[str, object]:
    return {
        "step": progress.step,
        "tokens": progress.tokens,
        "loss": round(sum(losses) / len(losses), 4),
        "grad_norm": round(float(norm), 3),
        "lr": [round(o.param_groups[0]["lr"], 6) for o in optimizers],
        "seconds": round(progress.seconds, 1),
    }


def _evaluated(module: nn.Module, evaluate: Evaluation) -> dict[str, float]:
    module.eval()
    values = {name: round(value, 4) for name, value in evaluate().items()}
    module.train()
    return values


def _save(path: Path, module: nn.Module, optimizers: Optimizers, progress: _Progress) -> None:
    state = {
        "module": module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": (progress.step, progress.tokens, progress.seconds),
    }
    with replacing(path) as scratch:
        torch.save(state, scratch)


def _resume(
    path: Path, module: nn.Module, optimizers: Optimizers, device: torch.device
) -> _Progress:
    """Load the checkpoint, if there is one."""
    if not path.exists():
        return _Progress()
    hint = "Put a copy of the file in its place, or delete it to train from the first step."
    with reading(path, "The training cannot go on", hint):
        with ZipFile(path) as archive:
            if damaged := archive.testzip():  # torch.load does not look at checksums
                raise ValueError(f"{damaged} in it is damaged")
        state = torch.load(path, map_location=device, weights_only=True)
        module.load_state_dict(state["module"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return _Progress(*state["progress"])


def _cut(log: LineFile, step: int) -> None:
    """Drop the log's lines of steps that will be done again."""
    with reading(log.path, "The training cannot go on", "Delete the file: nothing needs it."):
        lines = log.path.read_bytes().splitlines(keepends=True)
        steps = [json.loads(line)["step"] for line in lines]
        if steps != sorted(steps):
            raise ValueError("its steps are out of order")
        log.cut(sum(len(line) for line, at in zip(lines, steps, strict=True) if at <= step))
