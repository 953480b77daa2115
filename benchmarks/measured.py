"""Measurements of operations; writes each one at once and reports failures.

Knows calls and seconds, not what is computed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

from specbench.errors import reason_of

Work: TypeAlias = Callable[[], object]
Made: TypeAlias = Callable[[], Work]
"""Prepares a call, for example by compiling it, and returns it."""


@dataclass(frozen=True)
class Measured:
    """An operation over `num_rows` rows, computed one way: seconds per layer, or a reason."""

    num_rows: int
    operation: str
    way: str
    weight_bytes: int
    seconds: float | None
    share: float | None = None  # of the bandwidth, if weights are read
    reason: str | None = None

    @property
    def cell(self) -> str:
        """Time and share as a cell of a table."""
        if self.seconds is None:
            return f"{'fails':>30}"
        share = " " * 6 if self.share is None else f"{self.share:6.0%}"
        return f"{self.seconds * 1e6:17.1f} us {share}".rjust(30)

    def to_json(self) -> dict[str, Any]:
        """A line of the file, with times in microseconds."""
        us = None if self.seconds is None else round(self.seconds * 1e6, 3)
        return {
            "rows": self.num_rows, "operation": self.operation, "way": self.way,
            "weight_bytes": self.weight_bytes, "us": us, "share": self.share, "reason": self.reason,
        }  # fmt: skip


class Meter:
    """Measures calls with `seconds`, and writes each measurement to `out`."""

    def __init__(
        self, seconds: Callable[[Work], float], bandwidth: float, out: TextIO | None
    ) -> None:
        self.bandwidth = bandwidth  # bytes per second
        self._seconds = seconds
        self._out = out

    def measure(
        self, num_rows: int, operation: str, way: str, made: Made, *, num_bytes: int,
        num_layers: int,
    ) -> Measured:  # fmt: skip
        """Seconds per layer of the call that `made` prepares; layers have `num_bytes` weights."""
        try:
            seconds = self._seconds(made()) / num_layers
        except Exception as error:  # of a compiler, or of a kernel too large for the device
            done = Measured(num_rows, operation, way, num_bytes, None, reason=reason_of(error))
            print(f"{operation} of {num_rows} rows by {way} fails: {done.reason}", file=sys.stderr)
        else:
            share = num_bytes / seconds / self.bandwidth if num_bytes else None
            done = Measured(num_rows, operation, way, num_bytes, seconds, share)
        if self._out is not None:
            self._out.write(json.dumps(done.to_json()) + "\n")
            self._out.flush()
        return done
