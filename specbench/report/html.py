"""A report as one HTML page that needs nothing besides itself: no request, no script.

Knows what stands where and in which words. The look is in `templates/`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from string import punctuation
from typing import Any
from urllib.parse import quote

from specbench.analysis.latency import Percentiles
from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats import Estimate, Value
from specbench.report import formats
from specbench.report.costs import TITLE as COSTS_TITLE
from specbench.report.costs import cost_columns
from specbench.report.grid import sureness
from specbench.report.json import digest, to_json
from specbench.report.overview import OVERVIEW, OverviewColumn
from specbench.report.plots import Plot
from specbench.report.published import PublishedValue, find
from specbench.report.source import Report, Source
from specbench.report.table import Block, Cell, Row

_COMMON = (
    "model", "dataset", "prompts", "limit", "temperature", "top-p", "max-new-tokens", "repeats",
    "seed", "device", "dtype", "template", "history", "execution", "weights",
)  # fmt: skip
"""Options of `specbench run` whose value the header keeps under the option's name."""
_OTHER_NAMES = {"dataset": "tasks", "temperature": "temperatures"}
_FLAGS = ("phases", "trace")
_SAFE = " " + "".join(set(punctuation) - set('%#"'))
"""Signs that may stand in a data URI as they are."""
_SHOWN = ("Machine", "Software", "Run", "Lossless", "Latency", "Depth")
"""Notes on what the page shows in full."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A plain table: headings, and rows by group. The first text of a row is its name."""

    title: str
    headings: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot and the address of its picture: the whole SVG, as a data URI."""

    plot: Plot
    address: str


def to_html(report: Report, pictures: Sequence[tuple[Plot, bytes]]) -> str:
    """The page. `pictures` are the plots with their SVG."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("specbench.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "speedup": formats.speedup,
        "mat": formats.mat,
        "ends": _ends,
        "sureness": lambda value: sureness(value) or "plain",
        "bracketed": formats.bracketed,
        "rate": formats.rate,
    }
    table = report.table
    return environment.get_template("report.html").render(
        report=report,
        table=table,
        digest=digest(to_json(report)),
        warnings=[note.text for note in table.notes if note.is_warning],
        definitions=[n for n in table.notes if not n.is_warning and n.label not in _SHOWN],
        best=_best,
        overview=lambda block: _grid(report, block, "Over all tasks", OVERVIEW),
        costs=lambda block: _grid(report, block, COSTS_TITLE, cost_columns(block.rows)),
        latency=lambda block: _latency(report, block),
        published=_published(report),
        pictures=[Picture(plot, _address(svg)) for plot, svg in pictures],
        options=_options,
        facts=_facts,
        command=_command,
        given=_given,
    )


def _address(svg: bytes) -> str:
    """A data URI as text, which is smaller than base64 and can be compressed."""
    text = quote(" ".join(svg.decode().split()), safe=_SAFE)
    return f"data:image/svg+xml;charset=utf-8,{text}"


def _ends(value: Value) -> str:
    interval = formats.interval_of(value)
    return f"{interval.low:.2f}–{interval.high:.2f}" if interval else ""


def _best(block: Block) -> Mapping[str, Any]:
    """The rows to name at the top of a block: the fastest and the one that accepts most."""
    drafting = [row for row in block.rows if row.method != BASELINE]
    return {
        "speedup": _highest(drafting, lambda row: row.overall.speedup),
        "mat": _highest(drafting, lambda row: row.overall.mat),
        "baseline": next((row for row in block.rows if row.method == BASELINE), None),
    }


def _highest(rows: Iterable[Row], of: Any) -> Row | None:
    known = [row for row in rows if isinstance(of(row), Estimate)]
    return max(known, key=lambda row: of(row).value, default=None)


def _grid(report: Report, block: Block, title: str, columns: Sequence[OverviewColumn]) -> Grid:
    headings = tuple(column.heading.replace("\n", " ") for column in columns)
    groups = tuple(
        (
            "" if report.table.is_one_run else group.label,
            tuple((row.label, *(c.text(row) for c in columns)) for row in group.rows),
        )
        for group in block.groups
    )
    return Grid(title, headings, groups if columns else ())


_PERCENTILES = tuple(field.name for field in fields(Percentiles) if field.name.startswith("p"))


def _latency(report: Report, block: Block) -> Grid:
    """Time to first token and time per output token, in milliseconds, over all tasks."""

    def text(row: Row, what: str, name: str) -> str:
        value: Value = getattr(getattr(row.overall.pooled.latency, what), name)
        return f"{value.value * 1e3:#.3g}" if isinstance(value, Estimate) else formats.NONE

    columns = [
        OverviewColumn(f"{words} {name}", partial(text, what=what, name=name))
        for what, words in (("first_token", "first token"), ("per_token", "per token"))
        for name in _PERCENTILES
    ]
    shown = [c for c in columns if any(c.text(row) != formats.NONE for row in block.rows)]
    return _grid(report, block, "Latency in milliseconds", shown)


