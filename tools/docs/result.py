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
from specbench.report.report import Report
from specbench.report.sections import MAT, SPEEDUP, by_task
from specbench.report.table import Cell, Column, Group, Table

ROOT = Path(__file__).parents[2]
_PLACE = re.compile(r"(<!-- table -->\n).*?(\n<!-- /table -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Write README.md and docs/speedup.png."""
    reports = [make_report(read_run(Path(argument))) for argument in arguments]
    readme = ROOT / "README.md"
    readme.write_text(with_tables(readme.read_text(encoding="utf-8"), reports), encoding="utf-8")
    (picture,) = (plot for plot in reports[0].plots if plot.name == "speedup")
    (ROOT / "docs" / "speedup.png").write_bytes(picture.images.png)
    return 0


def with_tables(text: str, reports: list[Report]) -> str:
    """The text with the tables of these reports in place of those that it has."""
    tables = "\n\n".join(map(table_of, reports))
    return _PLACE.sub(lambda place: f"{place[1]}{tables}{place[2]}", text)


def table_of(report: Report) -> str:
    """The speedups of a run by task and its accepted tokens, with where and how it was measured."""
    results, (source,) = report.results, report.sources
    block, num_repeats = results.blocks[0], source.info.spec.values.repeats
    name = source.run.folder.name
    speedups = by_task(results, block, [SPEEDUP])
    columns = [Column("", one.task) for one in speedups.columns]
    decode = [Cell(formats.speedup(one.overall.decode_speedup)) for one in block.methods]
    mats = [MAT.cell(one.tasks[-1]) for one in block.methods]
    columns += [Column("Decode only"), Column("Accepted tokens")]
    (group,) = speedups.groups
    rows = zip(group.rows, decode, mats, strict=True)
    wider = tuple(replace(row, cells=(*row.cells, *more)) for row, *more in rows)
    table = Table("", tuple(columns), (Group("", wider),))
    return "\n".join([
        f"{escape(results.title)}. {escape(results.prompts)}, {num_repeats} passes, temperature "
        f"{block.temperature:g}. Speedup by task and of decoding alone; mean accepted tokens:",
        "",
        *table_lines(table),
        "",
        f"[Recorded run](results/recorded/{name}), and its",
        f"[intervals](reports/{name}/table.md).",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
