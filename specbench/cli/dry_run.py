"""`specbench run --dry-run`: what a run would do, and what it could show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from specbench.cli.options import RUNS

if TYPE_CHECKING:
    from specbench.measure.spec import RunSpec


def print_dry_run(spec: RunSpec, *, is_offline: bool) -> None:
    """Print what a run would do, and what the newest stored run of the model says it could show."""
    from specbench.analysis.metrics import measure
    from specbench.log.header import RunHeader
    from specbench.log.store import list_runs, read_run
    from specbench.measure.plan import make_plan
    from specbench.report.power import pilot_of, power_lines

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
        typer.echo("\n".join(power_lines(listed.path.name, metrics)))
        if found := pilot_of(metrics):
            shown = found.smallest(max(num_prompts, 2), max(made.repeats, 2))
            typer.echo(f"This run would show differences of {shown * 100:.1f} % and more.")
        return
    typer.echo(f"{RUNS} has no complete run of this model, so its variance is unknown.")
