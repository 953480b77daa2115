"""A server that is faster than its drafts allow is named, and honest servers are not."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from specbench.analysis.cells import CellKey
from specbench.analysis.impossible_speedups import find_impossible_speedups
from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Interval
from specbench.analysis.warnings import RunWarning
from specbench.log.run import Load, Run
from specbench.report.build import make_report
from specbench.types import Record
from tests.analysis.test_serving import NUM_TOKENS, ONE, answer, block, run
from tests.judge.changing import with_header

NUM_PROMPTS = 12
SERVERS = {
    label: {"url": "http://127.0.0.1:1", "software": "", "model": "tiny", "protocol": "openai"}
    for label in ("vanilla", "eagle3")
}
MAT = 2.0


def served_run(speedup: float, *, load: Load = ONE, seed: int = 0, has_steps: bool = True) -> Run:
    """A run of vanilla and of EAGLE-3, which has a MAT of 2 and this mean decode speedup.

    Times vary by 5 %.
    """
    random = np.random.default_rng(seed)
    records: list[Record] = []
    for prompt in range(NUM_PROMPTS):
        plain_s, drafting_s = random.normal(1.0, 0.05, 2)
        vanilla = answer("vanilla", prompt, load, wall_s=plain_s)
        eagle3 = answer("eagle3", prompt, load, wall_s=drafting_s / speedup)
        records.append(replace(vanilla, accept_lengths=(1,) * (NUM_TOKENS - 1)))
        num_steps = int((NUM_TOKENS - 1) / MAT)
        records.append(replace(eagle3, accept_lengths=(2,) * num_steps) if has_steps else eagle3)
    blocks = [block(label, load, duration_s=NUM_PROMPTS) for label in SERVERS]
    return with_header(run(records, blocks, [load]), servers=SERVERS)


def is_named(served: Run) -> bool:
    """Return whether the report says that the servers differ in more than drafting."""
    notes = [note.text for note in make_report(served, Bootstrap(200)).notes]
    return any("differ in more than speculation" in text for text in notes)


@pytest.mark.parametrize(
    ("speedup", "load", "expected"),
    [
        (2.6, ONE, True),
        (2.6, Load(concurrency=4), True),
        (2.6, Load(request_rate=2.0), False),
        (1.9, ONE, False),
        (0.5, ONE, False),
    ],
)
def test_a_speedup_beyond_the_mat_is_named_in_closed_loops(
    speedup: float, load: Load, expected: bool
) -> None:
    assert is_named(served_run(speedup, load=load)) == expected


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, True), (3, False)])
def test_without_a_mat_the_longest_draft_bounds_the_speedup(
    num_tokens: int, expected: bool
) -> None:
    served = served_run(2.6, has_steps=False)
    assert is_named(with_header(served, methods__eagle3__options={"num_tokens": num_tokens})) == (
        expected
    )


@pytest.mark.parametrize(
    ("speedup", "low", "high", "mat", "expected"),
    [
        (3.04, 2.86, 3.22, 2.78, True),  # engines that were started one after the other
        (2.37, 2.20, 2.55, 1.10, True),
        (1.04, 1.03, 1.06, 1.00, False),  # drafts nothing, on a machine that became faster
        (1.08, 1.06, 1.10, 1.00, True),
        (2.80, 2.60, 3.00, 2.78, False),
    ],
)
def test_a_method_with_few_drafts_may_gain_by_drift(
    speedup: float, low: float, high: float, mat: float, expected: bool
) -> None:
    served = served_run(MAT)
    cells = measure(served, None).cells
    key = CellKey("eagle3", 0.0, "gsm8k")
    drifting = replace(
        cells[key], decode_speedup=Estimate(speedup, Interval(low, high)), mat=Estimate(mat)
    )
    assert [*find_impossible_speedups({key: drifting}, served.header)] == (
        [RunWarning("impossible_speedup", mock.ANY)] if expected else []
    )


@pytest.mark.slow
def test_honest_methods_at_their_bound_are_never_named() -> None:
    """The methods' steps cost no more than plain steps, as if nothing were drafted."""
    for seed in range(60):
        metrics = measure(served_run(MAT, seed=seed), Bootstrap(100))
        assert not any(warning.key == "impossible_speedup" for warning in metrics.warnings)
