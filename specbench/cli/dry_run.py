"""`--dry-run`: print the work and the cost of runs, and the differences that they could detect."""

from __future__ import annotations

import shlex
from functools import cache
from typing import TYPE_CHECKING

import typer

from specbench.cli.options import say
from specbench.errors import UserError
from specbench.measure.progress import number_text, time_text
from specbench.types import RUNS

if TYPE_CHECKING:
    from specbench.measure.base import Plan
    from specbench.measure.suite.recipe import Suite


_BOUND = (
    "assumes full-length answers at vanilla's speed, and steps that take only the time to read the "
    "weights. A small model takes longer. ?: unknown"
)
"""The assumptions of a time estimate without an earlier run."""


def print_dry_run(suite: Suite, seconds: float | None = None) -> bool:
    """Print the cost of each run of a suite. Return True if nothing has to be downloaded.

    `seconds` were estimated from an earlier run. Without them, a lower bound is printed. If one
    of several runs would be refused, a line gives the reason.

    Raises:
        UserError: the suite's only run would be refused.
    """
    from specbench.measure.plan import check_early

    if len(suite.runs) == 1:
        check_early(suite.runs[0].spec)
    import torch

    from specbench.machine.bandwidth import bandwidth
    from specbench.measure.earlier_runs import EARLIER
    from specbench.measure.suite.preview import preview
    from specbench.report.console import SafeConsole, text_table

    # The bandwidth of a device. If the device is several GPUs, such as "cuda:0-3", only the first
    # is measured, because they work one after the other.
    bytes_per_s = cache(lambda device: bandwidth(torch.device(device.partition("-")[0])))
    rows: list[list[str]] = []  # the table's row for each run
    missing: list[str] = []  # sentences about missing files
    trees: list[str] = []  # lines about the trees of methods
    refused: list[str] = []  # why runs would be refused
    has_all_files = True
    for run in suite.runs:
        try:
            expected = preview(run.spec, bytes_per_s)
        except UserError as error:
            if len(suite.runs) == 1:
                raise
            refused.append(f"{run.name}: {error.message} {error.hint}")
            continue
        missing += [f"{run.name}: {sentence}" for sentence in expected.missing]
        trees += [f"{run.name}: {line}" for line in expected.trees]
        if expected.download_bytes or expected.has_more_files:
            has_all_files = False
        unknown_files = " + ?" if expected.has_more_files else ""
        rows.append(
            [
                run.name,
                str(expected.num_methods),
                number_text(expected.num_samples, "{:,.0f}"),
                number_text(expected.download_bytes, "{:.1f} GB", 1e9) + unknown_files,
                number_text(expected.memory_bytes, "{:.1f} GB", 1e9),
                time_text(seconds or expected.max_seconds),
            ]
        )
    headings = ["run", "methods", "answers", "download", "memory", "decoding"]
    note = f"Decoding: {EARLIER if seconds else _BOUND}."
    table = text_table(headings, rows, are_numbers=True)
    SafeConsole().print(suite.title, table, *trees, *missing, *refused, note, sep="\n")
    if refused:
        raise typer.Exit(UserError.exit_code)
    return has_all_files


def print_power(plan: Plan) -> None:
    """Print the work of a run, its engines' commands, and the differences that it could detect."""
    from specbench.measure.server.started_setup import StartedSetup

    counts = ", ".join(f"{task} {len(prompts)}" for task, prompts in plan.prompts.items())
    lines = [f"{plan.setup.title}: {', '.join(plan.setup.labels)}"]
    if plan.setup.no_checkpoint:
        lines.append(f"No checkpoint: {', '.join(plan.setup.no_checkpoint)}")
    lines.append(
        f"Prompts: {sum(map(len, plan.prompts.values()))} ({counts}); passes: {plan.repeats}; "
        f"at most {plan.max_new_tokens} tokens per answer; completions: {plan.num_records}"
    )
    if isinstance(plan.setup, StartedSetup):
        lines += [f"{label}: {shlex.join(words)}" for label, words in plan.setup.commands.items()]
    for line in (*lines, _power(plan)):
        say(line, is_error=False)


def _power(plan: Plan) -> str:
    """Return a sentence with the smallest difference that the run could detect.

    It is estimated from an earlier run of the model.
    """
    from specbench.analysis.metrics import measure
    from specbench.log.store import read_run
    from specbench.measure.earlier_runs import earlier_runs
    from specbench.measure.passes import has_interval, least_prompts
    from specbench.report.power import pilot_of

    num_prompts = [len(prompts) for prompts in plan.prompts.values()]
    if not has_interval(num_prompts):
        fewest = least_prompts(len(num_prompts))
        return f"Too few prompts to show a difference: use --limit {fewest}, or more prompts."
    for path, _ in earlier_runs(plan, RUNS):
        # the variances of an earlier run, or None if it has too few samples
        if pilot := pilot_of(measure(read_run(path, is_lenient=True))):
            smallest = pilot.smallest(sum(num_prompts), max(plan.repeats, 2))
            if smallest < 1:
                return f"It would show differences of {smallest * 100:.1f} % or more."
    return "No earlier run of this model shows which differences the new run could find."
