"""`specbench plan`: prompts, passes and runs that a difference needs, from a pilot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli.options import RUNS, RunArguments

if TYPE_CHECKING:
    from specbench.analysis.metrics import RunMetrics
    from specbench.analysis.planning import Pilot
    from specbench.measure.spec import RunSpec


def plan(run: RunArguments) -> None:
    """Count the prompts, passes and runs that show a difference, from finished runs as pilots.

    A folder of several runs, as of `run --runs`, tells how far runs differ, not only passes.
    """
    from specbench.analysis.metrics import measure
    from specbench.log.store import read_runs

    for path in run:
        typer.echo("\n".join(_lines(path, measure(read_runs(path)))))


def print_plan(spec: RunSpec, *, is_offline: bool) -> None:
    """Print what a run would do, and what the newest stored run of the model says it could show."""
    from specbench.analysis.metrics import measure
    from specbench.log.header import RunHeader
    from specbench.log.store import list_runs, read_run
    from specbench.measure.plan import make_plan

    made = make_plan(spec, is_offline=is_offline)
    counts = ", ".join(f"{task} {len(prompts)}" for task, prompts in made.prompts.items())
    num_prompts = sum(map(len, made.prompts.values()))
    missing = ", ".join(made.setup.no_checkpoint)
    typer.echo(f"{made.setup.title}: {', '.join(made.setup.labels)}")
    if missing:
        typer.echo(f"No checkpoint: {missing}")
    typer.echo(
        f"Prompts: {num_prompts} ({counts}); passes: {made.repeats}; "
        f"at most {made.max_new_tokens} tokens an answer; completions: {made.num_records}"
    )
    for listed in list_runs(RUNS):
        header = listed.header
        if not isinstance(header, RunHeader) or header.status != "complete":
            continue
        if header.model.label != made.about.model.label:
            continue
        metrics = measure(read_run(listed.path, is_lenient=True))
        typer.echo("\n".join(_lines(listed.path, metrics)))
        if found := _pilot(metrics):
            shown = found.smallest(max(num_prompts, 2), max(made.repeats, 2))
            typer.echo(f"This run would show differences of {shown * 100:.1f} % and more.")
        return
    typer.echo(f"{RUNS} has no complete run of this model, so its variance is unknown.")


def _pilot(metrics: RunMetrics) -> Pilot | None:
    """The variances of the fastest method's speed over each other one, or over vanilla."""
    from specbench.analysis.planning import pilot

    ranking = metrics.rankings[metrics.temperatures[0]]
    ratios = [*ranking.ratios.values()] or [*ranking.speedups.values()]
    num_prompts = max(
        (metrics.pooled(m, metrics.temperatures[0]).num_samples for m in metrics.methods),
        default=0,
    )
    return pilot(ratios, num_prompts, metrics.scope.number)


def _lines(path: Path, metrics: RunMetrics) -> list[str]:
    from specbench.analysis.planning import DIFFERENCES, UNITS

    found, kind = _pilot(metrics), metrics.scope.kind
    if found is None:
        return [f"{path.name}: too few samples for a plan."]
    lines = [f"Pilot {path.name}: {found.num_prompts} prompts, {metrics.scope.text}."]
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
    limits = [found.smallest(1e9, n) * 100 for n in UNITS]
    if found.unit_sd:
        lines.append("least, any " + "".join(f"{limit:>10.1f} %" for limit in limits))
        lines.append(f"No number of prompts shows less than the last line: {kind} differ by more.")
    return lines
