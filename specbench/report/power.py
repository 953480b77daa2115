"""Estimate from a finished run the prompts, passes and runs that would show a difference."""

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.planning import DIFFERENCES, UNITS, Pilot, pilot
from specbench.analysis.stats.confidence import MIN_DEGREES
from specbench.errors import UserError

_MANY_PROMPTS = 1e9
"""A number of prompts at which only the variance between passes or runs matters."""


def pilot_of(run: RunMetrics) -> Pilot | None:
    """Return the variances of ratios of speeds at a run's lowest temperature, to plan other runs.

    The ratios are the fastest method's speed / the speed of each other method. If a run has only
    one method, the ratio is its speedup over vanilla. The result is None if no ratio has a
    variance.
    """
    temperature = run.temperatures[0]
    ranking = run.rankings[temperature]
    ratios = [*ranking.ratios.values()] or [*ranking.speedups.values()]
    nums_prompts = [run.pooled(method, temperature).num_samples for method in run.methods]
    return pilot(ratios, max(nums_prompts, default=0), run.scope.number)


def power_lines(name: str, run: RunMetrics) -> list[str]:
    """Return lines about the pilot run, with a table of the prompts that would show differences.

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
    """Say what is known of the variance between passes or runs."""
    if variances.unit_sd is None:
        return (
            "It has one pass, so the machine's variance is unknown and the plan is for prompts "
            "only. Repeat it with --repeats 3 or --runs 5."
        )
    return f"Standard deviation between {run.scope.kind}: {variances.unit_sd * 100:.1f} %."


def _table(run: RunMetrics, variances: Pilot) -> list[str]:
    """Return the lines of a table of the prompts that it takes to show a difference in speed.

    A unit is a pass or a run. The table has a column for each number of units in `UNITS`, and a row
    for each relative difference in speed (0.05 is 5 %). `variances` are those of the log ratio of
    two methods' speeds in `run`, between prompts and between units.
    """
    kind = run.scope.kind  # the word for the units: "passes" or "runs"
    lines = [
        f"Prompts needed to show a difference with a probability of 80 %, by number of {kind}:",
        "difference " + "".join(f"{num_units:>14}" for num_units in UNITS),
    ]
    for difference in DIFFERENCES:
        row = f"{difference * 100:>8.0f} % "  # the line of this difference
        for num_units in UNITS:
            # None if even 100,000 prompts would not show the difference
            num_prompts = variances.prompts_for(difference, num_units)
            row += f"{'not possible' if num_prompts is None else num_prompts:>14}"
        lines.append(row)
    if variances.unit_sd:  # the standard deviation between units is known and not 0
        # The smallest relative difference that can be shown, even with very many prompts, for each
        # number of units.
        smallest = [variances.smallest(_MANY_PROMPTS, num_units) for num_units in UNITS]
        lines += [
            "smallest   " + "".join(f"{difference * 100:>12.1f} %" for difference in smallest),
            f"smallest: since {kind} differ, no number of prompts shows a smaller difference.",
        ]
    return lines
