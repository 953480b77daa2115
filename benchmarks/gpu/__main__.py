"""The rows of the suite, and the command that runs them."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import benchmarks.gpu as package
from benchmarks.gpu.goals import judge
from specbench.errors import SpecbenchError, unknown_name
from specbench.measure.progress import Messages
from specbench.measure.spec import RunSpec
from specbench.measure.suite.runs import Order, complete_apart, run_tried
from specbench.models.cards import find_model

MODELS = ("vicuna-13b", "llama3-8b", "vicuna-7b")
"""Models of the suite; the first one is measured most closely."""
TESTS = ("tests/engine", "tests/methods/test_heads.py", "tests/benchmarks/test_on_a_gpu.py")
"""Tests that run on a GPU."""
SELECTED = "(gpu or kernels) and not (compile or native)"
"""Those of them that need one, and those of kernels that use it."""
TASK = ("gsm8k",)
"""The task of the runs that only explain others."""
LEAST_S = 20.0
"""No row begins with less time left."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run if it has a spec, else a command, with its folder in place of "{}"."""

    name: str
    settles: str
    limit_s: float
    spec: RunSpec | None = None
    command: tuple[str, ...] = ()


def all_rows(given: argparse.Namespace) -> list[Row]:
    """Every row, the most important first."""
    where = ("--device", given.device, "--dtype", given.dtype)
    first, gpu = given.model[0], given.device != "cpu"
    rows = [
        Row("doctor", "trees and the baseline, on tiny", 180, command=(
            "specbench", "doctor", "--device", given.device, "--offline",
        )),
        Row("checks", "captures, attention's plans, products, overlapping launches", 300, command=(
            "benchmarks.gpu.checks", *where, "--model", first, "--out", "{}/checks.jsonl",
            "--max-new-tokens", str(given.max_new_tokens), "--prompts", "6" if gpu else "1",
        )),
        Row("tests", "graphs and kernels", 300, command=(
            "pytest", "-v", "-p", "no:cacheprovider",
            *(("-k", SELECTED) if gpu else ("-m", "gpu")), *TESTS,
        )),
    ]  # fmt: skip
    for model in given.model:
        name, card = Path(model).name, find_model(model)
        spec = RunSpec(
            model=model, limit=given.limit, max_new_tokens=given.max_new_tokens,
            device=given.device, dtype=given.dtype, repeats=1,
            weights="hub" if card.is_embedded else "stand-in",
        )  # fmt: skip
        rows.append(Row(f"run-{name}", "every method against its limit", 450, spec))
        rows += _explaining(name, spec, is_first=model == first)
        if card.shape is not None:
            rows.append(Row(f"layers-{name}", "speed of each operation of a layer", 150, command=(
                "benchmarks.layer_time", *where, "--model", model, "--out", "{}/layers.jsonl",
            )))  # fmt: skip
        contexts = ["64"] if card.is_embedded else [str(length) for length in given.contexts]
        rows.append(Row(f"contexts-{name}", "steps far into a long context", 200, command=(
            "benchmarks.gpu.contexts", *where, "--model", model, "--out", "{}/contexts.jsonl",
            "--contexts", *contexts,
        )))  # fmt: skip
    runs = tuple(f"{{}}/../run-{Path(model).name}" for model in given.model)
    report = ("specbench", "report", *runs, "--out", "{}/report")
    return [*rows, Row("report", "the tables and plots of all runs", 180, command=report)]


def _explaining(name: str, spec: RunSpec, *, is_first: bool) -> list[Row]:
    """Rows to compare the run of a model with: its phases, eager steps, tokens, temperature 1."""
    phases, eager = replace(spec, phases=True), replace(spec, execution="eager")
    rows = [
        Row(f"phases-{name}", "the host's part of a step", 200, replace(phases, tasks=TASK)),
        Row(f"eager-{name}", "the same without graphs", 300, replace(eager, tasks=TASK)),
        Row(f"audit-{name}", "tokens, against vanilla's", 200, command=(
            "specbench", "audit", f"{{}}/../run-{name}",
        )),
        Row(f"compare-{name}", "graphs against eager", 100, command=(
            "specbench", "compare", f"{{}}/../run-{name}", f"{{}}/../eager-{name}",
        )),
    ]  # fmt: skip
    if is_first:
        sampled = replace(spec, temperatures=(1.0,))
        rows.append(Row(f"sampling-{name}", "every method at T = 1", 400, sampled))
    return rows


