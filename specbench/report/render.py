"""Runs -> a printed report, one rendering of it, or the files of all.

Knows which renderings there are and what their files are called.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from specbench.analysis.metrics import Run
from specbench.errors import unknown_name
from specbench.report.files import write_files
from specbench.report.html import to_html
from specbench.report.json import to_json
from specbench.report.latex import to_latex, to_standalone
from specbench.report.markdown import to_markdown
from specbench.report.plots import Plot, plots, to_png, to_svg
from specbench.report.source import Report, make_report
from specbench.report.terminal import print_table, report_console
from specbench.report.tidy import to_csv, to_positions_csv

Runs: TypeAlias = Report | Run | Sequence[Run]
"""What is rendered: runs, or, where several renderings follow, the report made of them."""

_RENDERINGS: Mapping[str, Callable[[Report], str]] = {
    "markdown": lambda report: to_markdown(report.table),
    "latex": lambda report: to_latex(report.table),
    "csv": lambda report: to_csv([source.metrics for source in report.sources]),
    "html": lambda report: to_html(report, _svgs(plots(report))),
    "json": to_json,
}
FORMATS = ("table", *_RENDERINGS)


def check_format(name: str) -> str:
    """The name of a rendering. Raises `UserError` where there is none of that name."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return name


def render(runs: Runs, form: str) -> str:
    """The text of one of the renderings but the terminal's."""
    return _RENDERINGS[form](_report(runs))


def print_report(runs: Runs, console: Console | None = None) -> None:
    """The table of the runs, on stdout unless a console is given."""
    print_table(_report(runs).table, console or report_console())


def write_report(runs: Runs, out_dir: Path) -> list[Path]:
    """Every rendering and every plot in `out_dir`; each file is whole or not there.

    Raises `RunFolderError` where the folder cannot be written.
    """
    return write_files(out_dir, report_files(runs))


def report_files(runs: Runs) -> dict[str, bytes]:
    """The files of a report by name: the renderings, then each plot as SVG and as PNG."""
    report = _report(runs)
    pictures = _svgs(plots(report))
    metrics = [source.metrics for source in report.sources]
    texts = {
        "table.md": to_markdown(report.table) + _gallery(pictures),
        "table.csv": to_csv(metrics),
        "positions.csv": to_positions_csv(metrics),
        "table.tex": to_latex(report.table),
        "table_standalone.tex": to_standalone(report.table),
        "report.json": to_json(report),
        "report.html": to_html(report, pictures),
    }
    files = {name: text.encode() for name, text in texts.items()}
    for plot, svg in pictures:
        files |= {f"{plot.name}.svg": svg, f"{plot.name}.png": to_png(plot.draw())}
    return files


def _report(runs: Runs) -> Report:
    return runs if isinstance(runs, Report) else make_report(runs)


def _svgs(every: Iterable[Plot]) -> list[tuple[Plot, bytes]]:
    return [(plot, to_svg(plot.draw())) for plot in every]


def _gallery(pictures: Iterable[tuple[Plot, bytes]]) -> str:
    """The plots below the table, in Markdown."""
    return "".join(
        f"\n## {plot.title}\n\n![{plot.title}]({plot.name}.svg)\n\n{plot.caption}\n"
        for plot, _ in pictures
    )
