"""`specbench convert`: turn other tools' result files into a run."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.options import quiet_libraries, say
from specbench.errors import reading, terminal_text
from specbench.log.run import Run

if TYPE_CHECKING:
    from specbench.log.exchange.tables import ImportedTable


ResultFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="[LABEL=]FILE", help="Result files; files with the same label are passes."
    ),
]
WrittenForm = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        help="Write runs as eagle, spec-bench, vllm or aiperf, or publishers' numbers as table.",
    ),
]


def convert(
    file: ResultFiles,
    out: Annotated[Path, typer.Option(metavar="RUN", help="Folder of the run.")],
    baseline: Annotated[
        str, typer.Option(metavar="LABEL", help="The label of plain decoding; vanilla by default.")
    ] = "",
    model: Annotated[str, typer.Option(metavar="M", help="The model, for titles.")] = "",
    task: Annotated[str, typer.Option(metavar="T", help="The task that was answered.")] = "",
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, help="The temperature, if the files lack it."),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option("--map", metavar="FILE.toml", help="Mapping for files in no known format."),
    ] = None,
    to: WrittenForm = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Tokenizer to recount the tokens of texts."),
    ] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="Address of the files.")] = "",
) -> None:
    """Read result files of other tools into a run, and print their publishers' numbers first.

    With --to, write runs as a folder of result files, one per method and pass.
    Files with totals but no answers become a published table, RUN.toml and RUN.csv. --to table
    writes the publishers' numbers of imported runs as such a table.

    A file's format is recognised by its content. docs/convert.md has the formats.
    """
    from specbench.log.exchange.convert import UserFacts, convert, parse_file
    from specbench.log.exchange.mapping import read_mapping
    from specbench.log.exchange.source import read_source
    from specbench.log.exchange.tables import read_table, table_mapping
    from specbench.log.merge import write_run

    if to:
        _write_files(file, to, out)
        return
    given_mapping = read_mapping(mapping) if mapping else None
    files = [parse_file(text) for text in file]
    sources = [read_source(labelled.path) for labelled in files]
    if mapping_of_table := table_mapping(sources[0], given_mapping):  # the files have totals
        _write_table(read_table(sources, mapping_of_table), out, url)
        return
    facts = UserFacts(
        baseline=baseline,
        model=model,
        task=task,
        temperature=temperature,
        tokenizer=str(tokenizer or ""),
        count_tokens=_counter(tokenizer) if tokenizer else None,
        url=url,
        mapping=given_mapping,
    )
    run = convert(files, facts, sys.argv[1:], sources)
    write_run(run, out)
    _print_figures(run)
    say(f"{out}: {len(run.records)} answers of {len(run.header.methods)} methods")


def _write_files(runs: Sequence[str], form: str, out: Path) -> None:
    """Write the runs in these folders in another tool's format, or as a published table."""
    from specbench.log.exchange.tables import write_figures
    from specbench.log.exchange.write import write_files
    from specbench.log.store import read_run

    if form == "table":
        for path in write_figures([read_run(Path(text)) for text in runs], out):
            say(str(path))
        return
    for text in runs:
        for path in write_files(read_run(Path(text)), form, out):
            say(str(path))


def _write_table(table: "ImportedTable", out: Path, url: str) -> None:
    """Write a published table to `out`. `url` is the address of the files it was read from."""
    from specbench.log.exchange.tables import write_table

    for source in table.sources:
        for oddity in source.oddities:
            say(f"{oddity}.")
    for path in write_table(table, out, url):
        say(f"{path}: {len(table.cells)} cells of {table.mapping.title}")


def _counter(folder: Path) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text with the tokenizer in a folder.

    Raises:
        UserError: the folder has no tokenizer.
    """
    quiet_libraries()
    from transformers import AutoTokenizer

    with reading(folder, "Tokenizer", "Give the folder of a tokenizer."):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda text: len(tokenizer(text).input_ids)


def _print_figures(run: Run) -> None:
    """Print the publisher's numbers, then ours, why they differ, and oddities."""
    from specbench.analysis.metrics import measure
    from specbench.log.exchange.arithmetic import why_ours_differs
    from specbench.report import formats

    imported = run.header.imported
    assert imported is not None
    typer.echo("The publisher's numbers:")
    for figure in imported.figures:
        typer.echo(f"  {terminal_text(figure.text)}")
    if not imported.figures:
        typer.echo(f"  none can be computed from these files ({imported.arithmetic})")
    typer.echo("Ours:")
    for load in run.loads:
        metrics = measure(run.at(load))
        for (method, _), overall in metrics.overall.items():
            name = metrics.info.method(method).label
            numbers = [
                f"speedup {formats.speedup(overall.speedup)}{formats.brackets(overall.speedup)}",
                f"MAT {formats.mat(overall.mat)}",
                f"{formats.rate(overall.pooled.tokens_per_s)} tok/s",
                load.text if imported.tells_load else "",
            ]
            typer.echo(f"  {terminal_text(name)}: {', '.join(filter(None, numbers))}")
    for sentence in (*why_ours_differs(imported.figures), *imported.findings):
        typer.echo(f"  {terminal_text(sentence)}.")
    for oddity in imported.oddities:
        say(f"{oddity}.")
    say(f"Not in the files: {', '.join(imported.lacks)}.")
