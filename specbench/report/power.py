"""Compute, from a finished run as a pilot, how many prompts, passes and runs show a difference."""

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.planning import DIFFERENCES, UNITS, Pilot, pilot
from specbench.analysis.stats.confidence import MIN_DEGREES
from specbench.errors import UserError

_MANY_PROMPTS = 1e9
"""So many prompts that their variance is negligible, and only passes or runs differ."""


def pilot_of(run: RunMetrics) -> Pilot | None:
    """The variances of ratios of speeds in a run, at its lowest temperature, to plan other runs.

    The ratios are the fastest method's speed / each other method's, or its speedup over vanilla if
    it is the only method. None if no ratio has a variance.
    """
    temperature = run.temperatures[0]
    ranking = run.rankings[temperature]
    ratios = [*ranking.ratios.values()] or [*ranking.speedups.values()]
    nums_prompts = [run.pooled(method, temperature).num_samples for method in run.methods]
    return pilot(ratios, max(nums_prompts, default=0), run.scope.number)


def power_lines(name: str, run: RunMetrics) -> list[str]:
    """Lines about the pilot, and a table of the prompts needed for differences of 2, 5 and 10 %.

    Raises:
        UserError: the run has too few samples.
    """
    variances = pilot_of(run)
    if variances is None:
        raise UserError(
            f"{name}: too few samples for a plan.",
            f"Use a run of vanilla and another method with {MIN_DEGREES + 2} prompts or more.",
        )
    return [
        f"Pilot {name}: {variances.num_prompts} prompts. Intervals cover {run.scope.text}.",
        _machine_line(run, variances),
        *_table(run, variances),
    ]


def _machine_line(run: RunMetrics, variances: Pilot) -> str:
    """What is known of the variance between passes or runs, in words."""
    if variances.unit_sd is None:
        return (
            "It has one pass, so the machine's variance is unknown and the plan is for prompts "
            "only. Repeat it with --repeats 3 or --runs 5."
        )
    return f"Standard deviation between {run.scope.kind}: {variances.unit_sd * 100:.1f} %."


def _table(run: RunMetrics, variances: Pilot) -> list[str]:
    """The lines of a table of prompts needed: a row per difference, a column per number of units.

    A unit is a pass or a run, and `UNITS` are the numbers of units that have a column. Differences
    in speed are relative: 0.05 is 5 %. `variances` has the variances of a log ratio of two methods'
    speeds in `run`, between prompts and between units.
    """
    kind = run.scope.kind  # the word for units: "passes" or "runs"
    lines = [
        f"Prompts needed to show a difference with a probability of 80 %, by number of {kind}:",
        "difference " + "".join(f"{num_units:>14}" for num_units in UNITS),
    ]
    for difference in DIFFERENCES:
        row = f"{difference * 100:>8.0f} % "  # the line of the difference, as text
        for num_units in UNITS:
            # None if even 100,000 prompts would not show the difference.
            num_prompts = variances.prompts_for(difference, num_units)
            row += f"{'not possible' if num_prompts is None else num_prompts:>14}"
        lines.append(row)
    if variances.unit_sd:  # standard deviation between units; None: unknown, 0: none
        # The smallest relative differences that any number of prompts shows, by number of units.
        smallest = [variances.smallest(_MANY_PROMPTS, num_units) for num_units in UNITS]
        lines += [
            "smallest   " + "".join(f"{difference * 100:>12.1f} %" for difference in smallest),
            f"smallest: since {kind} differ, no number of prompts shows a smaller difference.",
        ]
    return lines
