"""The training loop, which goes on from a checkpoint to the same losses, and a head's folder.

The official files are at the folder's top, checkpoint and log in `training/` below.

Optimizers are Muon for the weight matrices inside a model, and AdamW for everything else. Muon
(Jordan et al. 2024) applies momentum and then replaces the update by the nearest orthogonal
matrix, found by five Newton-Schulz steps. torch has it since 2.9 only.
"""

import ctypes
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from specbench.errors import NonFiniteError, UserError, reading
from specbench.log.files import LineFile, folder_errors, write_whole
from specbench.training.batches import Batch, BatchSource
from specbench.training.head import Head

_WORK, _SETTINGS = "training", "settings.json"
NO_NUMBERS = "Check the weights and the config.json of the model, and the text it is trained on."
"""The hint for NaN and infinity."""
Loss = Callable[[Batch], Tensor]
Optimizers = Sequence[torch.optim.Optimizer]
LogLine = dict[str, Any]
MAX_GRAD_NORM = 1.0
_KEEP = ((-4, 0), (-1, 2**31 - 1), (-8, 1))  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates, for matrices."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": 0.95, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                momentum = state["momentum"]
                momentum.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalize(param.grad.lerp(momentum, group["momentum"]))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                scale = max(1.0, param.shape[0] / param.shape[1]) ** 0.5
                param.add_(update, alpha=-group["lr"] * scale)


def has_fast_bfloat16(device: str) -> bool:
    """False for an x86 CPU without instructions for bfloat16: float32 is several times faster.

    The engine's `emulates_bfloat16` asks for less: whether torch has no vector instructions for it.
    """
    if not device.startswith("cpu") or platform.machine() not in ("x86_64", "AMD64"):
        return True
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)())


def orthogonalize(matrix: Tensor) -> Tensor:  # [rows, columns] -> [rows, columns]
    """The matrix with all its singular values moved close to one."""
    x = matrix.bfloat16() if has_fast_bfloat16(matrix.device.type) else matrix.float()
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
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))


