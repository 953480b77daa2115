"""Plan which rows fit into some minutes on a GPU, and in which call each row runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.gpu.row import Row

CALL_S = 540.0
"""Seconds of a call: ten minutes minus the time to send and fetch files."""
START_S = 90.0
"""Seconds until a machine has started and has the files."""
NUM_STARTS = 2
"""Number of times that the machine starts."""


class Plan(NamedTuple):
    """The rows that run, and the rows that do not fit."""

    calls: list[list[Row]]
    """The rows of each call."""
    not_run: list[Row]


def make_plan(rows: Sequence[Row], minutes: float, call_s: float = CALL_S) -> Plan:
    """Fill calls of `call_s` seconds with rows, in order, until `minutes` are used.

    A row that does not fit is left out, and so are the rows that read its results. Later rows that
    are shorter may still fit.
    """
    left_s = 60 * minutes - NUM_STARTS * START_S
    plan = Plan([], [])
    left_in_call_s = 0.0
    for row in rows:
        is_possible = row.after not in {left_out.name for left_out in plan.not_run}
        if not is_possible or row.usual_s > min(left_s, call_s):
            plan.not_run.append(row)
            continue
        if row.usual_s > left_in_call_s:  # the next call begins
            plan.calls.append([])
            left_in_call_s = call_s
        plan.calls[-1].append(row)
        left_s -= row.usual_s
        left_in_call_s -= row.usual_s
    return plan


def plan_text(plan: Plan) -> str:
    """The plan as text: the rows of each call with their seconds, and the rows that do not run."""
    lines = []
    total_s = NUM_STARTS * START_S
    for number, rows in enumerate(plan.calls, 1):
        call_s = sum(row.usual_s for row in rows)
        total_s += call_s
        lines.append(f"call {number}: {call_s:.0f} s")
        lines += [f"  {row.usual_s:>5.0f}  {row.name:<24}{row.settles}" for row in rows]
    lines.append(
        f"In all {total_s / 60:.1f} minutes, with {NUM_STARTS} starts of {START_S:.0f} s. "
        "Seconds are estimates for an H100."
    )
    names = ", ".join(row.name for row in plan.not_run)
    return "\n".join([*lines, f"Not run: {names or 'nothing'}"])
