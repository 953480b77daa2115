"""The command: select parts, run them within the time, and show the results."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import benchmarks.gpu as package
from benchmarks.gpu.archive import pack, unpack
from benchmarks.gpu.ledger import Ledger
from benchmarks.gpu.parts import MODELS, Part, Settings, all_parts, select
from benchmarks.gpu.schedule import run_parts
from benchmarks.gpu.table import list_parts, render
from specbench.errors import SpecbenchError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; the exit status is 0 if all selected parts are finished."""
    given = _parse(argv)
    settings = Settings(
        given.device, given.dtype, tuple(given.model or MODELS), given.limit,
        given.max_new_tokens, tuple(given.contexts),
    )  # fmt: skip
    try:
        parts = all_parts(settings)
        meant = select(parts, is_plan=given.plan, only=given.only or (), first=given.begin)
    except SpecbenchError as error:
        print(f"Error: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    ledger = Ledger(given.output / "parts.jsonl", settings.describe())
    if given.list:
        print(list_parts(meant, ledger.ended()), end="")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the running part too
    try:
        _run(given, settings, meant, ledger)
    except KeyboardInterrupt:
        print("Interrupted. Repeat the command to continue.", file=sys.stderr)
        return 130
    ended = ledger.ended()
    is_finished = all(part.name in ended and ended[part.name].status == "ok" for part in meant)
    return 0 if is_finished else 1


def _run(
    given: argparse.Namespace, settings: Settings, meant: Sequence[Part], ledger: Ledger
) -> None:
    """Run the parts; rewrite the table and the archive after each one."""
    output: Path = given.output.resolve()  # parts run in the checkout
    work, archive = (given.work or output).resolve(), output / "runs.tar.gz"
    for folder in (output, work):
        folder.mkdir(parents=True, exist_ok=True)
    if given.work:
        unpack(archive, work)

    def keep() -> None:
        (output / "table.txt").write_text(render(meant, ledger.ended()), "utf-8")
        if given.work:
            pack(work, archive)

    run_parts(
        meant, ledger, work, seconds=given.seconds, settings=settings.describe(),
        say=lambda text: print(text, flush=True), keep=keep,
    )  # fmt: skip
    keep()
    print(f"\n{render(meant, ledger.ended())}\n{output / 'table.txt'}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    first = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(package.__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--plan", action="store_true", help="all parts, for scarce GPU time")
    parser.add_argument("--list", action="store_true", help="show the parts without running them")
    parser.add_argument("--only", action="append", help="a part, or a kind of parts")
    parser.add_argument("--from", dest="begin", help="the part to begin with")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time for all parts")
    parser.add_argument("--device", default=first.device)
    parser.add_argument("--dtype", default=first.dtype)
    parser.add_argument("--model", action="append", help=f"shapes (default: {', '.join(MODELS)})")
    parser.add_argument("--limit", type=int, default=first.limit, help="prompts per task")
    parser.add_argument("--max-new-tokens", type=int, default=first.max_new_tokens)
    parser.add_argument("--contexts", type=int, nargs="+", default=first.contexts)
    parser.add_argument("--output", "--out", type=Path, default=Path("results/runs/gpu"))
    parser.add_argument("--work", type=Path, help="where folders go (default: the output's own)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
