"""`--dry-run` of `run` and `suite`: what runs would take and do, and what they could show."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import typer

from specbench.cli.options import RUNS
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.measure.spec import RunSpec
    from specbench.measure.suite.recipe import Suite


def print_dry_run(suite: Suite) -> None:
    """Print what each run of a suite would take."""
    import torch

    from specbench.machine.bandwidth import bandwidth
    from specbench.measure.suite.preview import preview
    from specbench.report.console import SafeConsole, text_table

    bytes_per_s = cache(lambda device: bandwidth(torch.device(device)))
    rows, missing, refused = [], list[str](), list[str]()
    for run in suite.runs:
        try:
            one = preview(run, bytes_per_s)
        except UserError as error:
            refused.append(f"{run.name}: {error.message} {error.hint}")
            continue
        missing += [f"{run.name}: {sentence}" for sentence in one.missing]
        rows.append(
            [
                run.name,
                str(one.num_methods),
                _number(one.num_samples, "{:,.0f}"),
                _number(one.download_bytes, "{:.1f} GB", 1e9) + " + ?" * one.has_more_files,
                _number(one.memory_bytes, "{:.1f} GB", 1e9),
                _time(one.max_seconds),
            ]
        )
    headings = ["run", "methods", "answers", "download", "memory", "at most"]
    note = (
        "At most: every method at the speed of a baseline that waits for memory alone, every "
        "answer of full length. ?: unknown."
    )
    table = text_table(headings, rows, are_numbers=True)
    SafeConsole().print(suite.title, table, *missing, *refused, note, sep="\n")
    if refused:
        raise typer.Exit(UserError.exit_code)


def print_power(spec: RunSpec, *, is_offline: bool) -> None:
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


def _number(value: float | None, shown: str, unit: float = 1) -> str:
    return "?" if value is None else shown.format(value / unit)


def _time(seconds: float | None) -> str:
    if seconds is None or seconds >= 3600:
        return _number(seconds, "{:,.1f} h", 3600)
    return _number(seconds, "{:.1f} min", 60) if seconds >= 60 else f"{seconds:.0f} s"
