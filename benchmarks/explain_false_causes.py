"""Count how often `compare --explain` claims a factor between equal runs.

    python -m benchmarks.explain_false_causes FOLDER [NUM_RUNS]

It makes runs of one command on `tiny` in FOLDER, one after the other. It explains each run against
the next one, and the last against the first. A claim about any factor of any method is false. Then
pairs of runs that differ in one thing are explained: the length of drafts, the chat template, a
program that keeps the processor busy. The table has the result of each explanation. Existing runs
are not made again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.false_alarms import busy_machine
from specbench.judge.explanation import Explanation, explain_runs
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run

NUM_RUNS = 20
COMMAND = (
    "run --model tiny --dataset gsm8k,alpaca,humaneval --limit 6 --repeats 3 --max-new-tokens 24 "
    "--settings paper --threads 1 --offline --quiet"
)
METHODS = "pld,sps"
PAIRS: Mapping[str, tuple[str, str]] = {
    "depth": ("--method sps:num_tokens=2", "--method sps:num_tokens=8"),
    "template": ("--method medusa,eagle3 --template none", "--method medusa,eagle3"),
    "neighbour": ("--method sps --threads 2", "--method sps --threads 2"),
}
"""Arguments of two runs that differ in one thing. For "neighbour", a busy program runs beside the
first.
"""


def run_of(path: Path, arguments: str, *, is_busy: bool = False) -> Run:
    """The run in a folder, which is made if it is not there."""
    if not (path / HEADER).is_file() or read_run(path).header.status != "complete":
        text = f"{COMMAND} {arguments} --output {path}"
        with busy_machine(is_busy):
            command = [sys.executable, "-m", "specbench", *text.split()]
            subprocess.run(command, check=True, capture_output=True)
    return read_run(path)


def claims(explanations: Sequence[Explanation]) -> list[str]:
    """The factors that are claimed, with the settings that can have moved them."""
    return [
        f"{explanation.subject.label}: {factor.name} x{factor.effect.value:.3f} by "
        f"{_cause(explanation, factor.name)}"
        for explanation in explanations
        for factor in explanation.factors
        if explanation.is_claimed(factor.name)
    ]


def _cause(explanation: Explanation, factor: str) -> str:
    """The settings that can have moved a factor, else "no setting" or "other factors"."""
    if causes := explanation.causes(factor):
        return "; ".join(causes)
    return "no setting" if explanation.is_without_cause(factor) else "other factors"


def main(arguments: Sequence[str]) -> None:
    """Print a line for each false claim, their number, and the explanations of differing runs."""
    folder = Path(arguments[0])
    num_runs = int(arguments[1]) if len(arguments) > 1 else NUM_RUNS
    runs = [
        run_of(folder / f"equal-{number:02}", f"--method {METHODS}") for number in range(num_runs)
    ]
    num_false = 0
    for number, run in enumerate(runs):
        claimed = claims(explain_runs(run, runs[(number + 1) % num_runs]))
        num_false += bool(claimed)
        for claim in claimed:
            print(f"pair {number}: {claim}")
    print(f"{num_false} of {num_runs} pairs of equal runs have a claimed factor")
    for name, (arguments_a, arguments_b) in PAIRS.items():
        subject = run_of(folder / f"{name}-a", arguments_a, is_busy=name == "neighbour")
        reference = run_of(folder / f"{name}-b", arguments_b)
        for claim in claims(explain_runs(subject, reference)) or ["nothing is claimed"]:
            print(f"{name}: {claim}")


if __name__ == "__main__":
    main(sys.argv[1:])
