"""Show which cheats a report names, for several numbers of prompts.

    python -m benchmarks.cheat_power [NUM_PROMPTS ...]

It runs each cheat of tests/support/cheats.py beside vanilla on a small model, in two passes over 6,
12 and 24 prompts. The table has each cheat's speedup in decoding and the rules that name it.
SECURITY.md says why some cheats are not named.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate
from specbench.report.warning_notes import warnings
from tests.support.cheats import CHEATS, cheating_run

NUM_PROMPTS = (6, 12, 24)
NUM_PASSES = 2
RULES = {
    "changed_weights",
    "different_output",
    "fast_prefill",
    "fast_step",
    "hidden_time",
    "known_answers",
    "remembered_answers",
    "slow_steps",
    "slow_vanilla",
    "slowed_vanilla",
    "untimed_work",
}
"""Keys of the warnings that name a cheat."""


def found_in(metrics: RunMetrics) -> str:
    """The cheat's speedup in decoding, and the rules that fire in the run: "2.10x: fast_step"."""
    rules = sorted({warning.key for warning in warnings(metrics)} & RULES)
    speedup = metrics.cost("cheat", 0.0).decode_speedup
    text = f"{speedup.value:.2f}x" if isinstance(speedup, Estimate) else "?"
    return f"{text}: {', '.join(rules) or '-'}"


def main(arguments: Sequence[str]) -> None:
    """Print a table in Markdown with a row for each cheat."""
    counts = [int(argument) for argument in arguments] or NUM_PROMPTS
    print("| cheat |", " | ".join(f"{count} prompts" for count in counts), "|")
    print("|---|", "---|" * len(counts), sep="")
    for name in CHEATS:
        texts = []
        for count in counts:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "run"
                run = cheating_run(name, path, repeats=NUM_PASSES, num_prompts=count)
                texts.append(found_in(measure(run, Bootstrap())))
        print(f"| {name} |", " | ".join(texts), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
