"""Find earlier runs of a model, and estimate the time of a new run from them."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from specbench.errors import RunFolderError
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
"""The fewest tokens from which an earlier run can predict the seconds of a later run."""


def earlier_runs(plan: Plan, root: Path) -> Iterator[tuple[Path, RunHeader]]:
    """The complete runs of a plan's model on the plan's device, the newest first.

    Yields the folder and the header of each run. `root` is the folder of all runs.
    """
    model = plan.about.model.label
    # The device that the setup chose, or the device that the user named.
    device = plan.about.values.get("device", plan.spec.device)
    for path, header in list_runs(root).items():
        if not isinstance(header, RunHeader) or header.status != "complete":
            continue
        if (header.model.label, header.spec.values.device) == (model, device):
            yield path, header


def expected_seconds(plan: Plan, root: Path) -> float | None:
    """The expected seconds of a plan's answers.

    They are estimated from the latest comparable run. The result is None if there is no such run.
    `root` is the folder of all runs. A comparable run is one of `earlier_runs` with the same
    `_kind` and loads, and with at least `MIN_TOKENS` tokens. Runs that were continued on another
    machine or with other versions (`segments`) are left out. Each answer is expected to add the
    mean `_busy_seconds` of its method in the comparable run. If that run lacks the method, the mean
    over all methods is taken. The seconds are scaled by the ratio of the runs' `max_new_tokens`.
    """
    kind = _kind(plan.spec, plan.about.model)
    for path, earlier in earlier_runs(plan, root):
        values = earlier.spec.values  # the options in effect in the earlier run
        if earlier.segments or _kind(values, earlier.model) != kind:
            continue
        if {*loads_of_run(values)} != {*loads_of_run(plan.spec)}:
            continue
        try:
            records = read_run(path, is_lenient=True).records  # damaged lines are left out
        except RunFolderError:  # such as a damaged archive
            continue
        timed_records = [record for record in records if record.wall_s]  # failed ones have no time
        if sum(record.num_tokens for record in timed_records) < MIN_TOKENS:
            continue
        seconds_by_method = defaultdict(list)  # seconds that each answer added
        for record in timed_records:
            seconds_by_method[record.key.method].append(_busy_seconds(record))
        mean_s = {method: fmean(seconds) for method, seconds in seconds_by_method.items()}
        mean_of_methods_s = fmean(mean_s.values())
        labels = plan.setup.labels
        # Seconds of one request, completed with every method.
        request_s = sum(mean_s.get(label, mean_of_methods_s) for label in labels)
        num_requests = plan.num_records / len(labels)
        # The largest number of new tokens per answer in the earlier run. If it is None there, the
        # earlier run had a default, which is taken to be the number of this plan.
        earlier_max_tokens = values.max_new_tokens or plan.max_new_tokens
        return num_requests * request_s * plan.max_new_tokens / earlier_max_tokens
    return None


def _kind(values: SpecValues, model: ModelHeader) -> tuple[object, ...]:
    """The values that two runs must share if their times are to be comparable."""
    work = (values.backend, values.serving_engine, bool(values.urls), values.phases)
    return (*work, model.is_stand_in, model.precision)


def _busy_seconds(record: Record) -> float:
    """The seconds that an answer adds to a run. Answers in flight at once share the time."""
    key = record.key
    if key.request_rate:  # requests per second; 0 without such a load
        return 1 / key.request_rate
    assert record.wall_s is not None
    return record.wall_s / max(1, key.concurrency)  # concurrency: requests at once, or 0
