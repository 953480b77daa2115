"""Calibration of the draft's confidence, on trees small enough to count by hand."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.analysis.calibration import ALL_DEPTHS, NUM_BINS, Calibration, calibrate
from specbench.types import TracedStep


def step(parents: list[int], confidences: list[float | None], path: list[int]) -> TracedStep:
    log_probs = tuple(None if c is None else log(c) for c in confidences)
    return TracedStep(tuple(parents), log_probs, tuple(path))


def counts(calibration: Calibration) -> dict[float, tuple[int, int]]:
    return {each.low: (each.num_nodes, each.num_accepted) for each in calibration.bins}


def test_nodes_are_counted_by_confidence_and_depth() -> None:
    #   0 - 1 (0.9) - 3 (0.85)
    #     - 2 (0.05)
    steps = [step([-1, 0, 0, 1], [None, 0.9, 0.05, 0.85], [0, 1]) for _ in range(4)]
    steps.append(step([-1, 0, 0, 1], [None, 0.9, 0.05, 0.85], [0, 1, 3]))
    overall, first, second = calibrate(steps)
    assert (overall.depth, first.depth, second.depth) == (ALL_DEPTHS, 1, 2)
    assert counts(overall) == {0.0: (5, 0), 0.8: (5, 1), 0.9: (5, 5)}
    assert counts(first) == {0.0: (5, 0), 0.9: (5, 5)}
    assert counts(second) == {0.8: (5, 1)}
    assert second.bins[0].confidence == pytest.approx(0.85)
    assert second.error == pytest.approx(0.85 - 0.2)


def test_the_root_and_nodes_without_a_score_are_not_counted() -> None:
    (overall, only) = calibrate([step([-1, 0, 0], [None, None, 0.5], [0, 1])])
    assert overall.num_nodes == only.num_nodes == 1
    assert calibrate([step([-1, 0], [None, None], [0, 1])]) == ()
    assert calibrate([]) == ()


def test_full_confidence_lies_in_the_last_bin() -> None:
    overall = calibrate([step([-1, 0], [None, 1.0], [0, 1])])[0]
    assert [(each.low, each.share) for each in overall.bins] == [(0.9, 1.0)]


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.booleans()), min_size=1, max_size=60))
def test_every_scored_node_is_in_one_bin_of_its_depth(nodes: list[tuple[float, bool]]) -> None:
    steps = [step([-1, 0], [None, c], [0, 1] if is_on else [0]) for c, is_on in nodes]
    overall = calibrate(steps)[0]
    assert overall.num_nodes == len(nodes)
    assert sum(each.num_accepted for each in overall.bins) == sum(is_on for _, is_on in nodes)
    assert len(overall.bins) <= NUM_BINS
    assert 0.0 <= overall.error <= 1.0
    for each in overall.bins:
        assert each.low - 1e-9 <= each.confidence <= each.high + 1e-9