def select(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """The rows with these names, or of these kinds; all if none is given.

    Raises:
        UserError: no row has such a name.
    """
    for name in only:
        if not any(name in (row.name, row.name.partition("-")[0]) for row in rows):
            raise unknown_name("row", name, [row.name for row in rows])
    return [r for r in rows if not only or {r.name, r.name.partition("-")[0]} & {*only}]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows; the exit status is 0 if all selected rows are finished."""
    given = _parse(argv)
    try:
        rows = select(all_rows(given), given.only or ())
    except SpecbenchError as error:
        print(f"Error: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    output: Path = given.output.resolve()  # the commands run in the checkout
    log = output / "rows.jsonl"
    settings = [given.device, given.dtype, given.limit, given.max_new_tokens]
    if given.list:
        print(table(rows, read_rows(log, settings)))
        return 0
    began = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    for row in rows:
        left = given.seconds - (time.monotonic() - began)
        if read_rows(log, settings).get(row.name, {}).get("status") == "ok":
            continue
        if left < LEAST_S:
            print(f"{row.name} and later rows wait for the next call.")
            break
        print(f"{row.name}: {row.settles} …", flush=True)
        ended = run_row(row, output / row.name, min(row.limit_s, left))
        with log.open("a", encoding="utf-8") as file:
            print(json.dumps({**ended, "settings": settings}), file=file, flush=True)
        print(
            f"{row.name}: {ended['status']} in {ended['seconds']} s {ended['reason']}", flush=True
        )
    done = read_rows(log, settings)
    text = f"{table(rows, done)}\n\n{goals(output, rows)}\n"
    (output / "table.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    return 0 if all(done.get(row.name, {}).get("status") == "ok" for row in rows) else 1


def run_row(row: Row, folder: Path, limit_s: float) -> dict[str, Any]:
    """Run one row, at most twice. Returns its line for rows.jsonl."""
    began, status, reason = time.monotonic(), "ok", ""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if row.spec is not None:
            order = Order(row.spec, ("model", "limit"), str(folder), is_offline=True)
            complete_apart(order, Messages(print), limit_s)
        else:
            words = [word.replace("{}", str(folder)) for word in row.command]
            with (folder / "log.txt").open("w", encoding="utf-8") as out:
                run_tried(
                    [sys.executable, "-m", *words],
                    lambda line: print(line, file=out, flush=True),
                    limit_s=limit_s,
                )
    except SpecbenchError as error:
        status, reason = "failed", error.message
    seconds = round(time.monotonic() - began, 1)
    return {"row": row.name, "status": status, "seconds": seconds, "reason": reason}


def read_rows(log: Path, settings: Sequence[object]) -> dict[str, Mapping[str, Any]]:
    """The last line of each row that ended with these settings."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines]
    return {one["row"]: one for one in found if one["settings"] == [*settings]}


def table(rows: Sequence[Row], done: Mapping[str, Mapping[str, Any]]) -> str:
    """Every row with its limit and its result."""
    lines = [f"{'row':<22}{'limit':>6}  {'status':<8}{'took':>7}  purpose, or reason if not ok"]
    for row in rows:
        one = done.get(row.name, {"status": "-", "seconds": "", "reason": ""})
        lines.append(
            f"{row.name:<22}{row.limit_s:>6.0f}  {one['status']:<8}{one['seconds']:>7}  "
            f"{one['reason'] or row.settles}"
        )
    return "\n".join(lines)


def goals(output: Path, rows: Sequence[Row]) -> str:
    """Every goal with the worst figure of the runs that it is about."""
    lines = [f"{'goal':<42}{'row':<22}{'bound':>9}{'worst':>9}  verdict"]
    lines += [one.line for one in judge({r.name: output / r.name for r in rows if r.spec})]
    return "\n".join(lines)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(package.__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--list", action="store_true", help="show the rows without running them")
    parser.add_argument("--only", action="append", help="a row, or a kind of rows")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time for this call")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", help="default: bfloat16, on a CPU float32")
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--limit", type=int, default=2, help="prompts per task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--output", "--out", type=Path, default=Path("results/runs/gpu"))
    given = parser.parse_args(argv)
    given.model = given.model or [*MODELS]
    given.dtype = given.dtype or ("float32" if given.device == "cpu" else "bfloat16")
    return given


if __name__ == "__main__":
    sys.exit(main())
