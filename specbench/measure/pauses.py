"""Completions that a pause of the machine made slow: told by the clocks, or by their like.

Knows completions and their keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from statistics import median

from specbench.types import Completion, RecordKey

FACTOR = 5.0
LEAST_EXCESS_S = 0.1
_LEAST_LIKE = 3
"""A prefill or an average step contains a pause if it takes more than FACTOR times the median of at
least _LEAST_LIKE similar ones, and the completion lost more than LEAST_EXCESS_S by it. Machines are
noisy: smaller delays are reported, but the completion is not repeated."""


class PauseCheck:
    """Judges completions one after the other.

    `paused_s` returns the seconds of pauses since its last call; see `machine.pauses`. The prefill
    of a request is like those of the other methods, a decode step like others of its cell.
    """

    def __init__(self, paused_s: Callable[[], float] = lambda: 0.0) -> None:
        self._paused_s = paused_s
        self._like: dict[Hashable, list[float]] = defaultdict(list)

    def start(self) -> None:
        """A completion begins: earlier pauses are not its own."""
        self._paused_s()

    def was_paused(self, key: RecordKey, done: Completion) -> bool:
        """True if the machine paused during this completion. If not, its times are remembered."""
        num_steps = len(done.steps)
        cell = (key.method, key.temperature, key.task, key.turn)
        times: list[tuple[Hashable, float, int]] = [(key.request, done.prefill_s, 1)]
        if num_steps:
            times.append((cell, done.decode_s / num_steps, num_steps))
        if self._paused_s() or any(self._is_slow(*one) for one in times):
            return True
        for like, seconds, _ in times:
            self._like[like].append(seconds)
        return False

    def _is_slow(self, like: Hashable, seconds: float, count: int) -> bool:
        if len(others := self._like[like]) < _LEAST_LIKE:
            return False
        usual = median(others)
        return seconds > FACTOR * usual and (seconds - usual) * count > LEAST_EXCESS_S
