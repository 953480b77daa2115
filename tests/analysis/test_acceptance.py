"""Acceptance by depth against steps counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from specbench.analysis.cells import CellMetrics
from specbench.analysis.metrics import measure
from specbench.types import Record
from tests.analysis.run_factory import full_run, measured_cell, record


def steps(lengths: list[int], num_nodes: int | None = None, sample: str = "a") -> Record:
    """A completion with these steps."""
    made = record("pld", sample, accept_lengths=lengths)
    return replace(made, num_nodes=(num_nodes or 99,) * len(lengths))


def table(metrics: CellMetrics) -> list[tuple[int, int, int]]:
    return [(at.depth, at.num_reached, at.num_accepted) for at in metrics.acceptance_by_depth]


def test_a_step_of_a_tokens_accepted_the_depths_below_a_and_none_at_a() -> None:
    # Five steps of a chain of three guesses; the last one accepted all that was guessed.
    metrics = measured_cell(steps([1, 2, 4, 2, 4], num_nodes=4))
    assert table(metrics) == [(1, 5, 4), (2, 4, 2), (3, 2, 2)]
    assert [p.conditional.value for p in metrics.acceptance_by_depth] == [4 / 5, 2 / 4, 1.0]
    assert [p.unconditional.value for p in metrics.acceptance_by_depth] == pytest.approx(
        [0.8, 0.4, 0.4]
    )


def test_the_step_that_ended_a_completion_is_no_rejection() -> None:
    # Its one token may be an accepted guess, cut off, or the target's own: it tells nothing.
    assert table(measured_cell(steps([3, 1]))) == [(1, 1, 1), (2, 1, 1)]
    # Of its two tokens the first was a guess: known at depth 1, unknown at depth 2.
    assert table(measured_cell(steps([3, 2]))) == [(1, 2, 2), (2, 1, 1)]


def test_a_last_step_without_a_guess_is_known_to_have_accepted_none() -> None:
    assert table(measured_cell(steps([3, 1], num_nodes=1))) == [(1, 2, 1), (2, 1, 1)]


def test_one_plus_the_unconditional_shares_is_the_mean_accepted_tokens() -> None:
    metrics = measured_cell(steps([1, 3, 2, 5, 1, 5], num_nodes=5), steps([2, 2, 5], 5, "b"))
    total = 1 + sum(at.unconditional.value for at in metrics.acceptance_by_depth)
    assert total == pytest.approx(metrics.mat.value)  # type: ignore[union-attr]


def test_cut_steps_do_not_bias_the_shares() -> None:
    """Guesses accepted with probability 0.7 and cut by a short budget: the estimate is unbiased."""
    generator = np.random.default_rng(4)
    own = []
    for sample in range(4000):
        lengths: list[int] = []
        while (room := 9 - sum(lengths)) > 0:
            accepted = int(np.minimum(generator.geometric(0.3) - 1, 3))
            lengths.append(min(room, accepted + 1))
        own.append(steps(lengths, sample=str(sample)))
    shares = [at.conditional.value for at in measured_cell(*own).acceptance_by_depth]
    assert shares == pytest.approx([0.7, 0.7, 0.7], abs=0.015)


def test_shares_have_intervals_that_hold_them_and_stay_between_nought_and_one() -> None:
    run = measure(full_run(num_samples=12))
    depths = run.cell("pld", 0.0, "gsm8k").acceptance_by_depth
    assert depths
    for share in (s for p in depths for s in (p.conditional, p.unconditional)):
        assert share.interval is not None
        assert 0 <= share.interval.low <= share.value <= share.interval.high <= 1
