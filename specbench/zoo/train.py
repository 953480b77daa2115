"""The training loop of every model and head of the zoo.

The loop knows batches, a loss function and optimizers. It knows neither what is trained nor how
the text was made. A checkpoint makes a stopped run go on to the same losses.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from specbench.zoo.batches import Batch, BatchSource
from specbench.zoo.optim import Optimizers, Schedule

Loss = Callable[[Batch], Tensor]
Evaluation = Callable[[], Mapping[str, float]]
Line = Mapping[str, object]
"""A line of the log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to train and when to say, save and check something, in steps."""

    schedule: Schedule
    folder: Path
    log_every: int = 20
    evaluate_every: int = 250
    save_every: int = 250
    clip: float = 1.0
    notify: Callable[[Line], None] | None = None
    """Is given every line of the log."""


def train(
    module: nn.Module,
    loss_of: Loss,
    batches: BatchSource,
    optimizers: Optimizers,
    plan: Plan,
    evaluate: Evaluation | None = None,
) -> None:
    """Train the module in place, from the checkpoint in the plan's folder if there is one."""
    device = next(module.parameters()).device
    plan.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, log = plan.folder / "checkpoint.pt", plan.folder / "log.jsonl"
    progress = _Progress()
    if checkpoint.is_file():
        progress = _resume(checkpoint, module, optimizers, device)
        _forget_after(log, progress.step)
    started = time.perf_counter() - progress.seconds
    recent: list[float] = []
    while progress.step < plan.schedule.num_steps:
        factor = plan.schedule.factor(progress.step)
        batch = batches[progress.step].to(device)
        loss = loss_of(batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), plan.clip)
        optimizers.step(factor)
        recent.append(loss.item())
        progress.step += 1
        progress.tokens += batch.num_tokens
        progress.seconds = time.perf_counter() - started
        is_last = progress.step == plan.schedule.num_steps
        if is_last or progress.step % plan.log_every == 0:
            line: dict[str, object] = {
                "step": progress.step,
                "tokens": progress.tokens,
                "loss": round(sum(recent) / len(recent), 4),
                "grad_norm": round(float(norm), 3),
                "lr": [round(peak * factor, 6) for peak in optimizers.peaks],
                "seconds": round(progress.seconds, 1),
            }
            recent.clear()
            if evaluate and (is_last or progress.step % plan.evaluate_every == 0):
                module.eval()
                line["held_out"] = {name: round(value, 4) for name, value in evaluate().items()}
                module.train()
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            if plan.notify:
                plan.notify(line)
        if is_last or progress.step % plan.save_every == 0:
            _save(checkpoint, module, optimizers, progress)


@dataclass(slots=True)
class _Progress:
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def _save(path: Path, module: nn.Module, optimizers: Optimizers, progress: _Progress) -> None:
    state = {
        "module": module.state_dict(),
        "optimizers": optimizers.state_dict(),
        "progress": (progress.step, progress.tokens, progress.seconds),
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def _resume(
    path: Path, module: nn.Module, optimizers: Optimizers, device: torch.device
) -> _Progress:
    state = torch.load(path, map_location=device, weights_only=True)
    module.load_state_dict(state["module"])
    optimizers.load_state_dict(state["optimizers"])
    return _Progress(*state["progress"])


def _forget_after(log: Path, step: int) -> None:
    """Drop the log's lines of steps that will be done again."""
    if log.is_file():
        lines = [text for text in log.read_text().splitlines() if json.loads(text)["step"] <= step]
        log.write_text("".join(text + "\n" for text in lines))
