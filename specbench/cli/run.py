"""`specbench run`: measure methods on tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli.interrupts import resumable
from specbench.cli.options import (
    REPORTS,
    RUNS,
    Device,
    Full,
    Offline,
    Sort,
    Template,
    Threads,
    Weights,
    given,
    num_threads,
    numbers,
    quiet_libraries,
    split,
    temperatures,
    words,
)
from specbench.cli.ray_option import Ray
from specbench.cli.run_options import (
    Apart,
    Baseline,
    CheckDrafts,
    Dataset,
    DryRun,
    Dtype,
    Execution,
    Force,
    History,
    Limit,
    LogJson,
    MaxNewTokens,
    Method,
    Model,
    Output,
    PadTo,
    Phases,
    Prompts,
    Quantize,
    Quiet,
    Repeats,
    Resume,
    Runs,
    Sample,
    Seed,
    Task,
    Temperature,
    TopK,
    TopP,
    Trace,
    UntilCi,
)
from specbench.cli.server_options import (
    Backend,
    Concurrency,
    Engine,
    EngineArgs,
    EngineCommand,
    Goodput,
    Label,
    RequestRate,
    RequestTimeout,
    ServedModel,
    Url,
)
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.cli.progress import ProgressView
    from specbench.log.run import Run
    from specbench.measure.spec import RunSpec
    from specbench.report.results import Sort as SortName
    from specbench.types import Record


def run(
    context: typer.Context,
    method: Method = None,
    model: Model = "tiny",
    dataset: Dataset = None,
    prompts: Prompts = "auto",
    pad_to: PadTo = None,
    task: Task = None,
    limit: Limit = None,
    sample: Sample = None,
    temperature: Temperature = None,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    max_new_tokens: MaxNewTokens = None,
    repeats: Repeats = None,
    runs: Runs = 1,
    apart: Apart = 0.0,
    until_ci: UntilCi = "",
    dry_run: DryRun = False,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = "",
    weights: Weights = "hub",
    template: Template = "auto",
    history: History = "shared",
    baseline: Baseline = True,
    output: Output = None,
    resume: Resume = False,
    force: Force = False,
    offline: Offline = False,
    execution: Execution = "auto",
    trace: Trace = False,
    check_drafts: CheckDrafts = False,
    phases: Phases = False,
    ray: Ray = "",
    backend: Backend = "engine",
    engine: Engine = "",
    engine_command: EngineCommand = "",
    engine_args: EngineArgs = "",
    url: Url = None,
    label: Label = None,
    served_model: ServedModel = "",
    concurrency: Concurrency = None,
    request_rate: RequestRate = None,
    goodput: Goodput = "",
    request_timeout: RequestTimeout = None,
    full: Full = False,
    sort: Sort = "paper",
    log_json: LogJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure methods on tasks; keep the run and its report."""
    from specbench.cli.dry_run import print_dry_run
    from specbench.cli.progress import progress_view
    from specbench.cli.runs import run_several
    from specbench.log.options import share
    from specbench.log.store import read_runs
    from specbench.measure.spec import RunSpec
    from specbench.report.results import check_sort

    spec = RunSpec(
        model=model,
        methods=tuple(part.strip() for part in method or () if part.strip()),
        tasks=(*split(dataset), *(task or ())),
        prompts=prompts,
        pad_to=numbers("--pad-to", pad_to, int),
        limit=limit,
        sample=sample,
        temperatures=temperatures(temperature),
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        until_ci=share("--until-ci", until_ci) if until_ci else None,
        seed=seed,
        device=device,
        threads=num_threads(threads),
        dtype=dtype,
        quantize=quantize,
        template=template,
        history=history,  # type: ignore[arg-type]  # RunSpec checks it
        is_baseline_run=baseline,
        phases=phases,
        weights=weights,
        execution=execution,
        trace=trace,
        check_drafts=check_drafts,
        backend="server" if engine else "" if backend == "engine" else backend,
        serving_engine=engine,
        engine_command=words("--engine-command", engine_command),
        engine_args=words("--engine-args", engine_args),
        urls=split(url),
        labels=split(label),
        served_model=served_model,
        concurrency=numbers("--concurrency", concurrency, int),
        request_rates=numbers("--request-rate", request_rate, float),
        goodput=goodput,
        request_timeout_s=request_timeout,
    )
    order = check_sort(sort)
    view = progress_view(is_quiet=quiet, is_json=log_json)
    if dry_run:
        print_dry_run(spec, is_offline=offline)
        raise typer.Exit
    if runs > 1:
        _refuse_ray(ray, runs)
        folder = run_several(runs, spec, output, apart_s=apart, view=view)
        pooled = read_runs(folder)
        _report(pooled, folder, REPORTS / folder.name, order, view, is_full=full)
        raise typer.Exit(0 if all(record.is_ok for record in pooled.records) else 1)
    records = _run(
        spec,
        output,
        resume,
        given=given(context),
        is_forced=force,
        is_offline=offline,
        is_full=full,
        sort=order,
        ray=ray,
        view=view,
    )
    raise typer.Exit(0 if all(record.is_ok for record in records) else 1)


def _run(
    spec: RunSpec,
    output: Path | None,
    is_resumed: bool,
    *,
    given: Sequence[str],
    is_forced: bool,
    is_offline: bool,
    is_full: bool,
    sort: SortName,
    ray: str,
    view: ProgressView,
) -> Sequence[Record]:
    from specbench.measure.folder import claim_folder, new_run, resumed_run
    from specbench.measure.plan import make_plan, setup_maker
    from specbench.measure.session import run_plan

    choose = resumed_run if is_resumed else new_run
    path, spec, given = choose(spec, given, output, RUNS)
    if is_resumed:
        view.message(f"Continuing the run in {path}")
    quiet_libraries()
    arguments = sys.argv[1:]
    with setup_maker(ray) as maker:
        plan = make_plan(spec, is_offline=is_offline, setup_maker=maker)
        path = path if output or is_resumed else claim_folder(path)
        with resumable(path, "--output", arguments), view:
            stored = run_plan(plan, path, view, given=given, command=arguments, is_forced=is_forced)
    _report(
        stored,
        path,
        path / "report" if output else REPORTS / path.name,
        sort,
        view,
        is_full=is_full,
    )
    return stored.records


def _refuse_ray(ray: str, runs: int) -> None:
    """Refuse a cluster for whole runs: each is a process of its own on this machine."""
    if ray:
        raise UserError(
            f"--runs {runs} makes each run in a process of this machine, and --ray on others.",
            "Use --repeats with --ray.",
        )


def _report(
    run: Run, path: Path, folder: Path, sort: SortName, view: ProgressView, *, is_full: bool
) -> None:
    """Print the report of a run, or of a pool, and write it to `folder`."""
    from specbench.report.build import make_report
    from specbench.report.export.terminal import print_report
    from specbench.report.files import write_report

    report = make_report(run, sort=sort)
    print_report(report, is_full=is_full)
    write_report(report, folder)
    view.saved(path, folder)
