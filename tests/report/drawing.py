"""Runs drawn at a fixed width, and the golden files they are compared with.

`python -m tests.report.drawing` writes the golden files anew; look at the difference.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from specbench.report.render import print_report, render_markdown
from tests.analysis.run_factory import TITLES, FakeRun, failed, full_run, header, record

GOLDEN = Path(__file__).parent / "golden"


def drawn(run: FakeRun, width: int = 100) -> str:
    """What the terminal shows, without colours and without the blanks at the ends of lines."""
    console = Console(width=width, file=StringIO(), color_system=None, highlight=False)
    print_report(run, console)
    file = console.file
    assert isinstance(file, StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def nine_methods() -> FakeRun:
    return full_run(tuple(TITLES))


def two_temperatures() -> FakeRun:
    """Interrupted, a lossy method, one without a checkpoint, a failure and a hole."""
    methods = ("vanilla", "pld", "lookahead", "medusa")
    run = full_run(methods, ("gsm8k", "alpaca"), (0.0, 1.0), status="interrupted")
    header = dict(run.header)
    header["no_checkpoint"] = ["eagle3"]
    header["methods"] = {
        **header["methods"],
        "medusa": {"title": "Medusa", "is_lossless": False},
        "eagle3": {"title": "EAGLE-3"},
    }
    header["warnings"] = ["The clock of the CPU changed during the run."]
    records = [
        r
        for r in run.records
        if not (r.key.method == "lookahead" and r.key.task == "alpaca" and r.key.temperature)
    ]
    lost = records.index(next(r for r in records if r.key.method == "pld"))
    records[lost] = failed("pld", "0", error="CUDA out of memory")
    other = records.index(next(r for r in records if r.key.method == "lookahead"))
    records[other] = replace(records[other], token_ids=(9,) * records[other].num_tokens)
    return FakeRun(records, header)


def one_sample() -> FakeRun:
    records = [record(decode_s=4.0), record("pld", decode_s=2.0, accept_lengths=[2, 1])]
    return FakeRun(records, header(["vanilla", "pld"], ("gsm8k",)))


def no_baseline() -> FakeRun:
    return full_run(("pld", "sps"), ("gsm8k", "alpaca"), num_samples=5)


def all_failed() -> FakeRun:
    records = [failed("vanilla"), failed("pld"), failed("pld", "b")]
    return FakeRun(records, header(["vanilla", "pld"], ("gsm8k",)))


TERMINAL: Mapping[str, tuple[Callable[[], FakeRun], int]] = {
    "nine_methods_100.txt": (nine_methods, 100),
    "nine_methods_160.txt": (nine_methods, 160),
    "nine_methods_72.txt": (nine_methods, 72),
    "two_temperatures_100.txt": (two_temperatures, 100),
    "one_sample_100.txt": (one_sample, 100),
    "no_baseline_100.txt": (no_baseline, 100),
    "all_failed_100.txt": (all_failed, 100),
}
MARKDOWN: Mapping[str, Callable[[], FakeRun]] = {
    "two_temperatures.md": two_temperatures,
    "one_sample.md": one_sample,
}

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, (run, width) in TERMINAL.items():
        (GOLDEN / name).write_text(drawn(run(), width), encoding="utf-8")
    for name, run in MARKDOWN.items():
        (GOLDEN / name).write_text(render_markdown(run()), encoding="utf-8")