def optimizers_for(
    module: nn.Module, vocab_weights: Iterable[Tensor], matrix_lr: float, other_lr: float
) -> list[torch.optim.Optimizer]:
    """Muon for the module's matrices except `vocab_weights`; AdamW for these, norms and biases."""
    excluded = {id(weight) for weight in vocab_weights}
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for param in module.parameters():
        (matrices if param.ndim == 2 and id(param) not in excluded else others).append(param)
    rest = [{"params": others, "peak_lr": other_lr}]
    adam = torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0)
    return [Muon([{"params": matrices, "peak_lr": matrix_lr}]), adam]


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a run, and how often it logs, and evaluates and saves, in steps.

    The checkpoint is beside the log.
    """

    schedule: Schedule
    log: LineFile
    log_every: int = 20
    save_every: int = 100
    on_log: Callable[[LogLine], None] = lambda line: None


def keep_memory() -> None:
    """Keep the memory of freed tensors, for later ones: glibc returns that of large ones at once.

    New pages cost more than the work on them. With a vocabulary of 49,000, a step over 1,900
    tokens takes 0.45 of the time on two cores. Elsewhere than on Linux nothing is done.
    """
    if sys.platform == "linux" and (setting := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, value in _KEEP:
            setting(parameter, value)


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
    evaluate: Callable[[], Mapping[str, float]],
) -> None:
    """Train the module in place, from the checkpoint beside the plan's log if there is one.

    Raises:
        NonFiniteError: a loss or gradient is NaN or infinite. The module is as before the step.
        UserError: the checkpoint or the log is damaged, or the disk is full.
    """
    keep_memory()
    checkpoint = plan.log.path.with_name("checkpoint.pt")
    progress = _resume(checkpoint, module, optimizers)
    _cut(plan.log, progress.step)
    started = time.perf_counter() - progress.seconds
    losses: list[float] = []
    while progress.step < plan.schedule.num_steps:
        batch = batches[progress.step].to(next(module.parameters()).device)
        loss = loss_of(batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), MAX_GRAD_NORM)
        losses.append(loss.item())
        if not math.isfinite(losses[-1] + float(norm)):
            told = f"The loss of step {progress.step + 1} is {losses[-1]:g}, its gradient {norm:g}."
            raise NonFiniteError(told, NO_NUMBERS)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * plan.schedule.factor(progress.step)
            optimizer.step()
            optimizer.zero_grad()
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
            state = {
                "module": module.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "progress": (progress.step, progress.tokens, progress.seconds),
            }
            write_saved(checkpoint, state)


def _line(
    progress: _Progress, losses: Sequence[float], norm: Tensor, optimizers: Optimizers
) -> LogLine:
    return {
        "step": progress.step,
        "tokens": progress.tokens,
        "loss": round(sum(losses) / len(losses), 4),
        "grad_norm": round(float(norm), 3),
        "lr": [round(o.param_groups[0]["lr"], 6) for o in optimizers],
        "seconds": round(progress.seconds, 1),
    }


def _resume(path: Path, module: nn.Module, optimizers: Optimizers) -> _Progress:
    """Load the checkpoint, if there is one."""
    if not path.exists():
        return _Progress()
    hint = "Put a copy of the file in its place, or delete it to train from the first step."
    with reading(path, "The training cannot go on", hint):
        with ZipFile(path) as archive:
            if damaged := archive.testzip():  # torch.load does not look at checksums
                raise ValueError(f"{damaged} in it is damaged")
        device = next(module.parameters()).device
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


def write_head(head: Head, folder: Path) -> None:
    """Write the files of the method's official code: config.json and the weights in float16.

    Each file is replaced in one move.

    Raises:
        NonFiniteError: a weight does not fit into float16. The files are as before.
        RunFolderError: a file cannot be written. It is as before.
    """
    fields = head.config()
    vocab = fields.get("vocab_size")
    is_whole = fields.get("draft_vocab_size", vocab) == vocab  # vLLM then refuses maps
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in head.state_dict().items()
        if not (is_whole and name in ("d2t", "t2d"))
    }
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise NonFiniteError(f"The head's {name} has values that no float16 holds.", NO_NUMBERS)
    with folder_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.json", (json.dumps(fields, indent=2) + "\n").encode())
    write_saved(folder / head.file_name, tensors)


def read_head(head: Head, folder: Path) -> None:
    """Give a head the weights in the folder of a trained one.

    Its draft vocabulary stays. Rows of `lm_head` for tokens that are only in it stay as well.

    Raises:
        CheckpointError: the file is missing or damaged, or its head has other shapes.
    """
    path, own = folder / head.file_name, head.state_dict()
    hint = "Give the folder of a head of this method and model."
    with reading(path, "There is no head to start from", hint):
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if "t2d" in stored:
            was, now = stored.pop("t2d"), own["t2d"].cpu()
            del stored["d2t"]
            if "lm_head.weight" in own:
                rows, both = own["lm_head.weight"].cpu(), was & now
                rows[both[now]] = stored["lm_head.weight"].to(rows.dtype)[both[was]]
                stored["lm_head.weight"] = rows
        for name in (n for n, one in stored.items() if one.shape != own[n].shape):
            raise ValueError(f"{name} is {[*stored[name].shape]}, not {[*own[name].shape]}")
        head.load_state_dict({**own, **stored})


def write_saved(path: Path, state: Mapping[str, object]) -> None:
    """Replace a file of torch's in one move.

    Raises:
        RunFolderError: it cannot be written. It is as before.
    """
    content = BytesIO()
    torch.save(state, content)
    with folder_errors(path, "--out"):
        write_whole(path, content.getvalue())


@contextmanager
def locked_log(work: Path) -> Iterator[LineFile]:
    """The log in a work folder, which no other process trains in."""
    with folder_errors(work, "--out"):
        work.mkdir(parents=True, exist_ok=True)
    with closing(LineFile(work / "log.jsonl", "--out")) as log:
        yield log


@contextmanager
def begin_work(
    out: Path, settings: Mapping[str, object], *, is_resumed: bool
) -> Iterator[LineFile]:
    """The log in the work folder below `out`, which is locked, if this training can be there.

    A resumed one may have more steps, and more tokens that the target writes.

    Raises:
        UserError: another process trains there, `out` cannot be written, holds something already,
            or, when resumed, holds no run or one with other settings.
    """
    _check_folder(out, settings, is_resumed=is_resumed)
    with locked_log(out / _WORK) as log:
        _check_folder(out, settings, is_resumed=is_resumed)  # another may have been faster
        yield log


def write_settings(log: LineFile, settings: Mapping[str, object]) -> None:
    """Write the settings beside the log: the training has begun, and may be resumed."""
    path = log.path.with_name(_SETTINGS)
    with folder_errors(path, "--out"):
        write_whole(path, (json.dumps(settings, indent=2) + "\n").encode())


def _check_folder(out: Path, settings: Mapping[str, object], *, is_resumed: bool) -> None:
    if is_resumed:
        _check_same(out / _WORK / _SETTINGS, settings)
    elif any(one.is_file() and one.stat().st_size for one in out.rglob("*")):
        raise UserError(
            f"--out {out} is not empty.",
            "Go on with the run in it by --resume, or give another folder.",
        )


def _check_same(path: Path, settings: Mapping[str, object]) -> None:
    if not path.exists():
        raise UserError(
            f"There is no training to resume: {path} does not exist.",
            "Leave out --resume to start one in a new folder.",
        )
    hint = "Put the file of this training back, or start anew in another folder."
    with reading(path, "The training cannot go on", hint):
        before = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("it is not a JSON object")
    changed = [
        f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
        for name in sorted({**settings, **before})
        if before.get(name) != settings.get(name) and not _may_change(name, before, settings)
    ]
    if changed:
        raise UserError(
            f"The training in {path.parent.parent} has other settings: {'; '.join(changed)}.",
            "Repeat them (--steps and --tokens may grow), or start anew in another folder without "
            "--resume.",
        )


def _may_change(name: str, before: Any, settings: Mapping[str, Any]) -> bool:
    """True for more steps, more tokens to write, the same target in another folder, and a template
    that an older training does not name.
    """
    if name == "model":
        return bool(before.get("target_sha256") == settings["target_sha256"])
    if name == "template":
        return name not in before
    was = before.get(name, 0)
    return name in ("num_steps", "num_tokens") and isinstance(was, int) and settings[name] > was
