"""An audit on a terminal: a table of methods, the differences that matter most, and a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.analysis.header import RunInfo
from specbench.analysis.verdicts import ALPHA, Audit, Finding, GreedyAudit, Verdict
from specbench.report import formats

MOST_FINDINGS = 20
_STYLES: dict[Verdict, str] = {"bug": "bold red", "numerics": "yellow", "lossy": "yellow"}


def print_audit(audit: Audit, info: RunInfo, console: Console) -> None:
    """Everything an audit found, on the console."""
    title = f"Audit of run {audit.run_id} ({info.model_label}, {audit.dtype})"
    parts: list[RenderableType] = [Text(title, style="bold"), Text()]
    if audit.greedy:
        parts += [Text("Temperature=0, against vanilla's tokens", style="bold")]
        parts += [_greedy(audit, info), Text(), *_findings(audit, info)]
    if audit.sampled:
        parts += [Text("Sampled, against vanilla's draws", style="bold"), _sampled(audit, info)]
        parts += [Text()]
    parts += [Text(line) for line in _sentences(audit)]
    console.print(Group(*parts))


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    return table


def _verdict(verdict: Verdict) -> Text:
    return Text(verdict, style=_STYLES.get(verdict, ""))


def _greedy(audit: Audit, info: RunInfo) -> Table:
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


def _findings(audit: Audit, info: RunInfo) -> Iterable[RenderableType]:
    """The differences, the largest gaps first."""
    found = [(one, finding) for one in audit.greedy for finding in one.findings]
    if not found:
        return
    found.sort(key=lambda pair: _rank(pair[1]), reverse=True)
    headings = ["Difference", "token", "vanilla", "method", "gap", "near-tie up to"]
    if audit.recheck_dtype:
        headings.append(f"again in {audit.recheck_dtype}")
    table = _table(*headings, "verdict")
    for one, finding in found[:MOST_FINDINGS]:
        table.add_row(*_finding(one, finding, audit, info))
    yield table
    if len(found) > MOST_FINDINGS:
        yield Text(f"… and {len(found) - MOST_FINDINGS} more with smaller gaps", style="dim")
    yield Text()


def _rank(finding: Finding) -> tuple[bool, float]:
    gap = float("inf") if finding.gap is None else finding.gap
    return finding.verdict == "bug", gap / finding.threshold


def _finding(
    one: GreedyAudit, finding: Finding, audit: Audit, info: RunInfo
) -> Iterable[Text | str]:
    divergence = finding.divergence
    key = divergence.key
    turn = f", turn {key.turn + 1}" if key.turn else ""
    repeat = f", repeat {key.repeat + 1}" if key.repeat else ""
    yield f"{info.method(key.method).label} on {key.sample_id}{turn}{repeat}"
    yield str(divergence.position)
    for token in (divergence.baseline_token, divergence.own_token):
        yield "ended" if token is None else str(token)
    yield formats.NONE if finding.gap is None else f"{finding.gap:.3g}"
    yield f"{finding.threshold:.3g}"
    if audit.recheck_dtype:
        again = {None: formats.NONE, True: "same", False: "differs"}
        yield again[finding.is_same_again]
    is_allowed = finding.verdict == "bug" and one.verdict == "lossy"
    yield _verdict("lossy" if is_allowed else finding.verdict)


def _sampled(audit: Audit, info: RunInfo) -> Table:
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
    """What the table says."""
    verdicts = audit.verdicts
    if audit.has_bug:
        yield "A method that should be lossless is not: see the verdict bug."
    else:
        yield "No method that claims to be lossless was found not to be."
    if audit.greedy and verdicts & {"numerics", "bug"}:
        yield (
            "gap: how far the method's token lies below the best one in the target's logits. Up to "
            "the near-tie, rounding decides; beyond it, it does not."
        )
        if not audit.recheck_dtype and audit.dtype != "float32":
            yield "--dtype float32 runs these steps again, where ties are a thousand times rarer."
    if audit.sampled:
        yield f"p: G-test by permutations, Holm-corrected; below {ALPHA} the distributions differ."
