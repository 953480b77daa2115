"""Prompts, passes and runs that show a difference, from a finished run as a pilot; as text."""

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.planning import DIFFERENCES, UNITS, Pilot, pilot
from specbench.analysis.stats.confidence import MIN_DEGREES
from specbench.errors import UserError


def pilot_of(run: RunMetrics) -> Pilot | None:
    """The variances of the fastest method's speed over each other one, or over vanilla."""
    temperature = run.temperatures[0]
    ranking = run.rankings[temperature]
    ratios = [*ranking.ratios.values()] or [*ranking.speedups.values()]
    num_prompts = max((run.pooled(m, temperature).num_samples for m in run.methods), default=0)
    return pilot(ratios, num_prompts, run.scope.number)


def power_lines(name: str, run: RunMetrics) -> list[str]:
    """The pilot, and a table of the prompts that differences of 2, 5 and 10 % need.

    Raises:
        UserError: the run has too few samples.
    """
    found, kind = pilot_of(run), run.scope.kind
    if found is None:
        raise UserError(
            f"{name}: too few samples for a plan.",
            f"Use a run of vanilla and another method with {MIN_DEGREES + 2} prompts or more.",
        )
    lines = [f"Pilot {name}: {found.num_prompts} prompts, {run.scope.text}."]
    if found.unit_sd is None:
        lines.append(
            "It has one pass, so the machine's variance is unknown and the plan counts prompts "
            "alone. Repeat it with --repeats 3, or with --runs 5."
        )
    else:
        lines.append(f"Standard deviation between {kind}: {found.unit_sd * 100:.1f} %.")
    lines.append(f"Prompts that show a difference (80 % of the time), by number of {kind}:")
    lines.append("difference " + "".join(f"{n:>14}" for n in UNITS))
    for difference in DIFFERENCES:
        needed = [found.prompts_for(difference, n) for n in UNITS]
        cells = "".join(f"{'not possible' if n is None else n:>14}" for n in needed)
        lines.append(f"{difference * 100:>8.0f} % {cells}")
    if found.unit_sd:
        limits = [found.smallest(1e9, n) * 100 for n in UNITS]
        lines.append("smallest   " + "".join(f"{limit:>12.1f} %" for limit in limits))
        lines.append(
            f"smallest: the smallest possible difference with any prompts, as {kind} differ."
        )
    return lines
