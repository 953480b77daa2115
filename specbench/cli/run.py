"""`specbench run`: measure methods on tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import complete
from specbench.cli.interrupts import resumable
from specbench.cli.options import (
    REPORTS,
    RUNS,
    Device,
    Full,
    Many,
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

if TYPE_CHECKING:
    from specbench.cli.progress import ProgressView
    from specbench.report.results import Sort as SortName
    from specbench.run.spec import RunSpec
    from specbench.types import Record


Method = Annotated[
    Many,
    typer.Option(
        metavar="METHOD,...",
        help="Methods, such as pld,sps:num_tokens=4 [default: papers and plug-ins; or: all]",
        autocompletion=complete.methods,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="A known model, a folder or a Hub id.",
        autocompletion=complete.models,
    ),
]
Dataset = Annotated[
    Many,
    typer.Option(
        metavar="TASK,...",
        help="Tasks [default: the six of the papers]",
        autocompletion=complete.datasets,
    ),
]
Prompts = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        autocompletion=complete.choice("bundled", "paper", "hub"),
        help="bundled, paper, hub, or a JSONL file [default: bundled for tiny and stand-ins, "
        "else paper]",
        show_default=False,
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Use the first N prompts of a task.")]
Sample = Annotated[
    int | None, typer.Option(metavar="N", help="Use N prompts of a task, drawn with the seed.")
]
Task = Annotated[Many, typer.Option(metavar="FILE.toml", help="Card of a task of your own.")]
Temperature = Annotated[
    Many, typer.Option(metavar="T,...", help="0 is greedy; several values are all run [default: 0]")
]
TopP = Annotated[float, typer.Option(metavar="P", help="Nucleus sampling at T > 0.")]
TopK = Annotated[
    int, typer.Option(metavar="K", help="Sample among the K likeliest tokens; 0: off.")
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Tokens per answer [default: 128 for tiny and stand-ins, else 512]"
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Passes over all prompts [default: 3 for tiny and stand-ins, else 1]"
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of every random draw.")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="auto, float32, bfloat16 or float16.")]
Quantize = Annotated[
    str, typer.Option(metavar="FORMAT", help="int8 or int4: quantise the weights (torchao).")
]
History = Annotated[
    str,
    typer.Option(
        metavar="KIND", help="Earlier answers in a chat: vanilla's (shared) or the method's own."
    ),
]
Baseline = Annotated[bool, typer.Option(help="Run vanilla too, for speedups.")]
Output = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")]
Force = Annotated[
    bool, typer.Option("--force", help="Resume on another machine or with other versions.")
]
Execution = Annotated[
    str, typer.Option(metavar="MODE", help="auto, eager, or graph: replay CUDA graphs.")
]
Trace = Annotated[bool, typer.Option("--trace", help="Keep the draft's confidence in every node.")]
CheckDrafts = Annotated[
    bool, typer.Option("--check-drafts", help="Check every draft and verdict against the contract.")
]
Backend = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="engine: in this process; server: over HTTP.",
        autocompletion=complete.choice("engine", "server"),
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Start this engine as the server of each method: vllm, sglang or llamacpp.",
        autocompletion=complete.choice("vllm", "sglang", "llamacpp"),
    ),
]
EngineCommand = Annotated[
    str, typer.Option(metavar="COMMAND", help="The engine's command, if it is not on the PATH.")
]
EngineArgs = Annotated[
    str, typer.Option(metavar="ARGS", help="More arguments for the engine, in quotes.")
]
Url = Annotated[
    Many, typer.Option(metavar="URL", help="Address of a running server; one for each --label.")
]
Label = Annotated[
    Many, typer.Option(metavar="NAME", help="Method of the server at --url; vanilla: the baseline.")
]
ServedModel = Annotated[
    str, typer.Option(metavar="NAME", help="The model's name at the server, if it differs.")
]
Concurrency = Annotated[
    Many, typer.Option(metavar="N,...", help="Requests that a server gets at once [default: 1]")
]
RequestRate = Annotated[
    Many, typer.Option(metavar="R,...", help="Requests per second to a server, at random times.")
]
Goodput = Annotated[
    str, typer.Option(metavar="LIMITS", help="Limits in ms of a good request: ttft:500,tpot:50")
]
RequestTimeout = Annotated[
    float | None, typer.Option(metavar="S", help="Time limit of a request [default: 600]")
]
Phases = Annotated[
    bool, typer.Option("--phases", help="Time the phases of a step; reports no speedup.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Write progress as JSON, one event per line.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the table only.")]


def run(
    context: typer.Context,
    method: Method = None,
    model: Model = "tiny",
    dataset: Dataset = None,
    prompts: Prompts = "auto",
    task: Task = None,
    limit: Limit = None,
    sample: Sample = None,
    temperature: Temperature = None,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    max_new_tokens: MaxNewTokens = None,
    repeats: Repeats = None,
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
    from specbench.cli.progress import progress_view
    from specbench.report.results import check_sort
    from specbench.run.spec import RunSpec

    spec = RunSpec(
        model=model,
        methods=tuple(part.strip() for part in method or () if part.strip()),
        tasks=(*split(dataset), *(task or ())),
        prompts=prompts,
        limit=limit,
        sample=sample,
        temperatures=temperatures(temperature),
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
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
    view = progress_view(is_quiet=quiet, is_json=log_json)
    records = _run(
        spec,
        output,
        resume,
        given=given(context),
        is_forced=force,
        is_offline=offline,
        is_full=full,
        sort=check_sort(sort),
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
    view: ProgressView,
) -> Sequence[Record]:
    from specbench.report.build import make_report
    from specbench.report.export.terminal import print_report
    from specbench.report.files import write_report
    from specbench.run.folder import claim_folder, new_run, resumed_run
    from specbench.run.plan import make_plan
    from specbench.run.session import run_plan

    choose = resumed_run if is_resumed else new_run
    path, spec, given = choose(spec, given, output, RUNS)
    if is_resumed:
        view.message(f"Continuing the run in {path}")
    quiet_libraries()
    plan = make_plan(spec, is_offline=is_offline)
    path = path if output or is_resumed else claim_folder(path)
    arguments = sys.argv[1:]
    with resumable(path, "--output", arguments), view:
        stored = run_plan(plan, path, view, given=given, command=arguments, is_forced=is_forced)
    report = make_report(stored, sort=sort)
    print_report(report, is_full=is_full)
    folder = path / "report" if output else REPORTS / path.name
    write_report(report, folder)
    view.saved(path, folder)
    return stored.records
