"""Earlier runs of the same model, and the time of a new run estimated from them."""

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
    """Seconds that a plan takes, by the latest run that was not interrupted; None without one.

    `root` is the folder of all runs. The earlier run's time is scaled by the most tokens that
    this run and the earlier one can make: `num_records`, the answers of all methods, times the
    most new tokens of an answer. A run with `segments` continued later on another machine.
    """
    # Folders and headers of complete runs of this model on this device, the newest first.
    for _, earlier in earlier_runs(plan, root):
        if not (earlier.finished and earlier.num_records) or earlier.segments:
            continue
        began = datetime.fromisoformat(earlier.created)
        ended = datetime.fromisoformat(earlier.finished)
        # None stands for the default, which is this plan's.
        earlier_max_new_tokens = earlier.spec.values.max_new_tokens or plan.max_new_tokens
        most_tokens = plan.num_records * plan.max_new_tokens
        earlier_most_tokens = earlier.num_records * earlier_max_new_tokens
        # At least a second: times are stored to the second, so that a short run took 0.
        return max(1.0, (ended - began).total_seconds() * most_tokens / earlier_most_tokens)
    return None
