"""`--dry-run` of `run` and `suite`: what runs would take and do, and what they could show."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import typer

from specbench.cli.options import RUNS, say
from specbench.errors import UserError
from specbench.measure.progress import number_text, time_text
from specbench.measure.session import earlier_runs, expected_seconds

if TYPE_CHECKING:
    from specbench.measure.base import Plan
    from specbench.measure.spec import RunSpec
    from specbench.measure.suite.runs import Suite


def print_dry_run(suite: Suite) -> bool:
    """Print what each run of a suite would take. True if nothing has to be downloaded."""
    import torch

    from specbench.machine.bandwidth import bandwidth
    from specbench.measure.suite.preview import preview
    from specbench.report.console import SafeConsole, text_table

    # The first of several GPUs, which work one after the other: "cuda:0-3".
    bytes_per_s = cache(lambda device: bandwidth(torch.device(device.partition("-")[0])))
    rows, missing, refused, is_here = [], list[str](), list[str](), True
    for run in suite.runs:
        try:
            one = preview(run.spec, bytes_per_s)
        except UserError as error:
            refused.append(f"{run.name}: {error.message} {error.hint}")
            continue
        missing += [f"{run.name}: {sentence}" for sentence in one.missing]
        is_here &= not (one.download_bytes or one.has_more_files)
        rows.append(
            [
                run.name,
                str(one.num_methods),
                number_text(one.num_samples, "{:,.0f}"),
                number_text(one.download_bytes, "{:.1f} GB", 1e9) + " + ?" * one.has_more_files,
                number_text(one.memory_bytes, "{:.1f} GB", 1e9),
                time_text(one.max_seconds),
            ]
        )
    headings = ["run", "methods", "answers", "download", "memory", "decoding"]
    note = (
        "Decoding: all answers at full length and vanilla's speed, if only reading the weights "
        "takes time; a small model takes longer. ?: unknown."
    )
    table = text_table(headings, rows, are_numbers=True)
    SafeConsole().print(suite.title, table, *missing, *refused, note, sep="\n")
    if refused:
        raise typer.Exit(UserError.exit_code)
    return is_here


def print_power(spec: RunSpec, *, is_offline: bool) -> None:
    """Print what a run would do, about how long it would take, and what it could show."""
    from specbench.measure.plan import make_plan

    made = make_plan(spec, is_offline=is_offline)
    counts = ", ".join(f"{task} {len(prompts)}" for task, prompts in made.prompts.items())
    lines = [f"{made.setup.title}: {', '.join(made.setup.labels)}"]
    if made.setup.no_checkpoint:
        lines.append(f"No checkpoint: {', '.join(made.setup.no_checkpoint)}")
    lines.append(
        f"Prompts: {sum(map(len, made.prompts.values()))} ({counts}); passes: {made.repeats}; "
        f"at most {made.max_new_tokens} tokens an answer; completions: {made.num_records}"
    )
    if seconds := expected_seconds(made, RUNS):
        lines.append(f"About {time_text(seconds)}, by the newest run of this model.")
    for line in (*lines, _power(made)):
        say(line, is_error=False)


def _power(plan: Plan) -> str:
    """The smallest difference that a run could show, by the newest run that can tell."""
    from specbench.analysis.metrics import measure
    from specbench.log.store import read_run
    from specbench.measure.plan import has_interval, least_prompts
    from specbench.report.power import pilot_of

    prompts = [len(one) for one in plan.prompts.values()]
    if not has_interval(prompts):
        least = least_prompts(len(prompts))
        return f"No difference can be shown: use --limit {least}, or more prompts."
    for path, _ in earlier_runs(plan, RUNS):
        if found := pilot_of(measure(read_run(path, is_lenient=True))):
            shown = found.smallest(sum(prompts), max(plan.repeats, 2))
            if shown < 1:
                return f"It would show differences of {shown * 100:.1f} % and more."
    return "No earlier run of this model tells which differences it would show."
