"""Count how often `compare --explain` claims a factor between equal runs.

    python -m benchmarks.explain_false_causes FOLDER [NUM_RUNS]

It makes runs of one command on `tiny` in FOLDER, one after the other. It explains each run against
the next one, and the last run against the first. A claim about any factor of any method is false.
Then it explains pairs of runs that differ in one thing: the length of drafts, the chat template, or
a program that keeps the processor busy. The output has the result of each explanation. Existing
runs are not made again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.made_runs import run_of
from specbench.judge.explanation import Explanation, explain_runs

NUM_RUNS = 20
ARGUMENTS = (
    "--model tiny --dataset gsm8k,alpaca,humaneval --limit 6 --repeats 3 --max-new-tokens 24 "
    "--settings paper --threads 1 --offline --quiet"
)
"""Arguments of every run."""
METHODS = "pld,sps"
"""Methods of the equal runs."""
PAIRS: Mapping[str, tuple[str, str]] = {
    "depth": ("--method sps:num_tokens=2", "--method sps:num_tokens=8"),
    "template": ("--method medusa,eagle3 --template none", "--method medusa,eagle3"),
    "neighbour": ("--method sps --threads 2", "--method sps --threads 2"),
}
"""Further arguments of two runs that differ in one thing. The runs of "neighbour" have equal
arguments, but a busy program runs beside the first run.
"""


def claims(explanations: Sequence[Explanation]) -> list[str]:
    """A text for each claimed factor, with the settings that can have changed it."""
    return [
        f"{explanation.subject.label}: {factor.name} x{factor.effect.value:.3f} by "
        f"{_cause(explanation, factor.name)}"
        for explanation in explanations
        for factor in explanation.factors
        if explanation.is_claimed(factor.name)
    ]


def _cause(explanation: Explanation, factor: str) -> str:
    """The settings that can have changed a factor, or else "no setting" or "other factors"."""
    if causes := explanation.causes(factor):
        return "; ".join(causes)
    return "no setting" if explanation.is_without_cause(factor) else "other factors"


def main(folder: Path, num_runs: int = NUM_RUNS) -> None:
    """Print false claims, the number of pairs that have one, and the claims about other pairs."""
    runs = [
        run_of(folder / f"equal-{number:02}", f"{ARGUMENTS} --method {METHODS}")
        for number in range(num_runs)
    ]
    num_false = 0
    for number, run in enumerate(runs):
        claimed = claims(explain_runs(run, runs[(number + 1) % num_runs]))
        num_false += bool(claimed)
        for claim in claimed:
            print(f"pair {number}: {claim}")
    print(f"{num_false} of {num_runs} pairs of equal runs have a false claim")
    for name, (arguments_a, arguments_b) in PAIRS.items():
        has_neighbour = name == "neighbour"
        subject = run_of(folder / f"{name}-a", f"{ARGUMENTS} {arguments_a}", is_busy=has_neighbour)
        reference = run_of(folder / f"{name}-b", f"{ARGUMENTS} {arguments_b}")
        for claim in claims(explain_runs(subject, reference)) or ["nothing is claimed"]:
            print(f"{name}: {claim}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
