"""The command of the suite. It runs the rows, lists them, or shows the plan of their calls."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import benchmarks.gpu as package
from benchmarks.gpu.dry import small
from benchmarks.gpu.goals import GOAL_CARD, Judged, cards_of, judge
from benchmarks.gpu.plan import CALL_S, make_plan, plan_text
from benchmarks.gpu.row import Row, read_rows, run_row
from benchmarks.gpu.rows import MODELS, all_rows, select
from specbench.errors import SpecbenchError
from specbench.log.files import LineFile


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows. Returns 0 if all required rows are complete and no bug was found."""
    given = _parse(argv)
    try:
        rows = select(all_rows(given), given.only or ())
    except SpecbenchError as error:
        print(f"Error: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    settings = [given.device, given.dtype, given.limit, given.max_new_tokens]
    if given.dry_run:
        rows, settings = [small(row) for row in rows], ["dry run"]
    output: Path = given.output.resolve()  # the commands run in the checkout
    os.environ.setdefault("TRITON_CACHE_DIR", str(output / "triton"))
    log = output / "rows.jsonl"
    if given.list:
        print(table(rows, read_rows(log, settings)))
        return 0
    if given.plan:
        done = read_rows(log, settings)
        missing = [row for row in rows if not _is_complete(row.name, done)]
        print(plan_text(make_plan(missing, given.plan, min(CALL_S, given.seconds))))
        return 0
    output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, also ends the row
    with closing(LineFile(log)) as file:
        _run(rows, file, settings, given.seconds)
    done = read_rows(log, settings)
    runs = {row.name: output / row.name for row in rows if row.spec}
    judged, cards = [*judge(runs)], cards_of(runs)
    text = f"{table(rows, done)}\n\n{goals(judged, cards)}\n"
    (output / "table.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    open_rows = [row.name for row in rows if row.is_required and not _is_complete(row.name, done)]
    bugs = [f"{result.goal.text} ({result.row})" for result in judged if result.is_bug]
    print(f"Required rows not complete: {', '.join(open_rows) or 'none'}")
    print(f"Bugs: {', '.join(bugs) or 'none'}")
    return 1 if open_rows or bugs else 0


def _run(rows: Sequence[Row], log: LineFile, settings: Sequence[object], seconds: float) -> None:
    """Run the rows that are not complete while the call has time. Their lines go to `log`."""
    output = log.path.parent
    ends = time.monotonic() + seconds
    for row in rows:
        done = read_rows(log.path, settings)
        if _is_complete(row.name, done):
            continue
        left = ends - time.monotonic()
        is_early = row.after != "" and not _is_complete(row.after, done)
        if is_early or left < row.least_s:
            print(f"{row.name} waits for {row.after if is_early else 'the next call'}.")
            continue
        print(f"{row.name}: {row.settles} …", flush=True)
        ended = run_row(row, output / row.name, left)
        log.append(f"{json.dumps({**ended, 'settings': settings})}\n".encode())
        print(
            f"{row.name}: {ended['status']} in {ended['seconds']} s {ended['reason']}", flush=True
        )


def _is_complete(name: str, done: Mapping[str, Mapping[str, Any]]) -> bool:
    return done.get(name, {}).get("status") == "ok"


def table(rows: Sequence[Row], done: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of all rows: usual time, limit and result. A star marks the required rows."""
    lines = [f"{'row':<24}{'usual':>6}{'limit':>6}  {'status':<8}{'took':>7}  purpose, or reason"]
    for row in rows:
        result = done.get(row.name, {"status": "-", "seconds": "", "reason": ""})
        lines.append(
            f"{row.name + '*' * row.is_required:<24}{row.usual_s:>6.0f}{row.limit_s:>6.0f}  "
            f"{result['status']:<8}{result['seconds']:>7}  {result['reason'] or row.settles}"
        )
    return "\n".join(lines)


def goals(judged: Sequence[Judged], cards: Sequence[str]) -> str:
    """A table of the goals, each with its worst figure in each run, and the measured cards."""
    measured = " and ".join(cards) or "no card"
    lines = [
        f"Measured on {measured}. Goals for the {GOAL_CARD} are judged only on that card.",
        f"{'goal':<44}{'row':<24}{'bound':>9}{'worst':>9}  verdict",
    ]
    return "\n".join([*lines, *(result.line for result in judged)])


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(package.__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--list", action="store_true", help="show the rows without running them")
    parser.add_argument("--plan", type=float, metavar="MINUTES", help="list the rows of each call")
    parser.add_argument("--dry-run", action="store_true", help="small rows, on a CPU")
    parser.add_argument("--only", action="append", help="run only this row, or rows of this kind")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit of this call")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", help="default: bfloat16; float32 on a CPU")
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--limit", type=int, default=2, help="prompts per task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--output", "--out", type=Path, help="default: results/runs/gpu")
    given = parser.parse_args(argv)
    folder = "gpu-dry-run" if given.dry_run else "gpu"
    given.output = given.output or Path("results/runs", folder)
    given.model = given.model or [*MODELS]
    given.dtype = given.dtype or ("float32" if given.device == "cpu" else "bfloat16")
    return given
