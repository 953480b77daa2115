"""The command line: options to values, values to the rooms that do the work, results to stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench.errors import SpecbenchError

RUNS, REPORTS = Path("results/runs"), Path("reports")

app = typer.Typer(
    name="specbench",
    help="How much faster is each speculative-decoding method, on which task, on this machine?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Many = list[str] | None


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Read by `main`, before any command runs."""


@app.command()
def run(
    context: typer.Context,
    method: Annotated[
        Many, typer.Option(help="Methods, e.g. pld,sps:num_tokens=4 [default: all there are]")
    ] = None,
    model: Annotated[str, typer.Option(help="A known model, a folder or a hub id.")] = "tiny",
    dataset: Annotated[Many, typer.Option(help="Tasks [default: the six of the papers]")] = None,
    prompts: Annotated[
        str, typer.Option(help="bundled, paper, hub, or a JSONL file of your own.")
    ] = "bundled",
    limit: Annotated[int | None, typer.Option(help="Only the first N prompts a task.")] = None,
    temperature: Annotated[
        Many, typer.Option(help="0 is greedy; several are all run [default: 0]")
    ] = None,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling at T > 0.")] = 1.0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Budget an answer [default: 128 for tiny and stand-ins, else 512]"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Passes over all prompts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of every draw.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    weights: Annotated[
        str, typer.Option(help="hub, or stand-in: tiny in the model's real shape, no download.")
    ] = "hub",
    template: Annotated[
        str, typer.Option(help="Chat template: auto, none, or the name of one.")
    ] = "auto",
    history: Annotated[
        str, typer.Option(help="What a second turn sees: the baseline's answer (shared) or own.")
    ] = "shared",
    baseline: Annotated[bool, typer.Option(help="Run vanilla too, for the speedups.")] = True,
    output: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an unfinished run.")] = False,
    offline: Annotated[bool, typer.Option(help="Use no network.")] = False,
    execution: Annotated[
        str, typer.Option(help="auto, eager, or graph: steps replayed as CUDA graphs.")
    ] = "auto",
    trace: Annotated[
        bool, typer.Option(help="Keep the draft's confidence in every node, for calibration.")
    ] = False,
    phases: Annotated[
        bool, typer.Option(help="Measure where a step's time goes; the run is then no speed test.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Print the table only.")] = False,
) -> None:
    """Measure methods on tasks, print the table, keep run and report."""
    from specbench.bench.plan import make_plan
    from specbench.bench.session import choose_folder, failures, run_plan
    from specbench.bench.spec import RunSpec
    from specbench.report.console import progress_view
    from specbench.report.render import print_report, write_report
    from specbench.report.source import make_report

    spec = RunSpec(
        model, _split(method), _split(dataset, ","), prompts, limit, _temperatures(temperature),
        top_p, max_new_tokens, repeats, seed, device, dtype, template,
        history, baseline,  # type: ignore[arg-type]  # checked by RunSpec
        phases=phases, weights=weights, execution=execution, trace=trace,
    )  # fmt: skip
    path, _ = choose_folder(spec, output, resume, RUNS)
    _quiet_libraries()
    plan = make_plan(spec, is_offline=offline)
    with progress_view(is_quiet=quiet) as progress:
        for absent in plan.setup.no_checkpoint:
            progress.message(f"{absent.label}: no checkpoint for {plan.setup.card.name}")
        stored = run_plan(plan, path, progress, _given(context), sys.argv[1:])
    made = make_report(stored)
    print_report(made)
    out_dir = path / "report" if output else REPORTS / path.name
    write_report(made, out_dir)
    if not quiet:
        typer.echo(f"Run: {path}\nReport: {out_dir}", err=True)
    raise typer.Exit(1 if failures(stored.records) else 0)


