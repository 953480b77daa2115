"""The driver of a cluster: hands samples to workers and writes their records.

Knows the cluster's seam. Must not know models, nor how workers are placed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from specbench.errors import SpecbenchError
from specbench.measure.base import Plan, Progress, Sink
from specbench.measure.cluster.cluster import Cluster, Finished, Job, Lost, Ready
from specbench.measure.cluster.jobs import JobQueue
from specbench.types import Record

RESTART_S = 120.0
"""Seconds to wait for a worker to come back when none is left."""


@dataclass(slots=True)
class ClusterRunner:
    """Completes a plan's samples with a cluster, except those that are done.

    All methods of a sample run on one worker, and its records are written when the whole sample is
    done: if the worker is lost, another one does all of it. `idle` are the workers that are ready;
    `joined` is told of each further one before it gets a job.
    """

    plan: Plan
    cluster: Cluster
    sink: Sink
    progress: Progress
    idle: deque[str]
    joined: Callable[[Ready], None]
    _busy: dict[str, Job] = field(default_factory=dict)

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all samples. Yields each new record after it is stored.

        Raises:
            SpecbenchError: no worker is left, and none came back in time.
        """
        has_pass_ends = self.plan.spec.until_ci is not None
        queue = JobQueue(self.plan, done, has_pass_ends=has_pass_ends)
        while not queue.is_done:
            while self.idle and (job := queue.take()):
                worker = self.idle.popleft()
                self._busy[worker] = job
                self.cluster.submit(worker, job)
            yield from self._store(self._records_of_next_event(queue))

    def _records_of_next_event(self, queue: JobQueue) -> Sequence[Record]:
        event = self.cluster.next_event(None if self._busy else RESTART_S)
        match event:
            case Finished(worker, records):
                del self._busy[worker]
                self.idle.append(worker)
                queue.end()
                return records
            case Ready(worker, _):
                self.joined(event)
                self.progress.message(f"{worker} has joined.")
                self.idle.append(worker)
            case Lost(worker, reason, error):
                reason = f"{(error.message if error else reason).rstrip('.')}."
                job = self._busy.pop(worker, None)
                again = f" Another worker repeats {job.sample.prompt.sample_id}." if job else ""
                self.progress.message(f"{worker} is lost: {reason}{again}")
                return queue.give_back(job, reason) if job else ()
            case None:
                raise SpecbenchError(
                    f"No worker is left, and none came back within {RESTART_S:.0f} s.",
                    "Repair the cluster (`ray status`), then go on with --resume.",
                )
        return ()

    def _store(self, records: Sequence[Record]) -> Iterator[Record]:
        for record in records:
            self.sink.append(record)
            self.progress.sample_finished(record)
        yield from records
