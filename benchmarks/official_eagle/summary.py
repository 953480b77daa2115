"""Numbers of both sides from their samples, and their agreement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks.official_eagle.turns import METHODS, SIDES, Measured
from specbench.analysis.records import make_table
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Estimate
from specbench.judge.compare.pairs import Pair, pair_cell, pair_requests
from specbench.types import Record

Lengths: TypeAlias = tuple[int, ...]
"""Tokens emitted by each step."""


def summarize(measured: Sequence[Measured], method: str) -> dict[str, Any]:
    """A method's numbers on both sides over the same samples, and the sides' agreement."""
    records = {side: [one.record for one in measured if one.side == side] for side in SIDES}
    tables = {side: make_table(found) for side, found in records.items()}
    shared = pair_requests(tables["specbench"].frame, tables["official"].frame, {method: method})
    cell = pair_cell(shared, Draws(Bootstrap(), f"official {method}"))
    pairs = [
        (tables["official"].records[theirs], tables["specbench"].records[own])
        for own, theirs in shared[["row", "row_reference"]].itertuples(index=False)
    ]
    steps = [shared_steps(*pair) for pair in pairs]
    return {
        "samples": len(pairs),
        "same_tokens": sum(is_same(a.token_ids, b.token_ids) for a, b in pairs),
        "same_steps": sum(a == b for a, b in steps),
        "tokens_per_s": _both(cell.tokens_per_s),
        "speedup": _both(cell.speedup),
        "mat": dict(zip(SIDES, map(_mean, zip(*steps, strict=True)), strict=True)),
        "step_ms": dict(zip(SIDES, map(_step_ms, zip(*pairs, strict=True)), strict=True)),
    }


def is_same(official: Sequence[int], ours: Sequence[int]) -> bool:
    """True if both agree up to the shorter one: the sides have different stop rules."""
    shared = min(len(official), len(ours))
    return tuple(official[:shared]) == tuple(ours[:shared])


def shared_steps(official: Record, ours: Record) -> tuple[Lengths, Lengths]:
    """Accept lengths of the steps that neither side's stop rule has cut."""
    shared = max(min(len(official.accept_lengths), len(ours.accept_lengths)) - 1, 0)
    return official.accept_lengths[:shared], ours.accept_lengths[:shared]


def _mean(steps: Iterable[Lengths]) -> float | None:
    lengths = [length for one in steps for length in one]
    return sum(lengths) / len(lengths) if lengths else None


def _step_ms(records: Sequence[Record]) -> float | None:
    """Milliseconds per step, including prefills."""
    counted = [record for record in records if record.accept_lengths]
    seconds = sum(record.wall_s or 0.0 for record in counted)
    return 1e3 * seconds / sum(len(r.accept_lengths) for r in counted) if counted else None


def _both(pair: Pair) -> dict[str, Any]:
    """A number of both sides, and the ratio of ours to theirs."""
    values = {"official": pair.reference, "specbench": pair.subject, "ratio": pair.ratio}
    found: dict[str, Any] = {
        name: value.value if isinstance(value, Estimate) else None for name, value in values.items()
    }
    interval = pair.ratio.interval if isinstance(pair.ratio, Estimate) else None
    return {**found, "interval": interval and [interval.low, interval.high]}


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print the table and its conclusion."""
    official, ours = found["official"], found["specbench"]
    commit = (official["commit"] or official["sha256"])[:7]
    commit += " with changes" if official["is_changed"] else ""
    modes = {mode["mode"] for mode in ours["execution"].values()}
    console.print(f"\n{found['model']}, {found['dtype']}, {found['device']}", style="bold")
    for name, side, how in (
        ("official", official, commit),
        ("specbench", ours, ", ".join(sorted(modes))),
    ):
        console.print(
            f"{name:10}{how}; transformers {side['transformers']}, torch {side['torch']}, "
            f"Python {side['python']}"
        )
    table = Table("", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in METHODS.values():
        for side in SIDES:
            table.add_column(f"{title}\n{side}", justify="right")
    rows = {
        "tokens/s": ("tokens_per_s", "{:.1f}"), "over own vanilla": ("speedup", "{:.2f}x"),
        "mean accepted": ("mat", "{:.2f}"), "ms per step": ("step_ms", "{:.2f}"),
    }  # fmt: skip
    for name, (field, form) in rows.items():
        numbers = [found["summary"][method][field][side] for method in METHODS for side in SIDES]
        table.add_row(name, *("-" if n is None else form.format(n) for n in numbers))
    console.print()
    console.print(table)
    console.print()
    for method, title in METHODS.items():
        row = found["summary"][method]
        speed = row["tokens_per_s"]
        low_high = speed["interval"]
        sure = f" (95 % interval {low_high[0]:.2f} to {low_high[1]:.2f})" if low_high else ""
        console.print(
            f"{title} is {speed['ratio']:.2f}x as fast as the official code's{sure}; the same "
            f"tokens on {row['same_tokens']} and the same steps on {row['same_steps']} of "
            f"{row['samples']} samples."
        )
