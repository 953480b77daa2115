"""Write the README's tables, and the picture above them, from recorded runs.

    python -m tools.docs.result results/recorded/RUN [results/recorded/RUN ...]

It also writes the calculation in docs/measurements/gpu.md. The picture shows the first run. The
tables are between two comments, in the order of the runs. A stand-in's run gives only the costs of
its steps, because its accepted tokens, and thus its speeds, are those of another model.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path

from PIL import Image

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate
from specbench.log.store import read_run
from specbench.machine.environment import with_one_start
from specbench.report import formats
from specbench.report.build import make_report
from specbench.report.export.markdown import escape, table_lines
from specbench.report.fields import Field, make_table
from specbench.report.results import MEAN, MethodResults, Report
from specbench.report.table import Cell, Column, Group, Row, Table
from tools.docs.bandwidth import nominal_bandwidth
from tools.docs.calculation import calculation

ROOT = Path(__file__).parents[2]
_CALCULATED = re.compile(r"(<!-- calculated -->\n).*?(<!-- /calculated -->)", re.DOTALL)
_TABLES = re.compile(r"(<!-- table -->\n).*?(\n<!-- /table -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Write README.md, docs/measurements/gpu.md and docs/speedup.png."""
    reports = [make_report(read_run(Path(argument))) for argument in arguments]
    _rewrite(ROOT / "README.md", reports)
    _rewrite(ROOT / "docs" / "measurements" / "gpu.md", reports)
    (picture,) = (plot for plot in reports[0].plots if plot.name == "speedup")
    # With 256 colours the picture looks the same and takes a third of the bytes in git.
    with Image.open(BytesIO(picture.images.png)) as image:
        image.convert("RGB").quantize(256).save(ROOT / "docs" / "speedup.png", optimize=True)
    return 0


def _rewrite(page: Path, reports: list[Report]) -> None:
    page.write_text(with_tables(page.read_text("utf-8"), reports), encoding="utf-8")


def with_tables(text: str, reports: list[Report]) -> str:
    """Return the text with its tables replaced by those of the reports."""
    tables = "\n\n".join(map(table_of, reports))
    text = _TABLES.sub(lambda match: f"{match[1]}{tables}{match[2]}", text)
    for report in filter(_is_stand_in, reports):
        table = calculation(report)
        text = _CALCULATED.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)  # noqa: B023
    return text


def _is_stand_in(report: Report) -> bool:
    return report.sources[0].info.spec.values.weights == "stand-in"


def table_of(report: Report) -> str:
    """Return the table of a run with its caption: speedups, or the step costs of a stand-in."""
    (source,) = report.sources
    spec_values = source.info.spec.values
    name = source.run.folder.name
    if _is_stand_in(report):
        table = _step_costs(report)
        what = "The costs of a step:"
        if nominal := nominal_bandwidth(report):
            what = f"The memory's nominal bandwidth is {nominal / 1e12:.2f} TB/s. {what}"
    else:
        table = _speedups(report)
        what = "Speedup with its 95 % interval over prompts and passes:"
    temperatures = " and ".join(f"{temperature:g}" for temperature in spec_values.temperatures)
    caption = [
        f"{escape(report.title)}. {escape(report.prompts)}, passes: {spec_values.repeats}, at most "
        f"{spec_values.max_new_tokens} new tokens, temperature {temperatures}.",
        *map(escape, with_one_start(source.info.warnings)),
        what,
    ]
    return "\n".join(
        [
            " ".join(caption) + "\n",
            *table_lines(table),
            "",
            f"[Recorded run](results/recorded/{name}), and its\n[report](reports/{name}/table.md).",
        ]
    )


def _speedups(report: Report) -> Table:
    """Return the table of mean speedups. Its other columns are for the first temperature."""
    columns = (
        *(Column(f"Mean, T={block.temperature:g}") for block in report.blocks),
        Column("Decode only"),
        Column("MAT"),
        *(Column("", task.head) for task in report.tasks if task.name != MEAN),
    )
    rows = []
    for results_by_temperature in zip(*(block.methods for block in report.blocks), strict=True):
        speedups = [results.overall.speedup for results in results_by_temperature]
        method = results_by_temperature[0]
        results_of_tasks = [
            result
            for task, result in zip(report.tasks, method.tasks, strict=True)
            if task.name != MEAN
        ]
        cells = (
            *(Cell(formats.speedup(speedup) + formats.brackets(speedup)) for speedup in speedups),
            Cell(formats.speedup(method.overall.decode_speedup)),
            Cell(formats.mat(method.overall.mat)),
            *(
                Cell(formats.speedup(result.speedup) + formats.plus_minus(result.speedup))
                for result in results_of_tasks
            ),
        )
        rows.append(Row(method.method, method.label, cells))
    return Table("", columns, (Group("", tuple(rows)),))


def _step_costs(report: Report) -> Table:
    """Return the nodes, levels, times, bytes and memory of each method's steps."""
    block = report.blocks[0]
    (source,) = report.sources
    nominal = nominal_bandwidth(report)
    nodes_of_steps = {
        method.method: [
            num_nodes
            for record in source.run.records
            if record.key.method == method.method
            for num_nodes in record.num_nodes
        ]
        for method in block.methods
    }

    def levels(method: MethodResults) -> str:
        """Return the deepest level of a fixed tree with an accepted token; "" for other trees."""
        is_fixed = len({*nodes_of_steps[method.method]}) == 1
        lengths = chain(source.metrics.pooled(method.method, block.temperature).accept_histogram)
        return str(max(lengths) - 1) if is_fixed and method.method != BASELINE else ""

    def share_of_nominal(method: MethodResults) -> str:
        return f"{method.cost.bytes_per_s / nominal * 100:.0f} %" if nominal else ""

    fields = (
        Field("nodes", text=lambda method: _nodes(nodes_of_steps[method.method])),
        Field("levels", text=levels),
        Field("ms per step", text=lambda method: formats.figures(method.cost.step_s, 1e3)),
        Field("in vanilla's steps", text=lambda method: formats.mat(method.cost.relative)),
        Field("GB per step", text=lambda method: _scaled(method.cost.step_bytes, 1e-9)),
        Field("TB/s", text=lambda method: _scaled(method.cost.bytes_per_s, 1e-12)),
        Field("of the nominal bandwidth", text=share_of_nominal),
        Field("peak GiB", text=lambda method: _scaled(method.cost.peak_memory_bytes or 0, 2**-30)),
    )
    return make_table("", report, block, fields)


def _scaled(number: float, scale: float) -> str:
    return formats.figures(Estimate(number), scale)


def _nodes(nodes_of_steps: Sequence[int]) -> str:
    """Return the nodes of a draft tree, or their mean and the share of steps with a draft."""
    drafted = [num_nodes for num_nodes in nodes_of_steps if num_nodes > 1]
    if not drafted:
        return "1"
    if len({*nodes_of_steps}) == 1:
        return str(drafted[0])
    mean = sum(drafted) / len(drafted)
    share = len(drafted) / len(nodes_of_steps)
    return f"{mean:.1f} in {share * 100:.0f} % of steps"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
