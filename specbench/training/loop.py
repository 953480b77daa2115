"""The training loop, which goes on from a checkpoint to the same losses.

It knows batches, a loss function and optimizers, but not the model, nor where its text comes from.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from specbench.training.batches import Batch, BatchSource
from specbench.training.optimizers import Schedule, step

Loss = Callable[[Batch], Tensor]
Evaluation = Callable[[], Mapping[str, float]]
Optimizers = Sequence[torch.optim.Optimizer]
LogLine = Mapping[str, object]

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a run, and how often it logs, and evaluates and saves, in steps."""

    schedule: Schedule
    folder: Path
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
    """Train the module in place, from the checkpoint in the plan's folder if there is one."""
    device = next(module.parameters()).device
    plan.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, log = plan.folder / "checkpoint.pt", plan.folder / "log.jsonl"
    progress = _resume(checkpoint, log, module, optimizers, device)
    started = time.perf_counter() - progress.seconds
    losses: list[float] = []
    while progress.step < plan.schedule.num_steps:
        factor = plan.schedule.factor(progress.step)
        batch = batches[progress.step].to(device)
        loss = loss_of(batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), MAX_GRAD_NORM)
        step(optimizers, factor)
        losses.append(loss.item())
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
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
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
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def _resume(
    path: Path, log: Path, module: nn.Module, optimizers: Optimizers, device: torch.device
) -> _Progress:
    """Load the checkpoint, and drop the log's lines of steps that will be done again."""
    if not path.is_file():
        return _Progress()
    state = torch.load(path, map_location=device, weights_only=True)
    module.load_state_dict(state["module"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    progress = _Progress(*state["progress"])
    if log.is_file():
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(x for x in lines if json.loads(x)["step"] <= progress.step))
    return progress
