"""`specbench run` and `specbench suite`: one run, or several with one report; and with
`--dry-run`, what runs would take and do, and what they could show.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.interrupts import resumable
from specbench.cli.options import REPORTS, RUNS, Call, quiet_libraries, say, takes
from specbench.engine.garbage import lasting_objects, no_garbage_collection
from specbench.errors import UserError
from specbench.log.options import options
from specbench.log.spec import SpecValues
from specbench.measure.progress import LONG_S, number_text, time_text

if TYPE_CHECKING:
    from specbench.cli.progress import ProgressView
    from specbench.log.run import Run
    from specbench.measure.base import Plan
    from specbench.measure.spec import RunSpec
    from specbench.measure.suite.recipe import Suite
    from specbench.measure.suite.runs import SuiteResult


FIRST_LIMIT, FIRST_PASSES = 3, 1
"""Prompts of a task and passes of a first look, which a command without options gives."""
_ASKING = [
    one
    for one in (*options(SpecValues), *options(Call, "task"))
    if one.name not in ("settings", "device", "threads", "seed", "kernels")
]
"""Options that ask for more than a first look."""
SUITES = Path("results/suites")
"""Default folder of suites."""


@takes(*options(SpecValues), *options(Call))
def run(values: dict[str, Any], call: Call, given: Sequence[str]) -> None:
    """Measure methods on tasks; keep the run and its report."""
    from specbench.cli.progress import progress_view
    from specbench.measure.spec import AUTO, PAPER, RunSpec, starting

    if call.gguf:
        values["model"] = str(Path(values.get("model", "")) / call.gguf)
    values["tasks"] = (*values.get("tasks", ()), *call.task)
    if values.get("serving_engine") or values.get("urls"):
        values["backend"] = "server"
    if not call.thorough and not {*given} & {one.parameter for one in _ASKING}:
        values |= {"limit": FIRST_LIMIT, "repeats": FIRST_PASSES, "is_first_look": True}
    settings = PAPER if values.get("backend") else AUTO
    spec = RunSpec(**{"repeats": None, "settings": settings} | values)
    view = progress_view(is_quiet=call.quiet)
    if not call.resume:
        view.message(starting(spec))
    names = [*dict.fromkeys("dataset" if name == "task" else name for name in given)]
    if call.dry_run or call.runs > 1:
        done = _several(spec, names, call, view)
    else:
        done = _run(spec, call, view, given=names)
    raise typer.Exit(0 if all(record.is_ok for record in done.records) else 1)


@takes(
    *options(
        Call, "output", "resume", "force", "offline", "dry_run", "ray", "full", "sort", "quiet"
    )
)
def suite(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE.toml", help="The runs: see docs/suites.md.")
    ],
    call: Call,
) -> None:
    """Measure all runs of a recipe; keep them and one report."""
    from specbench.cli.progress import progress_view
    from specbench.measure.suite.recipe import read_recipe

    chosen = read_recipe(recipe)
    if call.dry_run:
        _print_dry_run(chosen)
        return
    quiet_libraries()
    folder = call.output or SUITES / chosen.name
    view = progress_view(is_quiet=call.quiet)
    result = _run_suite(chosen, folder, call, view)
    if result.runs:
        place = call.output / "report" if call.output else REPORTS / chosen.name
        _report(result.runs, folder, place, call, view)
    for name, reason in result.failures.items():
        view.message(f"Failed: {name}: {reason}")
    is_ok = all(record.is_ok for run in result.runs for record in run.records)
    raise typer.Exit(0 if is_ok and not result.failures else 1)


def _several(spec: RunSpec, names: Sequence[str], call: Call, view: ProgressView) -> Run:
    """The runs `run-1`, `run-2`, ..., each in its own process, and the report of their pool.

    With `--resume`, runs that are there are completed, and the others made. With `--dry-run`,
    print what they would do.

    Raises:
        UserError: a run failed, or the folder has runs and `--resume` is not given.
    """
    from specbench.log.folders import pooled_in
    from specbench.log.store import HEADER
    from specbench.measure.run_folder import claim_folder, new_run, resumed_run
    from specbench.measure.spec import AUTO
    from specbench.measure.suite.recipe import equal_runs

    if call.resume and call.output and (first := call.output / "run-1" / HEADER).exists():
        # The others are as it is. Settings that it chose are named by its folder there.
        _, spec, found = resumed_run(spec, names, first.parent, RUNS)
        names = [name for name in found if name != "settings" or spec.settings != AUTO]
    several = equal_runs(spec, names, call.runs)
    if call.dry_run:
        if _print_dry_run(several):  # else it is not known what it could show: files are missing
            _print_power(spec, is_offline=call.offline)
        raise typer.Exit
    if call.ray:
        raise UserError(
            f"--runs {call.runs} makes each run in a process of this machine, and --ray on others.",
            "Use --repeats with --ray.",
        )
    if call.resume and call.output is None:
        raise UserError(
            "--resume of several runs needs their folder.", "Name it with --output DIR."
        )
    folder = call.output or claim_folder(new_run(several.runs[0].spec, (), None, RUNS).path)
    result = _run_suite(several, folder, call, view)
    for name, reason in result.failures.items():
        raise UserError(
            f"The run {folder / name} failed: {reason}",
            "Repair the cause, then repeat the command with --output and --resume.",
        )
    done = pooled_in(folder, result.runs)
    _report(done, folder, REPORTS / folder.name, call, view)
    return done


def _run_suite(suite: Suite, folder: Path, call: Call, view: ProgressView) -> SuiteResult:
    """Make the runs that the folder lacks."""
    from specbench.measure.elsewhere import setup_maker
    from specbench.measure.suite.runs import run_suite

    words = sys.argv[1:]
    with resumable(folder, "--output", words), setup_maker(call.ray) as maker, view:
        return run_suite(
            suite,
            folder,
            view,
            command=words,
            is_resumed=call.resume,
            is_forced=call.force,
            is_offline=call.offline,
            setup_maker=maker,
        )


def _run(spec: RunSpec, call: Call, view: ProgressView, *, given: Sequence[str]) -> Run:
    from specbench.measure.earlier_runs import expected_seconds
    from specbench.measure.elsewhere import setup_maker
    from specbench.measure.plan import make_plan
    from specbench.measure.run_folder import claim_folder, new_run, resumed_run
    from specbench.measure.session import run_plan

    choose = resumed_run if call.resume else new_run
    path, spec, given = choose(spec, given, call.output, RUNS)
    if call.resume:
        view.message(f"Continuing the run in {path}")
    words = sys.argv[1:]
    quiet_libraries()
    with setup_maker(call.ray) as maker:
        with lasting_objects():
            plan = make_plan(spec, is_offline=call.offline, setup_maker=maker)
        seconds = expected_seconds(plan, RUNS)
        if seconds and seconds > LONG_S and not call.resume:
            view.message(_estimate(seconds))
        path = path if call.output or call.resume else claim_folder(path)
        with resumable(path, "--output", words), view:
            stored = run_plan(plan, path, view, given=given, command=words, is_forced=call.force)
    folder = path / "report" if call.output else REPORTS / path.name
    _report(stored, path, folder, call, view)
    return stored


def _report(
    runs: Run | Sequence[Run], path: Path, folder: Path, call: Call, view: ProgressView
) -> None:
    """Print the report of runs, or of a pool, in `path`, and write it to `folder`."""
    from specbench.report.build import make_report, write_report
    from specbench.report.export.terminal import print_report

    with no_garbage_collection():
        report = make_report(runs, sort=call.sort)
        print_report(report, is_full=call.full)
        write_report(report, folder)
    view.message(f"Run: {path}\nReport: {folder}/report.html")
    view.message(f"All numbers: specbench report {path} --full")


def _print_dry_run(suite: Suite) -> bool:
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


def _print_power(spec: RunSpec, *, is_offline: bool) -> None:
    """Print what a run would do, about how long it would take, and what it could show."""
    from specbench.measure.earlier_runs import expected_seconds
    from specbench.measure.plan import make_plan

    made = make_plan(spec, is_offline=is_offline)
    counts = ", ".join(f"{task} {len(prompts)}" for task, prompts in made.prompts.items())
    lines = [f"{made.setup.title}: {', '.join(made.setup.labels)}"]
    if made.setup.no_checkpoint:
        lines.append(f"No checkpoint: {', '.join(made.setup.no_checkpoint)}")
    lines.append(
        f"Prompts: {sum(map(len, made.prompts.values()))} ({counts}); passes: {made.repeats}; "
        f"at most {made.max_new_tokens} tokens per answer; completions: {made.num_records}"
    )
    if seconds := expected_seconds(made, RUNS):
        lines.append(_estimate(seconds))
    for line in (*lines, _power(made)):
        say(line, is_error=False)


def _estimate(seconds: float) -> str:
    return f"Estimated time: {time_text(seconds)}, from the latest run of this model."


def _power(plan: Plan) -> str:
    """The smallest difference that a run could show, by the newest run that can tell."""
    from specbench.analysis.metrics import measure
    from specbench.log.store import read_run
    from specbench.measure.earlier_runs import earlier_runs
    from specbench.measure.passes import has_interval, least_prompts
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
