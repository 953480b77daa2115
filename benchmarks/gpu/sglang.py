"""Compare SGLang's published figures with figures calculated from a run with the same trees.

    python -m benchmarks.gpu.sglang RUN

SGLang published the tokens/s of Llama-3.1-8B-Instruct on one H100, and the accepted tokens for some
settings. A stand-in accepts other tokens, but its steps take as long as the model's steps. So the
published accepted tokens, divided by our seconds per step, are the tokens/s that this engine would
reach with the real model. The time of prefills is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate
from specbench.log.store import read_run


class Published(NamedTuple):
    """Figures that SGLang published for one setting."""

    method: str
    """The method with SGLang's tree, as the run names it."""
    tokens_per_s: float | None
    """None if it was not published."""
    mat: float | None
    """Tokens per step, including the target's own token. None if it was not published."""
    source: str


_LARGE_TREE = "depth=7,top_k=8,total_tokens=64"
_SMALL_TREE = "depth=2,top_k=1,total_tokens=4"
PUBLISHED = (
    Published("vanilla", 158.3, 1.0, "docs.sglang.io"),
    Published(f"eagle2:{_LARGE_TREE}", 244.0, None, "docs.sglang.io"),
    Published(f"eagle2:{_LARGE_TREE}", 230.0, 3.76, "sglang pull request 4247"),
    Published(f"eagle3:{_LARGE_TREE}", 373.0, None, "docs.sglang.io"),
    Published(f"eagle3:{_LARGE_TREE}", 379.0, 5.39, "sglang pull request 4247"),
    Published(f"eagle3:{_SMALL_TREE}", None, None, "the tree that its examples begin with"),
)
TREES = tuple(dict.fromkeys(entry.method for entry in PUBLISHED if entry.method != "vanilla"))
"""The methods of the run, apart from vanilla."""


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    metrics = measure(read_run(Path(arguments[0])))
    print(f"{'method':<42}{'ms/step':>8}{'MAT':>6}{'calculated':>12}{'published':>11}  source")
    for published in PUBLISHED:
        step_s = metrics.cost(published.method, metrics.temperatures[0]).step_s
        if not isinstance(step_s, Estimate):
            continue
        mat = calculated = tokens_per_s = "-"
        if published.mat is not None:
            mat, calculated = f"{published.mat:.2f}", f"{published.mat / step_s.value:.0f}"
        if published.tokens_per_s is not None:
            tokens_per_s = f"{published.tokens_per_s:.0f}"
        print(
            f"{published.method:<42}{1e3 * step_s.value:>8.2f}{mat:>6}{calculated:>12}"
            f"{tokens_per_s:>11}  {published.source}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
