"""Results as one text: the parts, the goals, and the figures of each model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.goals import judge
from benchmarks.gpu.ledger import Ended
from benchmarks.gpu.parts import Part


def render(parts: Sequence[Part], ended: Mapping[str, Ended]) -> str:
    """All tables, one below the other."""
    blocks = [list_parts(parts, ended)]
    blocks += [_checks(ended["checks"])] if "checks" in ended else []
    figures = {name: one.figures for name, one in ended.items()}
    for name, own in figures.items():
        if "methods" in own:
            blocks.append(_model(name, own))
        elif "layer" in own:
            blocks.append(_layer(name, own))
        elif name.startswith("contexts-"):
            blocks.append(_contexts(name, own))
    return "\n".join([*blocks, _goals(figures)])


def list_parts(parts: Sequence[Part], ended: Mapping[str, Ended]) -> str:
    """Every part with its estimate, limit and result."""
    rows = [("part", "about", "limit", "status", "took", "purpose, or reason if not ok")]
    for part in parts:
        one = ended.get(part.name)
        rows.append(
            (
                part.name, f"{part.estimate_s:.0f} s", f"{part.limit_s:.0f} s",
                one.status if one else "unavailable" if part.unavailable_reason else "-",
                f"{one.seconds:.0f} s" if one else "",
                (one and one.reason) or part.unavailable_reason or part.settles,
            )
        )  # fmt: skip
    return _aligned(rows, right=(1, 2, 4))


def _checks(ended: Ended) -> str:
    rows = [("check", "verdict", "")]
    for name, found in ended.figures.items():
        rows.append((name, found["verdict"], found["text"][:120]))
    return _aligned(rows)


def _model(name: str, figures: Mapping[str, Any]) -> str:
    """A line with a model's figures, then its methods."""
    shares = {
        "graph": figures.get("vanilla_bandwidth_share"),
        "eager": figures.get("vanilla_bandwidth_share_eager"),
        "generate": figures.get("vanilla_bandwidth_share_generate"),
    }
    facts = [
        f"{figures.get('bandwidth_gb_s')} GB/s",
        "vanilla's share of it " + ", ".join(f"{k} {_percent(v)}" for k, v in shares.items()),
        f"built in {figures.get('build_s')} s",
        f"kernels {figures.get('kernels_s')} s",
        f"captures {figures.get('capture_s')} s",
        f"late captures {figures.get('num_late')}",
    ]
    heads = (
        "method", "speedup", "MAT", "ms/step", "cost", "limit", "of limit", "host ms", "host",
        "mode", "as eager",
    )  # fmt: skip
    rows = [heads, *(_method(label, figures) for label in figures["methods"])]
    return f"{name}: {'; '.join(facts)}\n" + _aligned(rows, right=range(1, 9))


def _method(label: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    own = figures["methods"][label]
    host = figures.get("host", {}).get(label, {})
    mode = (figures.get("execution") or {}).get(label, {})
    eager = figures.get("eager_tokens", {}).get(label)
    numbers = [_number(own[name]) for name in ("speedup", "mat", "step_ms", "step_cost", "limit")]
    return (
        label, *numbers, _percent(own["share_of_limit"]), _number(host.get("ms")),
        _percent(host.get("share")), str(mode.get("mode", "-")),
        f"{eager['same']} of {eager['of']}, {eager['verdict']}" if eager else "-",
    )  # fmt: skip


def _layer(name: str, figures: Mapping[str, Any]) -> str:
    """Time and share of the bandwidth of a whole layer, in each way to compute it."""
    rows = [("rows", *figures["ways"])]
    for num_rows, measured in figures["layer"].items():
        rows.append(
            (num_rows, *(f"{way['us']} us {_percent(way.get('share'))}" for way in measured))
        )
    return f"{name}: a layer\n" + _aligned(rows, right=range(len(rows[0])))


def _contexts(name: str, figures: Mapping[str, Any]) -> str:
    """Steps over some rows far into a context, with their shares of the bandwidth."""
    rows = [("context", "prefill", "steps over rows: ms and share")]
    for context, own in figures.items():
        steps = (
            f"{num_rows}: {step['step_ms']:.3g} {_percent(step['share'])}"
            for num_rows, step in own["rows"].items()
        )
        rows.append((context.removeprefix("context_"), f"{own['prefill_s']} s", "; ".join(steps)))
    return f"{name}\n" + _aligned(rows, right=(0, 1))


def _goals(figures: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [("goal", "part", "bound", "worst", "of", "verdict")]
    for one in judge(figures):
        goal = one.goal
        rows.append(
            (
                goal.text, one.part, f"{goal.comparison} {goal.shown(goal.bound)}",
                "-" if one.value is None else goal.shown(one.value), one.name or "", one.verdict,
            )
        )  # fmt: skip
    return _aligned(rows, right=(3,))


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "-"


def _percent(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "-"


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns as wide as their widest cell."""
    return "\n".join(_lines(rows, right)) + "\n"


def _lines(rows: Sequence[Sequence[str]], right: Sequence[int]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
