"""What a run tells while it goes: the events, and the running totals made from them.

Knows plain events and records. Knows nothing of terminals (`console`) nor of what runs the samples.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from specbench.types import Record


class Progress(Protocol):
    """The events of a run, in order: started, then per sample started and finished, then finished.

    `total` counts the records to come. `message` may come at any time, `finished` more than once.
    """

    def started(self, total: int) -> None: ...
    def sample_started(self, method: str, task: str, sample_id: str) -> None: ...
    def sample_finished(self, record: Record) -> None: ...
    def message(self, text: str) -> None: ...
    def finished(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MethodTotal:
    """What one method has done so far."""

    num_done: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    wall_s: float = 0.0
    num_emitted: int = 0
    num_steps: int = 0

    def plus(self, record: Record) -> "MethodTotal":
        if not record.is_ok:
            return replace(self, num_failed=self.num_failed + 1)
        return MethodTotal(
            self.num_done + 1,
            self.num_failed,
            self.num_tokens + record.num_tokens,
            self.wall_s + (record.wall_s or 0.0),
            self.num_emitted + sum(record.accept_lengths),
            self.num_steps + len(record.accept_lengths),
        )

    @property
    def tokens_per_s(self) -> float | None:
        return self.num_tokens / self.wall_s if self.wall_s > 0 else None

    @property
    def mat(self) -> float | None:
        return self.num_emitted / self.num_steps if self.num_steps else None


@dataclass(slots=True)
class Tally:
    """The running count of a run, over all methods and per method in order of appearance."""

    total: int = 0
    num_finished: int = 0
    methods: dict[str, MethodTotal] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.num_finished += 1
        method = record.key.method
        self.methods[method] = self.methods.get(method, MethodTotal()).plus(record)


def sample_line(record: Record, tally: Tally) -> str:
    """One finished sample: [12/336] gsm8k/3 pld 128 tokens 410 tok/s MAT 1.62."""
    key = record.key
    start = f"[{tally.num_finished}/{tally.total}] {_sample_name(record)} {key.method}"
    if not record.is_ok:
        return f"{start} failed: {first_line(record.error or 'no reason given')}"
    own = MethodTotal().plus(record)
    speed = f" {own.tokens_per_s:.0f} tok/s" if own.tokens_per_s is not None else ""
    mat = f" MAT {own.mat:.2f}" if own.mat is not None else ""
    return f"{start} {record.num_tokens} tokens{speed}{mat}"


def _sample_name(record: Record) -> str:
    key = record.key
    is_named = key.sample_id.startswith(f"{key.task}/")
    parts = [key.sample_id if is_named else f"{key.task}/{key.sample_id}"]
    if key.turn:
        parts.append(f"turn {key.turn + 1}")
    if key.repeat:
        parts.append(f"repeat {key.repeat + 1}")
    if key.temperature:
        parts.append(f"T={key.temperature:g}")
    return first_line(" ".join(parts))


def first_line(text: str, most: int = 160) -> str:
    """The first line of a text without control characters, cut where it is long."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    shown = "".join(sign if sign.isprintable() else " " for sign in line).strip()
    return shown if len(shown) <= most else shown[: most - 1] + "…"
