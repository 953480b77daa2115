"""Prompts, passes and runs that show a difference, from a finished run as a pilot; as text."""

from __future__ import annotations

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.planning import DIFFERENCES, UNITS, Pilot, pilot


def pilot_of(run: RunMetrics) -> Pilot | None:
    """The variances of the fastest method's speed over each other one, or over vanilla."""
    temperature = run.temperatures[0]
    ranking = run.rankings[temperature]
    ratios = [*ranking.ratios.values()] or [*ranking.speedups.values()]
    num_prompts = max((run.pooled(m, temperature).num_samples for m in run.methods), default=0)
    return pilot(ratios, num_prompts, run.scope.number)


def power_lines(name: str, run: RunMetrics) -> list[str]:
    """The pilot, and a table of the prompts that differences of 2, 5 and 10 % need."""
    found, kind = pilot_of(run), run.scope.kind
    if found is None:
        return [f"{name}: too few samples for a plan."]
    lines = [f"Pilot {name}: {found.num_prompts} prompts, {run.scope.text}."]
    if found.unit_sd is None:
        lines.append(
            "It has one pass, so the machine's variance is unknown and the plan counts prompts "
            "alone. Repeat it with --repeats 3, or with --runs 5."
        )
    else:
        lines.append(f"Standard deviation between {kind}: {found.unit_sd * 100:.1f} %.")
    lines.append(f"Prompts that show a difference (80 % of the time), by number of {kind}:")
    lines.append("difference " + "".join(f"{n:>12}" for n in UNITS))
    for difference in DIFFERENCES:
        needed = [found.prompts_for(difference, n) for n in UNITS]
        cells = "".join(f"{'no number' if n is None else n:>12}" for n in needed)
        lines.append(f"{difference * 100:>8.0f} % {cells}")
    if found.unit_sd:
        limits = [found.smallest(1e9, n) * 100 for n in UNITS]
        lines.append("least, any " + "".join(f"{limit:>10.1f} %" for limit in limits))
        lines.append(f"No number of prompts shows less than the last line: {kind} differ by more.")
    return lines