def _published(report: Report) -> list[tuple[str, str, Cell, PublishedValue]]:
    """Group, task, our cell and the published value, wherever papers have the same cell.

    A stand-in has none: its acceptance is another model's.
    """
    found = []
    for block in report.table.blocks:
        for group in block.groups:
            info = report.sources[group.run].info
            if info.is_stand_in:
                continue
            for row in group.rows:
                for column, cell in zip(report.table.columns, row.cells, strict=True):
                    values = find(info.model, row.method, column.task, block.temperature)
                    name = f"{row.label}, T={block.temperature:g}"
                    label = name if report.table.is_one_run else f"{name}, {group.label}"
                    found += [(label, column.title, cell, value) for value in values]
    return found


def _options(source: Source) -> list[tuple[str, str, str]]:
    """Label, options in effect and weights of every method that was run."""
    described = source.header.get("methods")
    described = described if isinstance(described, Mapping) else {}
    found = []
    for spelling in source.metrics.methods:
        about = described.get(spelling)
        about = about if isinstance(about, Mapping) else {}
        options = about.get("options")
        pairs = options.items() if isinstance(options, Mapping) else ()
        text = ", ".join(f"{name}={value}" for name, value in pairs if value != "")
        found.append((source.info.method(spelling).label, text or "none", _weights(about)))
    return found


def _weights(about: Mapping[str, Any]) -> str:
    """The revision of a drafter's weights, or the hash of their largest file."""
    weights = about.get("weights")
    if not isinstance(weights, Mapping):
        return "none"
    if weights.get("revision"):
        return f"revision {str(weights['revision'])[:12]}"
    files = weights.get("files")
    known = [item for item in files.items() if isinstance(item[1], Mapping)] if files else []
    if not known:
        return "unknown"
    name, largest = max(known, key=lambda item: item[1].get("bytes", 0))
    return f"{name}, sha256 {str(largest.get('sha256', 'unknown'))[:12]}"


def _facts(source: Source) -> list[tuple[str, str]]:
    """What a reader has to know of the machine and the run, in order."""
    info, header = source.info, source.header
    environment = header.get("environment")
    environment = environment if isinstance(environment, Mapping) else {}
    prompts = header.get("prompts")
    torch = environment.get("torch")
    facts = {
        "Machine": info.machine.device,
        "Operating system": environment.get("os"),
        "Software": info.machine.software,
        "CUDA": torch.get("cuda") if isinstance(torch, Mapping) else None,
        "Commit": info.machine.commit,
        "Model": f"{info.model_label}, {info.dtype}",
        "Prompts": _prompts(prompts) if isinstance(prompts, Sequence) else None,
        "Run": f"{info.id}, {info.status}",
        "From": info.created,
        "To": header.get("finished"),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _prompts(prompts: Sequence[Any]) -> str:
    known = [each for each in prompts if isinstance(each, Mapping)]
    return "; ".join(
        f"{each.get('title', each.get('task'))}: {each.get('num_prompts')} {each.get('source')}, "
        f"sha256 {str(each.get('sha256'))[:12]}"
        for each in known
    )


def _given(source: Source) -> str:
    """The command as it was typed."""
    command = source.header.get("command")
    words = command if isinstance(command, Sequence) and not isinstance(command, str) else []
    return shlex.join(["specbench", *map(str, words)]) if words else ""


def _command(source: Source) -> str:
    """The command with every setting written out, so that no default can change it."""
    spec = source.header.get("spec")
    asked = spec.get("asked") if isinstance(spec, Mapping) else None
    asked = asked if isinstance(asked, Mapping) else {}
    values = source.info.spec
    has_baseline = values.get("is_baseline_run") is not False
    methods = [str(m) for m in values.get("methods") or () if m != BASELINE or not has_baseline]
    parts = ["specbench run", " ".join(f"--method {shlex.quote(method)}" for method in methods)]
    for option in _COMMON:
        key = _OTHER_NAMES.get(option, option.replace("-", "_"))
        value = asked.get(key, values.get(key)) if option == "template" else values.get(key)
        if value is None or value == "":
            continue
        several = value if isinstance(value, list | tuple) else [value]
        text = ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in several)
        parts.append(f"--{option} {shlex.quote(text)}")
    parts += [f"--{flag}" for flag in _FLAGS if values.get(flag)]
    parts += [] if has_baseline else ["--no-baseline"]
    return _wrapped(part for part in parts if part)


def _wrapped(parts: Iterable[str], width: int = 88) -> str:
    """The parts in as few lines as they need, each but the last ending in a backslash."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"  {part}" if lines else part)
    return " \\\n".join(lines)
