"""Count the totals of a run so far, and write the run's events as lines of text."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter

from specbench.errors import first_line
from specbench.types import Record


@dataclass(slots=True)
class MethodTotal:
    """The totals of one method so far."""

    num_done: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    wall_s: float = 0.0
    num_emitted: Counter[str] = field(default_factory=Counter)
    """The number of tokens that steps emitted, by task."""
    num_steps: Counter[str] = field(default_factory=Counter)
    """The number of steps by task."""

    def add(self, record: Record) -> None:
        """Add a record. A failed record only counts as failed.

        `accept_lengths` has the number of tokens that each step emitted [steps]. The sum of these
        numbers and their count give the mean accepted tokens per step (`mat`). `wall_s` has the
        seconds of prefill and decoding, or None if they were not measured.
        """
        if not record.is_ok:
            self.num_failed += 1
            return
        self.num_done += 1
        self.num_tokens += record.num_tokens
        self.wall_s += record.wall_s or 0.0
        self.num_emitted[record.key.task] += sum(record.accept_lengths)
        self.num_steps[record.key.task] += len(record.accept_lengths)

    @property
    def tokens_per_s(self) -> float | None:
        return self.num_tokens / self.wall_s if self.wall_s > 0 else None

    @property
    def mat(self) -> float | None:
        """The mean accepted tokens per step, as in tables: the mean of the tasks' means."""
        by_task = [
            self.num_emitted[task] / num_steps
            for task, num_steps in self.num_steps.items()
            if num_steps
        ]
        return sum(by_task) / len(by_task) if by_task else None


@dataclass(slots=True)
class Tally:
    """The totals of a run so far, over all methods and by method, in the order they came up."""

    total: int = 0
    """The number of records to come."""
    num_finished: int = 0
    """The number of finished records."""
    methods: dict[str, MethodTotal] = field(default_factory=dict)
    began: float = field(default_factory=lambda: perf_counter())

    def add(self, record: Record) -> None:
        self.num_finished += 1
        self.methods.setdefault(record.key.method, MethodTotal()).add(record)

    @property
    def time_left(self) -> str:
        """The expected time until the end, such as "0:04:10 left", or an empty text if it is
        unknown.
        """
        return time_left(self.began, self.num_finished, self.total)


def time_left(began: float, num_finished: int, total: int) -> str:
    """The expected time until the end, such as "0:04:10 left", at the pace since `began`.

    `began` is a time of `perf_counter` [seconds]. `num_finished` of `total` records are finished.
    The text is empty before the first record, and if no record is left.
    """
    if not 0 < num_finished < total:
        return ""
    seconds = max(0.0, perf_counter() - began) / num_finished
    return f"{timedelta(seconds=round(seconds * (total - num_finished)))} left"


class Progress:
    """Receives the events of a run: its start and end, and those of each sample.

    `total` counts the records to come. `message` may come at any time, `finished` more than once.
    This base class prints only the messages.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_time_printed = False

    def started(self, total: int) -> None: ...
    def sample_started(self, method: str, task: str, sample_id: str) -> None: ...
    def sample_finished(self, record: Record) -> None: ...
    def finished(self) -> None: ...
    def message(self, text: str) -> None:
        self._say(text)

    def expected(self, seconds: float, source: str) -> None:
        """Print the time that a long run is expected to take.

        Only the first of several estimates is printed. `source` says in words what the estimate was
        made from.
        """
        if seconds > LONG_S and not self._is_time_printed:
            self.message(estimated_time(seconds, source))
        self._is_time_printed = True


class Lines(Progress):
    """Prints a line for each finished record and each message."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self._tally = Tally()

    def started(self, total: int) -> None:
        self._tally = Tally(total)

    def sample_finished(self, record: Record) -> None:
        self._tally.add(record)
        self._show(record)

    def _show(self, record: Record) -> None:
        self._say(sample_line(record, self._tally))


def sample_line(record: Record, tally: Tally) -> str:
    """The line of a finished record, such as:

    [12/336] gsm8k/3 pld 128 tokens 410 tok/s MAT 1.62, 0:04:10 left

    `tally` has the number of finished records and the total. MAT is the mean number of accepted
    tokens per step of this record. Speed, MAT and time left are absent if they are unknown. The
    line of a failed record ends with its error instead.
    """
    key = record.key
    prefix = f"[{tally.num_finished}/{tally.total}] {_sample_name(record)} {key.method}"
    if not record.is_ok:
        return f"{prefix} failed: {first_line(record.error or 'no reason given')}"
    totals = MethodTotal()  # of only this record
    totals.add(record)
    speed_text = f" {totals.tokens_per_s:.0f} tok/s" if totals.tokens_per_s is not None else ""
    mat_text = f" MAT {totals.mat:.2f}" if totals.mat is not None else ""
    left_text = f", {tally.time_left}" if tally.time_left else ""
    return f"{prefix} {record.num_tokens} tokens{speed_text}{mat_text}{left_text}"


def _sample_name(record: Record) -> str:
    """The request of a record in words: "gsm8k/3 turn 2 pass 2 T=0.7".

    The key counts turns and passes (`repeat`) from 0, the text counts them from 1. The first turn,
    the first pass, temperature 0 and the load are left out.
    """
    key = record.key
    # The prompt's id may already begin with the name of its task.
    has_task = key.sample_id.startswith(f"{key.task}/")
    words = [key.sample_id if has_task else f"{key.task}/{key.sample_id}"]
    if key.turn:
        words.append(f"turn {key.turn + 1}")
    if key.repeat:
        words.append(f"pass {key.repeat + 1}")
    if key.temperature:
        words.append(f"T={key.temperature:g}")
    return first_line(" ".join(words))


LONG_S = 60
"""The expected time of a run is printed if it is longer than these seconds."""


_DAY_S = 86_400
_UNITS = {"years": 365.25 * _DAY_S, "days": _DAY_S, "h": 3_600, "min": 60}
"""The seconds of each unit of time, from the longest unit to the shortest."""


def number_text(value: float | None, shown: str, unit: float = 1) -> str:
    """A number in a unit as text, in the format `shown`, or "?" if it is None."""
    return "?" if value is None else shown.format(value / unit)


def time_text(seconds: float | None) -> str:
    """A time in words: under 1 s, 40 s, 2.5 min, 3.0 h, 2.5 days or 1.2 years; "?" if unknown.

    Years and days are used for 2 or more of them, hours and minutes for 1 or more.
    """
    if seconds is None:
        return "?"
    for unit, unit_s in _UNITS.items():
        if seconds >= 2 * unit_s or (seconds >= unit_s and unit_s < _DAY_S):
            return number_text(seconds, f"{{:,.1f}} {unit}", unit_s)
    return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"


def estimated_time(seconds: float, source: str) -> str:
    """A sentence with the time that a run is expected to take, and the source of the estimate."""
    return f"Estimated time: {time_text(seconds)} ({source})."
