"""Earlier runs of the same model, and the time that they let a new run expect."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from specbench.log.folders import list_runs
from specbench.log.header import RunHeader
from specbench.measure.base import Plan


def earlier_runs(plan: Plan, root: Path) -> Iterator[tuple[Path, RunHeader]]:
    """The complete runs of a plan's model on its device, the newest first."""
    model = plan.about.model.label
    device = plan.about.values.get("device", plan.spec.device)
    for path, header in list_runs(root).items():
        if not isinstance(header, RunHeader) or header.status != "complete":
            continue
        if (header.model.label, header.spec.values.device) == (model, device):
            yield path, header


def expected_seconds(plan: Plan, root: Path) -> float | None:
    """Seconds that a plan takes, by the latest run that was made in one go; None without one."""
    for _, header in earlier_runs(plan, root):
        if not (header.finished and header.num_records) or header.segments:
            continue
        began = datetime.fromisoformat(header.created)
        ended = datetime.fromisoformat(header.finished)
        budget = header.spec.values.max_new_tokens or plan.max_new_tokens
        # Tokens at most, in this run and in the earlier one.
        most_tokens = plan.num_records * plan.max_new_tokens
        most_tokens_then = header.num_records * budget
        return max(1.0, (ended - began).total_seconds() * most_tokens / most_tokens_then)
    return None
