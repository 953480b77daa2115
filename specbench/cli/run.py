"""`specbench run` and `specbench suite`: make one run, or several with one report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.interrupts import resumable
from specbench.cli.options import REPORTS, Call, quiet_libraries, takes
from specbench.engine.garbage import lasting_objects, no_garbage_collection
from specbench.errors import UserError
from specbench.log.options import options
from specbench.log.spec import SpecValues
from specbench.types import RUNS

if TYPE_CHECKING:
    from specbench.cli.progress import ProgressView
    from specbench.log.run import Run
    from specbench.measure.spec import RunSpec
    from specbench.measure.suite.recipe import Suite
    from specbench.measure.suite.runs import SuiteResult


FIRST_LIMIT = 3
"""The prompts per task of a first look, which is a run without options."""
FIRST_PASSES = 1
"""The passes of a first look."""
_BEYOND_FIRST_LOOK = [
    option
    for option in (*options(SpecValues), *options(Call, "task"))
    if option.name not in ("settings", "device", "threads", "seed", "kernels")
]
"""Options that ask for more than a first look."""
SUITES = Path("results/suites")
"""The default folder of suites."""


@takes(*options(SpecValues), *options(Call))
def run(values: dict[str, Any], call: Call, given: Sequence[str]) -> None:
    """Measure methods on tasks; store the run and its report."""
    from specbench.cli.progress import progress_view
    from specbench.measure.spec import RunSpec, new_spec_values, starting

    if call.gguf:
        values["model"] = str(Path(values.get("model", "")) / call.gguf)
    values["tasks"] = (*values.get("tasks", ()), *call.task)
    if values.get("serving_engine") or values.get("urls"):
        values["backend"] = "server"
    if not call.thorough and not {*given} & {option.parameter for option in _BEYOND_FIRST_LOOK}:
        values |= {"limit": FIRST_LIMIT, "repeats": FIRST_PASSES, "is_first_look": True}
    spec = RunSpec(**new_spec_values(values))
    view = progress_view(is_quiet=call.quiet)
    if not call.resume:
        view.message(starting(spec))
    # the given options; --task adds to the datasets
    names = [*dict.fromkeys("dataset" if name == "task" else name for name in given)]
    if call.dry_run or call.runs > 1:
        stored = _several(spec, names, call, view)
    else:
        stored = _run(spec, call, view, given=names)
    raise typer.Exit(0 if all(record.is_ok for record in stored.records) else 1)


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
    """Measure all runs of a recipe; store them and one report."""
    from specbench.cli.progress import progress_view
    from specbench.measure.suite.recipe import read_recipe

    recipe_suite = read_recipe(recipe)
    if call.dry_run:
        from specbench.cli.dry_run import print_dry_run

        print_dry_run(recipe_suite)
        return
    quiet_libraries()
    folder = call.output or SUITES / recipe_suite.name
    view = progress_view(is_quiet=call.quiet)
    result = _run_suite(recipe_suite, folder, call, view)
    if result.runs:
        report_folder = call.output / "report" if call.output else REPORTS / recipe_suite.name
        _report(result.runs, folder, report_folder, call, view)
    for name, reason in result.failures.items():
        view.message(f"Failed: {name}: {reason}")
    is_ok = all(record.is_ok for run in result.runs for record in run.records)
    raise typer.Exit(0 if is_ok and not result.failures else 1)


def _several(spec: RunSpec, names: Sequence[str], call: Call, view: ProgressView) -> Run:
    """Make the runs `run-1`, `run-2` and so on, each in its own process, and report their pool.

    With `--resume`, unfinished runs are completed and missing runs are made. With `--dry-run`,
    print what the runs would do.

    Raises:
        UserError: a run failed, or the folder has runs and `--resume` is not given.
    """
    from specbench.log.folders import pooled_in
    from specbench.log.store import HEADER
    from specbench.measure.run_folder import claim_folder, new_run, resumed_run
    from specbench.measure.spec import AUTO
    from specbench.measure.suite.recipe import equal_runs

    if call.resume and call.output and (first := call.output / "run-1" / HEADER).exists():
        # The other runs have the first run's options. With `auto`, however, their `settings` is the
        # first run's folder, so `settings` is left out of the names.
        _, spec, given = resumed_run(spec, names, first.parent, RUNS)
        names = [name for name in given if name != "settings" or spec.settings != AUTO]
    suite_of_runs = equal_runs(spec, names, call.runs)
    if call.dry_run:
        from specbench.cli.dry_run import print_dry_run, print_power
        from specbench.measure.earlier_runs import expected_seconds
        from specbench.measure.plan import make_plan

        seconds = None  # the expected seconds per run, or None without an earlier run
        with suppress(UserError):  # errors of the spec are shown below
            seconds = expected_seconds(make_plan(spec, is_offline=True), RUNS)
        if print_dry_run(suite_of_runs, seconds):  # if files are missing, the power is unknown
            print_power(make_plan(spec, is_offline=call.offline))
        raise typer.Exit
    if call.ray:
        raise UserError(
            f"--runs {call.runs} makes each run in a process on this machine, not on a cluster.",
            "Use --repeats with --ray.",
        )
    if call.resume and call.output is None:
        raise UserError(
            "--resume of several runs needs their folder.", "Name it with --output DIR."
        )
    folder = call.output or claim_folder(new_run(suite_of_runs.runs[0].spec, (), None, RUNS).path)
    result = _run_suite(suite_of_runs, folder, call, view)
    if result.failures:
        name, reason = next(iter(result.failures.items()))
        raise UserError(
            f"The run {folder / name} failed: {reason}",
            "Fix the cause, then repeat the command with --output and --resume.",
        )
    pool = pooled_in(folder, result.runs)
    _report(pool, folder, REPORTS / folder.name, call, view)
    return pool


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
    """Make or resume one run, and report it. `given` are the names of the given options."""
    from specbench.measure.earlier_runs import EARLIER, expected_seconds
    from specbench.measure.elsewhere import setup_maker
    from specbench.measure.plan import make_plan
    from specbench.measure.run_folder import claim_folder, new_run, resumed_run
    from specbench.measure.session import run_plan

    prepare_run = resumed_run if call.resume else new_run
    path, spec, given = prepare_run(spec, given, call.output, RUNS)
    if call.resume:
        view.message(f"Continuing the run in {path}")
    elif call.retry_failed:
        raise UserError(
            "--retry-failed needs a run to resume.",
            "Add --resume --output DIR.",
        )
    words = sys.argv[1:]
    quiet_libraries()
    with setup_maker(call.ray) as maker:
        with lasting_objects():
            plan = make_plan(spec, is_offline=call.offline, setup_maker=maker)
        if not call.resume and (seconds := expected_seconds(plan, RUNS)):
            view.expected(seconds, EARLIER)
        path = path if call.output or call.resume else claim_folder(path)
        with resumable(path, "--output", words), view:
            stored = run_plan(
                plan,
                path,
                view,
                given=given,
                command=words,
                is_forced=call.force,
                repeats_failed=call.retry_failed,
            )
    folder = path / "report" if call.output else REPORTS / path.name
    _report(stored, path, folder, call, view)
    sources = {  # where settings come from, if they were chosen for the user
        method.settings.source for method in stored.header.methods.values() if method.settings
    }
    if sources & {"auto", "cut"}:
        view.message(f"Draft sizes were chosen on this machine. To reuse them: --settings {path}")
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
