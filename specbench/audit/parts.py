"""Report the progress of an audit: a line for each part, with the time left."""

from collections.abc import Callable
from time import perf_counter

from specbench.measure.progress import time_left


class Parts:
    """Reports each part as it begins: "3 of 10: T=0: pld … (0:04:10 left)"."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        """Take the number of parts to come, and a function that prints a line."""
        self.say = say
        self._total = total
        self._num_begun = 0
        self._began = perf_counter()

    def begin(self, text: str) -> None:
        """Report that a part begins, with the time left for the audit at the pace so far."""
        left = time_left(self._began, self._num_begun, self._total)
        self._num_begun += 1
        self.say(f"{self._num_begun} of {self._total}: {text} …{left and f' ({left})'}")
