"""Run parts one after the other within a time, and record each when it ends.

Knows parts as commands with limits, not what they measure.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from benchmarks.gpu.ledger import Ended, Ledger, Status
from benchmarks.gpu.parts import Part
from benchmarks.gpu.process import end_leftover, run_limited
from benchmarks.gpu.readers import LOG
from specbench.errors import reason_of
from specbench.machine.environment import git_state

RUNNING = "running.json"
"""File that names the process of the running part, in the folder of all parts."""


def in_order(parts: Sequence[Part], ended: Mapping[str, Ended]) -> list[Part]:
    """Parts that are not finished: first those not tried yet, then failed ones."""
    fresh = [part for part in parts if part.name not in ended]
    failed = [part for part in parts if part.name in ended and ended[part.name].status != "ok"]
    return fresh + failed


def run_parts(
    parts: Sequence[Part],
    ledger: Ledger,
    work: Path,
    *,
    seconds: float,
    settings: Mapping[str, Any],
    say: Callable[[str], object],
    keep: Callable[[], object] = lambda: None,
) -> None:
    """Run the unfinished parts that fit into `seconds`; call `keep` after each.

    If an earlier call was killed and its part still runs, kill that part first.
    """
    began = time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    end_leftover(work / RUNNING)
    missing = in_order(parts, ledger.ended())
    if not missing:
        say("Every part is finished: give another --output to measure again.")
    for part in missing:
        passed = time.monotonic() - began
        left = seconds - passed
        if part.unavailable_reason:
            say(f"{part.name}: skipped, {part.unavailable_reason}")
        elif part.estimate_s > left:
            say(f"{part.name}: postponed, needs {part.estimate_s:.0f} s and {left:.0f} s are left")
        else:
            say(f"{passed:.0f} s: {part.name} (about {part.estimate_s:.0f} s) …")
            ended = run_part(part, work, limit_s=min(part.limit_s, left), settings=settings)
            ledger.append(ended)
            keep()
            why = f", {ended.reason}" if ended.reason else ""
            say(f"{part.name}: {ended.status} in {ended.seconds:.0f} s{why}")


def run_part(part: Part, work: Path, *, limit_s: float, settings: Mapping[str, Any]) -> Ended:
    """Run one part in its own empty folder."""
    folder = work / part.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began, now = time.monotonic(), datetime.now(UTC)
    code = run_limited(
        part.command(folder, limit_s), folder / LOG, limit_s=limit_s, running=work / RUNNING
    )
    seconds = round(time.monotonic() - began, 1)
    status: Status = "timeout" if code is None else "failed" if code else "ok"
    reason = _reason(code, folder / LOG, limit_s)
    try:
        figures = part.read(folder)
    except Exception as error:  # a kill may leave incomplete files
        figures, status = {}, "failed"
        reason = f"its figures cannot be read ({reason_of(error)}); {reason or 'it succeeded'}"
    return Ended(
        part.name, status, seconds, now.isoformat(timespec="seconds"), reason, figures,
        dict(settings), to_builtins(git_state()),
    )  # fmt: skip


def _reason(code: int | None, log: Path, limit_s: float) -> str | None:
    """Reason that a part is not ok, with the last line of its log; None if it is."""
    if code == 0:
        return None
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    if code is None:
        return f"killed at its limit of {limit_s:.0f} s{last}"
    return f"{f'killed by signal {-code}' if code < 0 else f'exit status {code}'}{last}"
