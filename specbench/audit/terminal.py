"""An audit on a terminal: a table of methods, the largest differences, and a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.audit.verdicts import ALPHA, Audit, Difference, GreedyAudit, Verdict
from specbench.log.header import RunHeader
from specbench.report import formats

MOST_DIFFERENCES = 20
_STYLES: dict[Verdict, str] = {"bug": "bold red", "numerics": "yellow", "lossy": "yellow"}


def print_audit(audit: Audit, info: RunHeader, console: Console) -> None:
    """Print the tables and sentences of an audit."""
    title = f"Audit of run {audit.run_id} ({info.model.label}, {audit.dtype})"
    parts: list[RenderableType] = [Text(title, style="bold"), Text()]
    if audit.greedy:
        parts += [Text("Temperature=0, against vanilla's tokens", style="bold")]
        parts += [_greedy(audit, info), Text(), *_differences(audit, info)]
    if audit.sampled:
        parts += [Text("Sampled, against vanilla's draws", style="bold"), _sampled(audit, info)]
        parts += [Text()]
    parts += [Text(line) for line in _sentences(audit)]
    console.print(Group(*parts))


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", overflow="fold")
    return table


def _verdict(verdict: Verdict) -> Text:
    return Text(verdict, style=_STYLES.get(verdict, ""))


def _greedy(audit: Audit, info: RunHeader) -> Table:
    table = _table("Method", "identical", "first difference", "largest gap", "verdict")
    for one in audit.greedy:
        agreement = one.agreement
        first = agreement.first_position
        table.add_row(
            info.method(agreement.method).label,
            f"{agreement.num_identical} of {agreement.num_compared}",
            "" if first is None else f"token {first}",
            "" if one.largest_gap is None else f"{one.largest_gap:.3g}",
            _verdict(one.verdict),
        )
    return table


def _differences(audit: Audit, info: RunHeader) -> Iterable[RenderableType]:
    """A table of the differences, bugs and largest gaps first."""
    found = [(one, difference) for one in audit.greedy for difference in one.differences]
    if not found:
        return
    found.sort(key=lambda pair: _severity(pair[1]), reverse=True)
    headings = ["Difference", "token", "vanilla", "method", "gap", "near-tie up to"]
    if audit.recheck_dtype:
        headings.append(f"again in {audit.recheck_dtype}")
    table = _table(*headings, "verdict")
    for one, difference in found[:MOST_DIFFERENCES]:
        table.add_row(*_cells(one, difference, audit, info=info))
    yield table
    if len(found) > MOST_DIFFERENCES:
        yield Text(f"… and {len(found) - MOST_DIFFERENCES} more with smaller gaps", style="dim")
    yield Text()


def _severity(difference: Difference) -> tuple[bool, float]:
    gap = float("inf") if difference.gap is None else difference.gap
    return difference.verdict == "bug", gap / difference.threshold


def _cells(
    one: GreedyAudit, difference: Difference, audit: Audit, *, info: RunHeader
) -> Iterable[Text | str]:
    divergence = difference.divergence
    key = divergence.key
    turn = f", turn {key.turn + 1}" if key.turn else ""
    repeat = f", repeat {key.repeat + 1}" if key.repeat else ""
    yield f"{info.method(key.method).label} on {key.sample_id}{turn}{repeat}"
    yield str(divergence.position)
    for token in (divergence.baseline_token, divergence.own_token):
        yield "ended" if token is None else str(token)
    yield formats.NONE if difference.gap is None else f"{difference.gap:.3g}"
    yield f"{difference.threshold:.3g}"
    if audit.recheck_dtype:
        again = {None: formats.NONE, True: "same", False: "differs"}
        yield again[difference.is_same_again]
    is_allowed = difference.verdict == "bug" and not one.is_lossless
    yield _verdict("lossy" if is_allowed else difference.verdict)


def _sampled(audit: Audit, info: RunHeader) -> Table:
    table = _table("Method", "T", "contexts", "draws each", "p (corrected)", "verdict")
    for one in audit.sampled:
        table.add_row(
            info.method(one.method).label,
            f"{one.temperature:g}",
            str(one.num_contexts),
            str(one.num_draws),
            f"{one.p_value:.2g}",
            _verdict(one.verdict),
        )
    return table


def _sentences(audit: Audit) -> Iterable[str]:
    """The result, then how to read the columns."""
    if audit.has_bug:
        yield "A method that claims to be lossless is not: see the verdict bug."
    else:
        yield "No bug found: every method that claims to be lossless passed."
    if audit.greedy and audit.verdicts & {"numerics", "bug"}:
        yield (
            "gap: how far the method's token lies below the best one in the target's logits. "
            "Rounding explains gaps up to the near-tie, and none beyond it."
        )
        if not audit.recheck_dtype and audit.dtype != "float32":
            yield (
                "Use --dtype float32 to run these steps again: near-ties are a thousand times "
                "rarer there."
            )
    if audit.sampled:
        yield f"p: G-test by permutations, Holm-corrected. Below {ALPHA} the distributions differ."