@app.command()
def report(
    run: Annotated[list[Path], typer.Argument(help="Run folders.")],
    format: Annotated[
        str, typer.Option(help="table, markdown, latex, csv, html or json.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="Write all forms and the plots there.")] = None,
    arithmetic: Annotated[
        str, typer.Option(help="ours, or paper: the ratio of mean tokens/s.")
    ] = "ours",
) -> None:
    """Print the table of finished runs, in one of several forms."""
    from specbench.analysis.metrics import check_arithmetic
    from specbench.bench.store import read_run
    from specbench.report import render
    from specbench.report.source import make_report

    formula, form = check_arithmetic(arithmetic), render.check_format(format)
    made = make_report([read_run(path) for path in run], arithmetic=formula)
    if form == "table":
        render.print_report(made)
    else:
        sys.stdout.write(render.render(made, form))
    if out is not None:
        for path in render.write_report(made, out):
            typer.echo(path, err=True)


@app.command()
def compare(
    run: Annotated[list[Path], typer.Argument(help="Run folders; the first is the reference.")],
    cross: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="METHOD METHOD", help="A method of the first run against one of the second."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare what is not comparable, marked so.")
    ] = False,
    format: Annotated[str, typer.Option(help="table, markdown, csv or json.")] = "table",
    out: Annotated[Path | None, typer.Option(help="Write all forms there.")] = None,
) -> None:
    """Hold runs, versions or GPUs side by side on the samples that they share."""
    from specbench.analysis.compare import compare_runs
    from specbench.bench.store import read_run
    from specbench.report.comparison_files import check_format, render_comparison, write_comparison
    from specbench.report.comparison_terminal import print_comparison

    form = check_format(format)
    comparisons = compare_runs([read_run(path) for path in run], cross, is_forced=force)
    if form == "table":
        print_comparison(comparisons)
    else:
        sys.stdout.write(render_comparison(comparisons, form))
    if out is not None:
        for path in write_comparison(comparisons, out):
            typer.echo(path, err=True)


@app.command()
def check(
    run: Annotated[Path, typer.Argument(help="The run folder to judge.")],
    baseline: Annotated[Path, typer.Option(help="The run folder that it must not fall behind.")],
    max_slowdown: Annotated[str, typer.Option(help="Of a method's time per token.")] = "5%",
    max_mat_drop: Annotated[str, typer.Option(help="Of a method's mean accepted tokens.")] = "2%",
    max_mismatch: Annotated[
        str | None,
        typer.Option(
            help="Greedy answers of a method that may cease to be vanilla's "
            "[default: none in float32, else what chance explains]"
        ),
    ] = None,
    speed: Annotated[
        str, typer.Option(help="Check speed on a matching machine, always or never.")
    ] = "matching",
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit XML file.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="GitHub annotations [default: on GitHub Actions]")
    ] = False,
) -> None:
    """The CI gate: fail if a run is slower or accepts less than its baseline run."""
    from specbench.analysis.gate import check as check_run
    from specbench.analysis.gate import parse_limits
    from specbench.bench.store import read_run
    from specbench.report.annotations import annotations
    from specbench.report.gate import print_gate
    from specbench.report.junit import write_junit

    limits = parse_limits(max_slowdown, max_mat_drop, max_mismatch, speed)
    gate = check_run(read_run(run), read_run(baseline), limits)
    print_gate(gate)
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        for line in annotations(gate):
            typer.echo(line)
    if junit is not None:
        write_junit(gate, junit)
    raise typer.Exit(0 if gate.is_passed else 1)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    dtype: Annotated[
        str | None, typer.Option(help="Run the steps that differ again in this: float32.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Draws per context at T > 0; 0 for none.")] = 100,
    offline: Annotated[bool, typer.Option(help="Use no network.")] = False,
) -> None:
    """Are a run's outputs lossless, and where not, why: numerics or a bug?"""
    from specbench.analysis.audit import audit as audit_run
    from specbench.analysis.header import read_header
    from specbench.bench.replay import Replay
    from specbench.bench.store import read_run
    from specbench.report.audit_table import print_audit
    from specbench.report.terminal import report_console

    stored = read_run(run)
    _quiet_libraries()
    found = audit_run(
        stored,
        lambda methods: Replay(stored, dtype=dtype, has_methods=methods, is_offline=offline),
        is_recheck=dtype is not None, num_seeds=seeds,
        say=lambda text: typer.echo(text, err=True),
    )  # fmt: skip
    print_audit(found, read_header(stored.header), report_console())
    raise typer.Exit(1 if found.has_bug else 0)


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, models, datasets or runs.")],
) -> None:
    """List what there is."""
    from specbench.report.listing import listing

    _print_table(listing(what, RUNS))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A method, model, dataset or run folder.")],
) -> None:
    """Show one method, model, dataset or run in full."""
    from specbench.report.listing import details

    for table in details(name):
        _print_table(table)


