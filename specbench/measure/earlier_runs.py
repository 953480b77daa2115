"""Earlier runs of the same model, and the time of a new run estimated from them."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from specbench.log.folders import list_runs
from specbench.log.header import RunHeader
from specbench.log.model import ModelHeader
from specbench.log.spec import SpecValues
from specbench.log.store import read_run
from specbench.measure.base import Plan, loads_of_run
from specbench.types import Record

EARLIER = "from the latest comparable run"
"""The source of an estimate of time, in words."""
MIN_TOKENS = 1_000
"""Tokens of an earlier run from which its seconds say something about a later one."""


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
    """Seconds of a plan's answers, by those of the latest comparable run; None without one.

    That run did the same kind of work and has `MIN_TOKENS`. A method takes its mean seconds per
    answer there, or the mean of all methods if it was not run, times the ratio of the most new
    tokens of an answer. `root` is the folder of all runs. Runs that went on on another machine
    (`segments`) are left out.
    """
    kind = _kind(plan.spec, plan.about.model)
    for path, earlier in earlier_runs(plan, root):
        values = earlier.spec.values
        if earlier.segments or _kind(values, earlier.model) != kind:
            continue
        if {*loads_of_run(values)} != {*loads_of_run(plan.spec)}:
            continue
        done = [record for record in read_run(path, is_lenient=True).records if record.wall_s]
        if sum(record.num_tokens for record in done) < MIN_TOKENS:
            continue
        seconds_of_methods = defaultdict(list)
        for record in done:
            seconds_of_methods[record.key.method].append(_busy_seconds(record))
        of_method = {method: fmean(times) for method, times in seconds_of_methods.items()}
        of_any = fmean(of_method.values())
        per_request = sum(of_method.get(label, of_any) for label in plan.setup.labels)
        num_requests = plan.num_records / len(plan.setup.labels)
        # None stands for the default, which is this plan's.
        most_tokens = values.max_new_tokens or plan.max_new_tokens
        return num_requests * per_request * plan.max_new_tokens / most_tokens
    return None


def _kind(values: SpecValues, model: ModelHeader) -> tuple[object, ...]:
    """Values in which runs of comparable seconds agree: number formats, and what completes."""
    work = (values.backend, values.serving_engine, bool(values.urls), values.phases)
    return (*work, model.is_stand_in, model.precision)


def _busy_seconds(record: Record) -> float:
    """The seconds that an answer adds to a run, in which a server works on several at once."""
    key = record.key
    if key.request_rate:
        return 1 / key.request_rate
    assert record.wall_s is not None
    return record.wall_s / max(1, key.concurrency)
