"""The table of a check: errors of predictions, coverage of intervals, and the speed of choices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from statistics import median

import numpy as np
from msgspec.structs import replace as replace_part

from benchmarks.tune_check.measured import speedup_on, step_s, times_of
from benchmarks.tune_check.rows import Picks, Row, Sweep
from benchmarks.tune_check.settings import record_label, twins_of
from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate
from specbench.log.run import Run
from specbench.settings.cost_curve import Curve
from specbench.settings.cost_model import CostModel
from specbench.settings.speedup import NUM_RESAMPLES

GOAL = 0.05
"""Largest error that a good prediction may have."""
TIMES_AA = 1.5
"""A larger error is good enough if it is at most this many times the error of an A/A pair."""
NUM_SPLITS = 200
"""Number of random halves of the prompts that measure the coverage of intervals."""
ERROR_NAMES = (
    "of the speedup",
    "due to other prompts",
    "due to the cost curve",
    "of the MAT on the same prompts",
)
"""The table's names for the four numbers in `Row.errors`."""


def table_lines(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """The lines of the table: figures over all settings, then a line for each setting."""
    ratio = step_s(sweep.run) / sweep.model.curve.vanilla_s
    errors = np.abs([row.errors for row in rows])  # [settings, 4]
    aa_errors = errors_of_pairs(sweep)
    aa_error = median(aa_errors) if aa_errors else math.nan
    goal = max(GOAL, TIMES_AA * aa_error) if aa_errors else GOAL
    share_within = (errors[:, 0] <= 2 * goal).mean()
    longer_error = median(errors_with_longer_steps(sweep, rows, ratio))
    covered = [*coverage(sweep)]
    shares = f"{np.mean(covered):.0%}, {min(covered):.0%}, {max(covered):.0%}"

    lines = ["| what | value |", "|---|---:|"]
    lines.append(f"| settings, methods | {len(rows)}, {len({row.label for row in rows})} |")
    for error_name, error in zip(ERROR_NAMES, np.median(errors, 0), strict=True):
        lines.append(f"| median error {error_name} | {error:.1%} |")
    lines += [
        f"| vanilla's step, run / curve | {ratio:.2f} |",
        f"| median error due to the corrected cost curve | {longer_error:.1%} |",
        f"| error of an A/A pair | {aa_error:.1%} |",
        f"| goal | {goal:.1%} |",
        f"| within twice the goal | {share_within:.0%} |",
        f"| coverage over {NUM_SPLITS} splits: mean, minimum, maximum | {shares} |",
        "",
        "| setting | predicted | measured | error | prompts | cost | MAT |",
        "|---" + "|---:" * 6 + "|",
    ]
    for row in sorted(rows, key=lambda row: row.errors):
        row_errors = " | ".join(f"{error:+.1%}" for error in row.errors)
        lines.append(f"| {row.setting} | {row.predicted:.2f} | {row.measured:.2f} | {row_errors} |")
    return lines


def errors_of_pairs(sweep: Sweep) -> list[float]:
    """The errors of settings that were measured twice, under two names."""
    return [
        abs(math.log(sweep.measured_speedup(setting) / sweep.measured_speedup(twin)))
        for setting, twin in twins_of(sweep.weighed).items()
    ]


def errors_with_longer_steps(sweep: Sweep, rows: Sequence[Row], ratio: float) -> list[float]:
    """The error of each row if vanilla's step in the curve took `ratio` times as long."""
    longer_model = CostModel(longer_curve(sweep.model.curve, ratio), NUM_RESAMPLES)
    errors = []
    for row in rows:
        expected = sweep.predicted(row.setting, sweep.measured, longer_model).speedup
        errors.append(abs(math.log(row.measured / expected)))
    return errors


def longer_curve(curve: Curve, ratio: float) -> Curve:
    """The curve with the same time added to all steps, so that vanilla takes `ratio` times as long.

    Each step reads the weights once, so a change of memory speed adds the same time to all steps.
    """
    steps = (np.array(curve.steps) + ratio - 1) / ratio
    return replace_part(curve, steps=steps.tolist())


def coverage(sweep: Sweep) -> Iterator[float]:
    """For each setting, the share of splits whose interval covers the other half's speedup."""
    draw = Random(1)
    samples = sorted(sweep.profiled | sweep.measured)
    splits = [{*draw.sample(samples, len(samples) // 2)} for _ in range(NUM_SPLITS)]
    for setting in sweep.weighed:
        times = times_of(sweep.run, setting)
        num_covered = 0
        for split in splits:
            predicted = sweep.predicted(setting, split)
            measured = speedup_on(times, {*samples} - split)
            half_width = math.hypot(predicted.half_width, 1.96 * math.sqrt(measured.variance))
            num_covered += abs(math.log(measured.mean / predicted.speedup)) <= half_width
        yield num_covered / len(splits)


def regret_lines(run: Run, picks: Mapping[str, Picks]) -> list[str]:
    """Lines with each pick's second speedup, relative to the sweep's best and the paper's."""
    overall = measure(run).overall

    def speedup(setting: str) -> float:
        estimated = overall[record_label(setting), 0.0].speedup
        return estimated.value if isinstance(estimated, Estimate) else math.nan

    lines = ["", "| method | pick | of the sweep's best | of the paper's |", "|---|---|---:|---:|"]
    for label, of_method in picks.items():
        picked = speedup(of_method.by_prediction)
        of_best = f"{picked / speedup(of_method.of_sweep):.1%}"
        of_paper = f"{picked / speedup(of_method.paper):.0%}"
        lines.append(f"| {label} | {of_method.by_prediction} | {of_best} | {of_paper} |")
    return lines
