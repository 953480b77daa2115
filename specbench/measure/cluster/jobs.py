"""The jobs of a run: samples with records that are missing, in the run's order.

Knows plans and records. Must not know workers.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator

from specbench.measure.base import Plan
from specbench.measure.cluster.cluster import Job
from specbench.types import Record, RecordKey, RequestKey, seed_of

MOST_ATTEMPTS = 3
"""Workers that may be lost at one sample before it counts as failed."""


class JobQueue:
    """Jobs to hand out. Those that were given back come first.

    With `has_pass_ends`, the jobs of a pass over the prompts wait for the end of the last one.
    """

    def __init__(self, plan: Plan, done: Iterable[Record], *, has_pass_ends: bool) -> None:
        self._plan, self._has_pass_ends = plan, has_pass_ends
        self._rest = _jobs(plan, done)
        self._next = deque[Job]()
        self._num_out = 0
        self._repeat = 0
        self._num_lost = Counter[RequestKey]()
        self._advance()

    @property
    def is_done(self) -> bool:
        """True if every job was handed out and ended."""
        return not self._next and not self._num_out

    def take(self) -> Job | None:
        """The next job; None if there is none now."""
        if not self._next:
            return None
        repeat = self._next[0].sample.repeat
        if self._has_pass_ends and repeat != self._repeat and self._num_out:
            return None
        self._repeat = repeat
        self._num_out += 1
        job = self._next.popleft()
        self._advance()
        return job

    def end(self) -> None:
        """A job that was handed out has ended."""
        self._num_out -= 1

    def give_back(self, job: Job, reason: str) -> list[Record]:
        """A worker was lost at a job: it is handed out again, or its records are failures."""
        self._num_out -= 1
        key = job.sample.key(0)
        self._num_lost[key] += 1
        if self._num_lost[key] < MOST_ATTEMPTS:
            self._next.appendleft(job)
            return []
        return failed_records(self._plan, job, f"{MOST_ATTEMPTS} workers were lost at it: {reason}")

    def _advance(self) -> None:
        """Keep a job ahead, so that the end is known."""
        if not self._next and (job := next(self._rest, None)):
            self._next.append(job)


def _jobs(plan: Plan, done: Iterable[Record]) -> Iterator[Job]:
    known = defaultdict[RequestKey, list[Record]](list)
    for record in done:
        known[record.key.request._replace(turn=0)].append(record)
    for sample in plan.samples:
        own = known.pop(sample.key(0), [])
        if len(own) < len(plan.setup.labels) * len(sample.prompt.turns):
            yield Job(sample, tuple(own))


def failed_records(plan: Plan, job: Job, error: str) -> list[Record]:
    """Error records of what is missing of a job."""
    known = {record.key for record in job.known}
    keys = (
        RecordKey(label, *job.sample.key(turn))
        for turn in range(len(job.sample.prompt.turns))
        for label in plan.setup.labels
    )
    return [
        Record(key, "error", 0, seed=seed_of(plan.spec.seed, key.request), error=error)
        for key in keys
        if key not in known
    ]
