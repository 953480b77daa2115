"""Write the README's table, and the picture above it, from recorded runs.

    python -m tools.docs.result results/recorded/RUN [results/recorded/RUN ...]

The picture is the first run's. Tables stand between two comments, in the order of the runs.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from specbench.log.store import read_run
from specbench.report import formats
from specbench.report.build import make_report
from specbench.report.export.markdown import escape, table_lines
from specbench.report.results import Report
from specbench.report.step_costs import step_costs
from specbench.report.table import Cell, Column, Group, Table
from specbench.report.task_tables import MAT, SPEEDUP, by_task

ROOT = Path(__file__).parents[2]
_TABLES = re.compile(r"(<!-- table -->\n).*?(\n<!-- /table -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Write README.md and docs/speedup.png."""
    reports = [make_report(read_run(Path(argument))) for argument in arguments]
    readme = ROOT / "README.md"
    readme.write_text(with_tables(readme.read_text("utf-8"), reports), encoding="utf-8")
    (picture,) = (plot for plot in reports[0].plots if plot.name == "speedup")
    (ROOT / "docs" / "speedup.png").write_bytes(picture.images.png)
    return 0


def with_tables(text: str, reports: list[Report]) -> str:
    """The text with the tables of these reports in place of those that it has."""
    tables = "\n\n".join(map(table_of, reports))
    return _TABLES.sub(lambda match: f"{match[1]}{tables}{match[2]}", text)


def table_of(report: Report) -> str:
    """Speedups and accepted tokens of a run, or costs of steps of a stand-in, and how measured."""
    (source,) = report.sources
    block = report.blocks[0]
    spec = source.info.spec.values
    name = source.run.folder.name
    what = "Speedup by task and of decoding alone, and MAT"
    table = _speedups(report)
    if spec.weights == "stand-in":
        what = "The cost of a step"
        table = step_costs(report, block)
    return "\n".join([
        f"{escape(report.title)}. {escape(report.prompts)}, passes: {spec.repeats}, "
        f"temperature {block.temperature:g}. {what}:\n",
        *table_lines(table),
        "",
        f"[Recorded run](results/recorded/{name}), and its\n[intervals](reports/{name}/table.md).",
    ])  # fmt: skip


def _speedups(report: Report) -> Table:
    block = report.blocks[0]
    table = by_task(report, block, [SPEEDUP])
    columns = [Column("", column.task) for column in table.columns]
    columns += [Column("Decode only"), Column("MAT")]
    rows = []
    for row, method in zip(table.groups[0].rows, block.methods, strict=True):
        decode_speedup = Cell(formats.speedup(method.overall.decode_speedup))
        mat = MAT.cell(method.tasks[-1])
        rows.append(replace(row, cells=(*row.cells, decode_speedup, mat)))
    return Table("", tuple(columns), (Group("", tuple(rows)),))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
