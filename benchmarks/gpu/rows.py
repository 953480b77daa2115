"""The rows of the suite, and the order in which they are run."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

import benchmarks.gpu as package
from benchmarks.gpu.goals import Judged, judge
from specbench.errors import SpecbenchError, unknown_name
from specbench.log.options import options
from specbench.measure.progress import Progress
from specbench.measure.spec import RunSpec
from specbench.measure.suite.apart import Order, complete_apart
from specbench.measure.suite.process import run_tried
from specbench.models.cards import find_model

MODELS = ("vicuna-13b", "llama3-8b", "vicuna-7b")
"""Models of the suite; the first one is measured most closely, and recorded."""
TESTS = {
    "tests-kernels": ("tests/engine/kernels",),
    "tests-steps": (
        "tests/engine", "tests/methods/test_heads.py", "tests/benchmarks/test_on_a_gpu.py",
        "--ignore=tests/engine/kernels",
    ),
}  # fmt: skip
"""Tests that run on a GPU: captures, and races of overlapped launches."""
SELECTED = "(gpu or kernels) and not (compile or native)"
"""Expression of pytest's -k for the tests that need a GPU and the tests of kernels that use it."""
TASK = ("gsm8k",)
"""The task of the runs that only explain others."""
COLD = 3
"""Time limit of a row / its usual time: enough for an empty kernel cache and a model to make."""
LEAST_S = 90.0
"""No run begins with less time left: it could not load its model."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run if it has a spec, else a command, in which "{}" stands for the row's folder.

    `settles` is its purpose. It usually takes `usual_s` seconds, and a command begins only if the
    call has that much time left.
    """

    name: str
    settles: str
    usual_s: float
    spec: RunSpec | None = None
    command: tuple[str, ...] = ()
    is_required: bool = True

    @property
    def limit_s(self) -> float:
        return COLD * self.usual_s


def all_rows(given: argparse.Namespace) -> list[Row]:
    """Every row, the most important first."""
    is_gpu = given.device != "cpu"
    chosen = ("-k", SELECTED) if is_gpu else ("-m", "gpu")
    tiny = RunSpec(
        "tiny", limit=given.limit, max_new_tokens=given.max_new_tokens, device=given.device,
        dtype="float32", temperatures=(0.0, 1.0), repeats=1,
    )  # fmt: skip
    models = [word for model in given.model for word in ("--model", model)]
    rows = [
        Row("kernels", "all kernels, compiled in parallel", 90, is_required=False, command=(
            "benchmarks.gpu.kernels", "--dtype", given.dtype, *models,
        )),
        Row("doctor", "the baseline, and each kind of kernels, on tiny", 60, command=(
            "specbench", "doctor", "--device", given.device, "--offline",
        )),
        *([] if "tiny" in given.model else _checked("tiny", tiny, "captures in float32", 120)),
        *(
            Row(name, "captures, races, kernels", 180, command=(
                "pytest", "-v", "-p", "no:cacheprovider", *chosen, *files,
            ))
            for name, files in TESTS.items()
        ),
    ]  # fmt: skip
    first, *others = (_of_model(model, given) for model in given.model)
    rows += [*first, *(replace(row, is_required=False) for of_model in others for row in of_model)]
    return rows if is_gpu else rows[1:]


def _checked(name: str, spec: RunSpec, settles: str, usual_s: float) -> list[Row]:
    """A run of every method, and the audit of its tokens."""
    audit = ("specbench", "audit", f"{{}}/../run-{name}")
    return [
        Row(f"run-{name}", settles, usual_s, spec),
        Row(f"audit-{name}", "its tokens, against vanilla's", 100, command=audit),
    ]


def _of_model(model: str, given: argparse.Namespace) -> list[Row]:
    """The rows of one model. Only the first model has all kinds of rows."""
    name, card = Path(model).name, find_model(model)
    spec = RunSpec(
        model, limit=given.limit, max_new_tokens=given.max_new_tokens, device=given.device,
        dtype=given.dtype, repeats=1, weights="hub" if card.is_embedded else "stand-in",
    )  # fmt: skip
    where = ("--device", given.device, "--dtype", given.dtype, "--model", model)
    rows = _checked(name, spec, "every method against its limit", 200)
    if model == given.model[0]:
        rows += _explaining(name, spec)
    if card.shape is not None:
        rows.append(Row(f"layers-{name}", "speed of each operation of a layer", 60, command=(
            "benchmarks.layer_time", *where, "--out", "{}/layers.jsonl",
        ), is_required=False))  # fmt: skip
    contexts = ["64"] if card.is_embedded else map(str, given.contexts)
    rows.append(Row(f"contexts-{name}", "steps far into a long context", 90, command=(
        "benchmarks.gpu.contexts", *where, "--out", "{}/contexts.jsonl", "--contexts", *contexts,
    ), is_required=False))  # fmt: skip
    return rows


