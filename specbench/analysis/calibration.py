"""Calibration of a draft: how often guesses of a given confidence end up on the accepted path.

The confidence of a node is the draft's probability of the path from the root to it. Dynamic
trees (EAGLE-2) keep the nodes with the highest confidence, and expect a node of confidence c
to be accepted in a share c of the steps.

Traced steps are taken as they are stored: `parents` of the nodes, `log_probs` of their paths,
and `path`, the accepted nodes. Nodes without a log-probability are not counted.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench.types import TracedStep

NUM_BINS = 10
ALL_DEPTHS = 0
"""The depth of a calibration over nodes of all depths."""


@dataclass(frozen=True, slots=True)
class Bin:
    """The nodes whose confidence lies in [low, high), or in [low, 1] for the last bin.

    `confidence` is their mean confidence and `share` the share of them that was accepted.
    """

    low: float
    high: float
    num_nodes: int
    num_accepted: int
    confidence: float

    @property
    def share(self) -> float:
        return self.num_accepted / self.num_nodes


@dataclass(frozen=True, slots=True)
class Calibration:
    """The bins that hold nodes, of the nodes at one depth below the root or at all of them."""

    depth: int
    bins: tuple[Bin, ...]

    @property
    def num_nodes(self) -> int:
        return sum(each.num_nodes for each in self.bins)

    @property
    def error(self) -> float:
        """The expected calibration error (Naeini et al. 2015).

        It is the mean distance between a bin's confidence and its share, weighted by nodes.
        """
        distances = (abs(each.confidence - each.share) * each.num_nodes for each in self.bins)
        return sum(distances) / self.num_nodes


def calibrate(steps: Iterable[TracedStep]) -> tuple[Calibration, ...]:
    """The calibration over all depths, then of every depth; empty if no node has a score."""
    nodes = np.array([node for step in steps for node in _scored(step)], dtype=np.float64)
    if not nodes.size:
        return ()
    depth, confidence, is_accepted = nodes.T
    calibrations = [Calibration(ALL_DEPTHS, _bins(confidence, is_accepted))]
    for each in np.unique(depth):
        rows = depth == each
        calibrations.append(Calibration(int(each), _bins(confidence[rows], is_accepted[rows])))
    return tuple(calibrations)


def _scored(step: TracedStep) -> Iterator[tuple[int, float, bool]]:
    """Depth, confidence and acceptance of each scored node except the root, entry 0."""
    accepted = set(step.path)
    depths = [0]
    for node, (parent, log_prob) in enumerate(zip(step.parents, step.log_probs, strict=False)):
        if node == 0:
            continue
        depths.append(depths[parent] + 1)
        if log_prob is not None:
            yield depths[node], math.exp(min(0.0, log_prob)), node in accepted


def _bins(confidence: Any, is_accepted: Any) -> tuple[Bin, ...]:
    """`confidence` and `is_accepted`: [nodes]."""
    bin_of = np.minimum((confidence * NUM_BINS).astype(np.intp), NUM_BINS - 1)
    counts = np.bincount(bin_of, minlength=NUM_BINS)
    accepted = np.bincount(bin_of, weights=is_accepted, minlength=NUM_BINS)
    sums = np.bincount(bin_of, weights=confidence, minlength=NUM_BINS)
    return tuple(
        Bin(
            low=i / NUM_BINS,
            high=(i + 1) / NUM_BINS,
            num_nodes=int(counts[i]),
            num_accepted=int(accepted[i]),
            confidence=float(sums[i] / counts[i]),
        )
        for i in range(NUM_BINS)
        if counts[i]
    )