@app.command()
def doctor(
    model: Annotated[str, typer.Option(help="The model to check with.")] = "tiny",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    weights: Annotated[str, typer.Option(help="hub or stand-in.")] = "hub",
    offline: Annotated[bool, typer.Option(help="Use no network.")] = False,
) -> None:
    """Check this machine: what it can run, and whether our baseline is an honest one."""
    from specbench.bench.doctor import examine

    _quiet_libraries()
    is_sound = True
    for finding in examine(model, device, weights, is_offline=offline):
        mark = {True: "ok", False: "PROBLEM", None: "note"}[finding.is_ok]
        typer.echo(f"{mark:8}{finding.name}: {finding.text}")
        is_sound &= finding.is_ok is not False
    raise typer.Exit(0 if is_sound else 1)


@app.command()
def fetch(
    model: Annotated[str | None, typer.Option(help="A model with all its drafters.")] = None,
    dataset: Annotated[Many, typer.Option(help="Tasks whose paper prompts to fetch.")] = None,
) -> None:
    """Download the papers' prompts, or a model and its drafters, ahead of a run."""
    from specbench.bench.fetch import fetch as fetch_files

    tasks = _split(dataset, ",") or (() if model else None)
    is_complete = True
    for fetched in fetch_files(tasks, model):
        if fetched.error is None:
            typer.echo(f"{fetched.what}: {fetched.num_bytes / 1e6:.1f} MB")
        else:
            is_complete = False
            typer.echo(f"{fetched.error.message}\n{fetched.error.hint}", err=True)
    raise typer.Exit(0 if is_complete else 2)


@app.command()
def train(
    method: Annotated[
        str, typer.Argument(help="medusa, hydra, eagle (eagle2 runs on it too) or eagle3.")
    ],
    model: Annotated[str, typer.Option(help="The target: a known model, folder or hub id.")],
    data: Annotated[Path, typer.Option(help="JSONL of chats (turns, reference) or of text.")],
    out: Annotated[Path, typer.Option(help="Where the head goes, in the official format.")],
    steps: Annotated[int, typer.Option(help="Training steps.")] = 2000,
    rows: Annotated[int, typer.Option(help="Examples a step.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens an example is cut at.")] = 1024,
    seed: Annotated[int, typer.Option(help="Of initial weights and of the order.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    template: Annotated[str, typer.Option(help="Chat template: auto, none or a name.")] = "auto",
    resume: Annotated[bool, typer.Option(help="Go on with a stopped training.")] = False,
    offline: Annotated[bool, typer.Option(help="Use no network.")] = False,
) -> None:
    """Train a method's head for a model that has none."""
    from specbench.bench.hub import resolve_model
    from specbench.bench.models import find_model
    from specbench.bench.plan import pick_device
    from specbench.bench.templates import load_codec
    from specbench.zoo.heads.command import Settings, check_method, train_head

    check_method(method)
    card = find_model(model)
    path = resolve_model(card, offline=offline)
    _quiet_libraries()
    train_head(
        method, path, data, out, load_codec(path, card, template),
        settings=Settings(num_steps=steps, num_rows=rows, length=length, seed=seed),
        device=pick_device(device).name, is_resumed=resume,
        say=lambda text: typer.echo(text, err=True),
    )  # fmt: skip
    typer.echo(f"Head: {out}")


def main() -> None:
    """The console script: errors are one message and an exit code, never a traceback."""
    is_debug = "--debug" in sys.argv
    try:
        app()
    except SpecbenchError as error:
        if is_debug:
            raise
        typer.echo(f"Error: {error.message}", err=True)
        if error.hint:
            typer.echo(error.hint, err=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("Interrupted. Go on with --resume.", err=True)
        raise SystemExit(130) from None


def _split(values: Many, separator: str | None = None) -> tuple[str, ...]:
    parts = [part for value in values or () for part in value.split(separator or "\0")]
    return tuple(part.strip() for part in parts if part.strip())


def _temperatures(values: Many) -> tuple[float, ...]:
    from specbench.errors import UserError

    try:
        return tuple(dict.fromkeys(float(text) for text in _split(values, ","))) or (0.0,)
    except ValueError as error:
        raise UserError(f"--temperature: {error}.", "Give numbers, such as 0 or 0,1.") from error


def _given(context: typer.Context) -> list[str]:
    """The options that the user wrote, as opposed to defaults."""
    return [
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]


def _quiet_libraries() -> None:
    """Keep the libraries' own progress bars and advice out of ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _print_table(table: tuple[str, list[list[str]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    title, (headings, *rows) = table
    shown = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        shown.add_column(heading, no_wrap=place == 0, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