def _explaining(name: str, spec: RunSpec) -> list[Row]:
    """The recorded run of the first model, and runs that explain its speeds."""
    recorded = structs.replace(spec, limit=None, repeats=3)
    one_task = structs.replace(spec, tasks=TASK)
    explaining: dict[str, tuple[str, dict[str, Any]]] = {
        "phases": ("the host's part of a step", {"phases": True}),
        "torch": ("torch's operations, captured", {"kernels": "torch"}),
        "plain": ("kernels without overlap", {"kernels": "plain"}),
        "eager": ("steps without graphs", {"execution": "eager"}),
    }
    runs = [f"{{}}/../{kind}-{name}" for kind in ("run", "torch", "plain", "eager")]
    sampled = structs.replace(spec, temperatures=(1.0,))
    return [
        Row(f"record-{name}", "a run worth recording: all prompts, three passes", 500, recorded),
        Row("report", "its tables and plots", 60, command=(
            "specbench", "report", f"{{}}/../record-{name}", "--out", "{}/report",
        )),
        *(
            Row(f"{kind}-{name}", text, 100, structs.replace(one_task, **more), is_required=False)
            for kind, (text, more) in explaining.items()
        ),
        Row(f"compare-{name}", "kinds of kernels side by side", 30, command=(
            "specbench", "compare", *runs,
        ), is_required=False),
        Row(f"sampling-{name}", "every method at T = 1", 200, sampled, is_required=False),
    ]  # fmt: skip


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
    """Run the rows. Returns 0 if the required ones are complete and no bug was found."""
    given = _parse(argv)
    try:
        rows = select(all_rows(given), given.only or ())
    except SpecbenchError as error:
        print(f"Error: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    output: Path = given.output.resolve()  # the commands run in the checkout
    os.environ.setdefault("TRITON_CACHE_DIR", str(output / "triton"))
    log = output / "rows.jsonl"
    settings = [given.device, given.dtype, given.limit, given.max_new_tokens]
    if given.list:
        print(table(rows, read_rows(log, settings)))
        return 0
    ends = time.monotonic() + given.seconds
    output.mkdir(parents=True, exist_ok=True)
    for row in rows:
        if read_rows(log, settings).get(row.name, {}).get("status") == "ok":
            continue
        left = ends - time.monotonic()
        if left < (min(row.usual_s, LEAST_S) if row.spec else row.usual_s):
            print(f"{row.name} waits for the next call.")
            continue
        print(f"{row.name}: {row.settles} …", flush=True)
        ended = run_row(row, output / row.name, left)
        with log.open("a", encoding="utf-8") as file:
            print(json.dumps({**ended, "settings": settings}), file=file, flush=True)
        print(
            f"{row.name}: {ended['status']} in {ended['seconds']} s {ended['reason']}", flush=True
        )
    done = read_rows(log, settings)
    judged = [*judge({row.name: output / row.name for row in rows if row.spec})]
    text = f"{table(rows, done)}\n\n{goals(judged)}\n"
    (output / "table.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    open_rows = [
        row.name for row in rows if row.is_required and done.get(row.name, {}).get("status") != "ok"
    ]
    bugs = [f"{result.goal.text} ({result.row})" for result in judged if result.is_bug]
    print(f"Required rows not complete: {', '.join(open_rows) or 'none'}")
    print(f"Bugs: {', '.join(bugs) or 'none'}")
    return 1 if open_rows or bugs else 0


def run_row(row: Row, folder: Path, left_s: float) -> dict[str, Any]:
    """Run one row, at most twice and in the time left. Returns its line for rows.jsonl."""
    began, status, reason = time.monotonic(), "ok", ""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if row.spec is not None:
            changed = [o for o in options(RunSpec) if getattr(row.spec, o.name) != o.default]
            given = tuple(option.parameter for option in changed)
            order = Order(row.spec, given, str(folder), is_offline=True)
            complete_apart(order, Progress(print), row.limit_s, left_s)
        else:
            words = [word.replace("{}", str(folder)) for word in row.command]
            with (folder / "log.txt").open("w", encoding="utf-8") as out:
                run_tried(
                    [sys.executable, "-m", *words],
                    lambda line: print(line, file=out, flush=True),
                    timeout_s=row.limit_s,
                    total_s=left_s,
                    only_killed=True,
                )
    except SpecbenchError as error:
        is_late = time.monotonic() - began >= left_s
        status, reason = "stopped" if is_late else "failed", error.message
    seconds = round(time.monotonic() - began, 1)
    return {"row": row.name, "status": status, "seconds": seconds, "reason": reason}


def read_rows(log: Path, settings: Sequence[object]) -> dict[str, Mapping[str, Any]]:
    """The last line of each row that ended with these settings."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    ended = [json.loads(line) for line in lines]
    return {row["row"]: row for row in ended if row["settings"] == [*settings]}


def table(rows: Sequence[Row], done: Mapping[str, Mapping[str, Any]]) -> str:
    """Every row with its usual time, its limit and its result; a star marks required ones."""
    lines = [f"{'row':<22}{'usual':>6}{'limit':>6}  {'status':<8}{'took':>7}  purpose, or reason"]
    for row in rows:
        result = done.get(row.name, {"status": "-", "seconds": "", "reason": ""})
        lines.append(
            f"{row.name + '*' * row.is_required:<22}{row.usual_s:>6.0f}{row.limit_s:>6.0f}  "
            f"{result['status']:<8}{result['seconds']:>7}  {result['reason'] or row.settles}"
        )
    return "\n".join(lines)


def goals(judged: Sequence[Judged]) -> str:
    """The lines of a table: every goal with its worst figure in each run."""
    lines = [f"{'goal':<44}{'row':<22}{'bound':>9}{'worst':>9}  verdict"]
    return "\n".join([*lines, *(result.line for result in judged)])


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
