"""Commands for finished runs: `specbench report`, `compare`, `site` and `merge`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import Call, RunArguments, completing, say, takes, write_data
from specbench.engine.garbage import no_garbage_collection
from specbench.errors import UserError
from specbench.log.options import options
from specbench.report.export import FORMATS, load_format

FormatName = Annotated[
    str,
    typer.Option(
        metavar="FORMAT", help=f"{', '.join(FORMATS)}.", autocompletion=completing(lambda: FORMATS)
    ),
]
ReportFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for all formats and for the plots, also as PDF."),
]
Columns = Annotated[
    str,
    typer.Option(
        metavar="speedup,mat,mean",
        help="In LaTeX: columns to show (speedup and MAT per task, and means); default: all.",
    ),
]
Ours = Annotated[
    list[str] | None, typer.Option(metavar="METHOD", help="In LaTeX: mark this method as ours.")
]
Arithmetic = Annotated[
    str,
    typer.Option(metavar="KIND", help="Kind of speedup: ours, or paper (ratio of mean tokens/s)."),
]
Pool = Annotated[bool, typer.Option("--pool", help="Pool the runs as repetitions of one run.")]
Lenient = Annotated[
    bool, typer.Option("--lenient", help="Leave out lines that no run can have written.")
]
Plan = Annotated[
    bool,
    typer.Option(
        "--plan", help="Print only how many prompts, passes and runs would show a difference."
    ),
]


@takes(*options(Call, "full", "sort"))
def report(
    run: RunArguments,
    call: Call,
    format: FormatName = FORMATS[0],
    out: ReportFolder = None,
    columns: Columns = "",
    ours: Ours = None,
    arithmetic: Arithmetic = "ours",
    pool: Pool = False,
    lenient: Lenient = False,
    plan: Plan = False,
) -> None:
    """Print the table of finished runs, in any format."""
    from specbench.analysis.metrics import check_arithmetic
    from specbench.log.folders import read_runs, readable_runs
    from specbench.log.run import Run
    from specbench.report.build import for_paper, make_report, parse_columns, write_report
    from specbench.report.export.terminal import print_report

    if plan:
        _print_plan(run)
        return
    if (columns or ours) and format != "latex" and out is None:
        flag = "--columns" if columns else "--ours"
        raise UserError(f"{flag} is for the table in LaTeX.", "Add --format latex or --out DIR.")
    chosen_columns = parse_columns(columns)
    if len(run) > 1:
        say(f"{len(run)} runs in one report: {', '.join(path.name for path in run)}")
    formula = check_arithmetic(arithmetic)
    exporter = load_format(format)
    with no_garbage_collection():  # with a million records, a garbage collection takes seconds
        read = partial(read_runs, is_lenient=lenient)
        stored = [Run.pooled([*map(read, run)])] if pool else readable_runs(run, read, say)
        content = make_report(stored, arithmetic=formula, sort=call.sort)
    content = for_paper(content, chosen_columns, ours or ())
    if format == FORMATS[0]:
        print_report(content, is_full=call.full)
    else:
        write_data(exporter.render(content))
    if out is not None:
        for path in write_report(content, out, has_pdf=True):
            say(str(path))


def _print_plan(runs: Sequence[Path]) -> None:
    """Print how many prompts and passes would show a difference, for each run."""
    from specbench.analysis.metrics import measure
    from specbench.log.folders import read_runs
    from specbench.report.power import power_lines

    for path in runs:
        typer.echo("\n".join(power_lines(path.name, measure(read_runs(path)))))


Cross = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="METHOD METHOD",
        help="Compare a method of the first run with one of the second, or of the same run.",
    ),
]


def compare(
    run: RunArguments,
    cross: Cross = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs of different work; the table says so.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Explain one run's speedups, or two runs' ratios, as products of factors.",
        ),
    ] = False,
    load: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="N N", help="With --explain: requests at once in each run."),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="table, markdown, csv or json; --explain: also html."
        ),
    ] = "table",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for all formats.")] = None,
) -> None:
    """Compare runs, versions or GPUs on the samples that they share.

    The first run is the reference. With --explain, the ratio is first / second instead. A folder
    of several runs, as made by `run --runs`, counts as one run. A cell of a published table can
    replace a run: TABLE:model/method/task[,temperature=0,load=8].
    """
    if explain:
        _explain(run, cross, load, format, out)
        return
    if load:
        raise UserError("--load is for --explain.", "Add --explain.")
    from specbench.judge import comparison_formats
    from specbench.judge.comparison import compare_runs
    from specbench.judge.published_cells import is_cell
    from specbench.log.folders import read_runs

    comparison_formats.check_format(format)
    if any(is_cell(str(path)) for path in run):
        _compare_cells(run, cross, format)
        return
    comparisons = compare_runs([read_runs(path) for path in run], cross, is_forced=force)
    if format == "table":
        comparison_formats.print_comparison(comparisons)
    else:
        write_data(comparison_formats.render_comparison(comparisons, format))
    if out is not None:
        for path in comparison_formats.write_comparison(comparisons, out):
            say(str(path))


def _compare_cells(
    paths: Sequence[Path], methods: tuple[str, str] | None, format_name: str
) -> None:
    """Compare cells of published tables, or such a cell with a run."""
    from specbench.judge.printer import print_page
    from specbench.judge.published_cells import cells_json, cells_page, compare_cells

    sides = compare_cells([str(path) for path in paths], methods)
    if format_name == "json":
        write_data(cells_json(sides))
    else:
        print_page(cells_page(sides))


def _explain(
    paths: Sequence[Path],
    methods: tuple[str, str] | None,
    concurrencies: tuple[int, int] | None,
    form: str,
    out: Path | None,
) -> None:
    """Print and write the explanation of one or two runs, or of cells of published tables."""
    from specbench.judge import explanation_formats as formats
    from specbench.judge.comparison_formats import check_format
    from specbench.judge.explained_cells import explain_cells
    from specbench.judge.explanation import explain_runs
    from specbench.judge.published_cells import is_cell
    from specbench.log.folders import read_runs
    from specbench.log.run import Load

    check_format(form, formats.FORMATS)
    if len(paths) > 2:
        raise UserError(f"--explain explains one or two runs, not {len(paths)}.", "Name two.")
    loads = None
    if concurrencies:
        loads = (Load(concurrency=concurrencies[0]), Load(concurrency=concurrencies[1]))
    if any(is_cell(str(path)) for path in paths):
        if loads:
            raise UserError("--load is for runs.", "Name a cell's load in the cell: ...,load=8.")
        document = explain_cells([str(path) for path in paths], methods)
    else:
        subject, *others = map(read_runs, paths)
        reference = others[0] if others else None
        explanations = explain_runs(subject, reference, methods, loads)
        document = formats.explained_document(explanations)
    if form == "table":
        formats.print_explanation(document)
    else:
        write_data(formats.render_explanation(document, form))
    if out is not None:
        for path in formats.write_explanation(document, out):
            say(str(path))


def site(
    run: RunArguments,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the page and its files.")],
) -> None:
    """Write a web page about many runs, with filters and published numbers."""
    from specbench.judge.page import write_site

    write_site(run, out, say=say)
    say(str(out / "index.html"))


def merge(
    run: RunArguments,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the merged run.")],
) -> None:
    """Join runs of the same work, made at different times or on different machines."""
    from specbench.log.merge import merged, write_run
    from specbench.log.store import read_run

    joined = merged([read_run(path) for path in run])
    write_run(joined, out)
    say(f"{out}: {len(joined.records)} records of {len(joined.header.origins)} runs")
