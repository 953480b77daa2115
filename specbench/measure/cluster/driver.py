"""The driver of a cluster: it hands samples to workers and stores their records.

All methods of a sample run on one worker.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, Self

from specbench.errors import SpecbenchError, reason_of
from specbench.measure.base import BackendInfo, Log, Plan, Progress, SetupInfo
from specbench.measure.cluster.messages import Job, Opening, Result
from specbench.types import Record, Request, seed_of

MOST_ATTEMPTS = 3
"""A sample is given up once this many workers were lost while they completed it."""
RESTART_S = 120.0
"""Seconds to wait for a worker to come back when none is left."""
CLOSE_S = 30.0
"""Seconds to wait until all workers have sent their last descriptions."""


class Call(NamedTuple):
    """A call of a worker that has not ended."""

    actor: Any
    """The worker, as Ray's handle."""
    job: Job | None
    """The sample to complete; None while the worker loads its model."""


class ClusterBackend:
    """The workers of a cluster while a run uses them. In `warm_up`, they load their models.

    Workers are named worker-1, worker-2 and so on. A resumed run continues this numbering.
    """

    def __init__(
        self, ray: Any, actors: Sequence[Any], about: SetupInfo, *, num_named: int
    ) -> None:
        """Take over the workers. Nothing is sent to them yet.

        Args:
            ray: the module `ray`, connected to the cluster.
            actors: Ray's handles of the workers.
            about: model, methods and versions, as in the run's header: the same for all workers.
            num_named: the number of workers that the run had before it was resumed, or 0 for a new
                run. The next worker is worker-{num_named + 1}.
        """
        self._ray = ray
        self._actors = actors
        self._about = about
        self._num_named = num_named
        self._names: dict[Any, str] = {}  # names of workers, by actor
        self._infos: dict[str, BackendInfo] = {}  # descriptions of workers, by worker's name
        self._idle = deque[Any]()  # actors that have loaded their models and have no job
        # A job is a sample to complete: a prompt with all its turns, in one pass over the prompts.
        self._waiting = deque[Job]()  # jobs of the present pass that no worker has yet
        # The calls that have not ended, by Ray's references to their results.
        self._calls: dict[Any, Call] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the idle workers, keep their last descriptions, and end all workers.

        An actor is Ray's handle of a worker. `_actors` has all of them, and `_idle` those that have
        loaded the model and have no job. `exception` is the error that ended the block, if any; it
        is not caught.
        """
        # The idle actors by Ray's references to the descriptions that `close` will return.
        closing = {actor.close.remote(): actor for actor in self._idle}
        # The references whose call ended or failed within CLOSE_S seconds.
        closed, _ = self._ray.wait([*closing], num_returns=len(closing), timeout=CLOSE_S)
        for reference in closed:
            worker_name = self._names[closing[reference]]
            # A worker that failed keeps its earlier description.
            with suppress(self._ray.exceptions.RayError):
                self._infos[worker_name] = self._ray.get(reference)
        for actor in self._actors:
            with suppress(self._ray.exceptions.RayError):  # the cluster may have failed
                self._ray.kill(actor)

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        """The first worker's part of the run's header, and the headers of all workers.

        A method counts as eager if any worker had to run its steps eagerly.
        """
        infos = self._infos
        # Pairs of a label and an execution. Eager ones come last, because `dict` keeps the last.
        executions = [pair for info in infos.values() for pair in info.execution.items()]
        executions.sort(key=lambda pair: pair[1].mode == "eager")
        return replace(
            next(iter(infos.values()), BackendInfo()),
            execution=dict(executions),
            gpu=None,
            workers={
                name: worker for name, info in infos.items() for worker in info.workers.values()
            },
            warnings=tuple(
                f"{name}: {warning}" for name, info in infos.items() for warning in info.warnings
            ),
        )

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Let all workers load their models and warm up. Errors show when the run begins.

        Each call gets the opening as an argument (up to 100 KiB), not through Ray's object store.
        If the raylet of this machine dies while the store holds an object of this process, Ray ends
        the process at once, without a message.
        """
        self._opening = Opening(self._about, requests)
        for actor in self._actors:
            self._submit(actor)
        self._ray.wait([*self._calls], num_returns=len(self._calls))

    def runner(self, plan: Plan, log: Log, progress: Progress) -> "ClusterBackend":
        """Return this driver. Each worker watches for pauses of its own process.

        The header is written again whenever a worker joins, so that it names all workers.
        """
        self._plan = plan
        self._log = log
        self._progress = progress
        return self

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run the samples on idle workers, and yield each new record after it is stored.

        A sample is a prompt at one temperature in one pass over the prompts, with all turns and
        methods; a record is the answer of one method to one turn. The records of a sample are
        written when the sample is complete. If its worker is lost before that, another worker
        repeats the sample. A pass ends before the next pass begins. `done` are the records that
        the run already has.

        Raises:
            SpecbenchError: a worker refuses the model, the cluster fails, or no worker is left and
                none comes back in time.
        """
        # A job is a sample with missing records; `repeat` is the number of its pass.
        for _, jobs_of_pass in groupby(_jobs(self._plan, done), lambda job: job.sample.repeat):
            self._waiting.extend(jobs_of_pass)  # jobs that no worker has yet
            while self._waiting or self._is_working:
                while self._idle and self._waiting:
                    self._submit(self._idle.popleft(), self._waiting.popleft())  # worker, job
                for record in self._next_records():  # waits until a job ends
                    self._log.append(record)
                    self._progress.sample_finished(record)
                    yield record

    @property
    def _is_working(self) -> bool:
        """True if any worker has a job."""
        return any(call.job for call in self._calls.values())

    def _submit(self, actor: Any, job: Job | None = None) -> None:
        """Begin a job. Without a job, load the model; Ray repeats this call after a restart."""
        max_task_retries = 0 if job else -1
        complete = actor.complete.options(max_task_retries=max_task_retries)
        self._calls[complete.remote(self._opening, job)] = Call(actor, job)

    def _next_records(self) -> Sequence[Record]:
        """Wait until a call of a worker ends.

        A call lets a worker complete a sample (its job), or only load its model. `_calls` has the
        worker (as Ray's handle, an actor) and the job of each call, by Ray's reference to the
        result of the call.

        Returns:
            The records of the sample, with the worker's name. If the sample is given up, these are
            error records without a name. Empty if the worker has only loaded its model, or is lost
            and another worker will repeat its sample.

        Raises:
            SpecbenchError: a worker refuses the model (`get` raises its error), the cluster fails,
                or all workers are lost and none came back within RESTART_S seconds.
        """
        # While a worker has a job, there is no limit (None): a job may take any length of time.
        timeout_s = None if self._is_working else RESTART_S
        # Ray's references to the results of calls that have ended: at most one.
        ended, _ = self._ray.wait([*self._calls], timeout=timeout_s)
        if not ended:
            raise SpecbenchError(
                "No worker is left, and none came back.",
                "Fix the cluster (see `ray status`), then continue with --resume.",
            )
        reference = ended[0]
        actor, job = self._calls.pop(reference)  # job is None if the worker loaded its model
        exceptions = self._ray.exceptions
        try:
            result: Result = self._ray.get(reference)
        # The worker is lost, or the machine that it must run on.
        except (exceptions.RayActorError, exceptions.ActorUnschedulableError) as error:
            return self._handle_loss(actor, job, f"{reason_of(error).rstrip('.')}.")
        except exceptions.RayError as error:
            if isinstance(error, exceptions.RayTaskError):  # an error in the worker's own code
                raise
            raise SpecbenchError(
                f"The Ray cluster failed: {reason_of(error).rstrip('.')}.",
                "Fix the cluster (see `ray status`), then continue with --resume.",
            ) from error
        self._idle.append(actor)
        if result.info is not None:  # a worker's description, with its first result only
            self._add_worker(actor, result.info)  # gives it a name
        return [replace(record, worker=self._names[actor]) for record in result.records]

    def _add_worker(self, actor: Any, info: BackendInfo) -> None:
        """Name a worker that has loaded its model, and let the run's header be written again.

        `actor` is Ray's handle of the worker, `info` the worker's description for the header.
        """
        name = f"worker-{self._num_named + len(self._infos) + 1}"
        self._names[actor] = name
        self._infos[name] = info
        self._log.changed()
        self._progress.message(f"{name} has joined.")

    def _handle_loss(self, actor: Any, job: Job | None, reason: str) -> Sequence[Record]:
        """Let another worker repeat the job of a lost worker.

        Ray itself repeats the loading of a model. So a worker that is lost while it loads its
        model cannot be restarted: it is not used again.

        Args:
            actor: Ray's handle of the lost worker.
            job: the sample that the worker was completing (a prompt with all turns, for all
                methods); None if the worker was loading its model.
            reason: why the worker is lost, as a sentence.

        Returns:
            An error record for each missing record of the sample, if MOST_ATTEMPTS workers were
            lost while they completed this sample; else nothing.
        """
        worker_name = self._names.get(actor, "A worker")  # it has a name once its model is loaded
        if job is None:
            self._progress.message(f"{worker_name} is lost: {reason}")
            return ()
        num_lost = job.num_lost + 1  # workers lost at this sample
        is_repeated = num_lost < MOST_ATTEMPTS
        remedy = "Another worker repeats" if is_repeated else "No other worker tries"
        prompt_id = job.sample.prompt.sample_id
        self._progress.message(f"{worker_name} is lost: {reason} {remedy} {prompt_id}.")
        self._submit(actor)  # loads the model again, if Ray can restart the worker
        if is_repeated:
            self._waiting.appendleft(job._replace(num_lost=num_lost))  # the next to be given out
            return ()
        error = f"{MOST_ATTEMPTS} workers were lost while they completed it: {reason}"
        seed = self._plan.spec.seed  # the run's seed; `seed_of` derives a request's seed from it
        return [
            Record(key, "error", prompt_tokens=0, seed=seed_of(seed, key.request), error=error)
            for label in self._plan.setup.labels  # the methods' labels
            for key in job.sample.keys(label)  # the keys of a method's records, one per turn
            if key not in job.stored
        ]


def _jobs(plan: Plan, done: Iterable[Record]) -> Iterator[Job]:
    """A job for each sample that lacks a record, in the run's order.

    `done` are the records that the run already has.
    """
    stored = {record.key: record for record in done}
    for sample in plan.samples:
        keys = [key for label in plan.setup.labels for key in sample.keys(label)]
        stored_of_sample = {key: stored[key] for key in keys if key in stored}
        if len(stored_of_sample) < len(keys):
            yield Job(sample, stored_of_sample)
