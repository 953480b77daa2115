"""Load the models on a machine of a cluster, and complete samples there.

A worker sets its environment variables before torch is imported, because OpenMP reads them then.
"""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import cast

import msgspec

from specbench.errors import SpecbenchError, UserError, describe_error
from specbench.log.backend import WorkerHeader
from specbench.log.machine import Environment
from specbench.machine import environment
from specbench.machine.cpu_sampler import CpuSampler
from specbench.machine.pauses import PauseWatch
from specbench.measure.base import BackendInfo, Progress, RequestBackend, Setup, Work
from specbench.measure.cluster.messages import Job, Opening, Result, WorkerReport
from specbench.measure.plan import make_setup
from specbench.measure.runner import SampleRunner
from specbench.measure.spec import RunSpec
from specbench.types import Record

SHARED_VARIABLES = {*environment.VARIABLES} - {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
"""The environment variables that workers get from the driver. Ray sets the two that choose GPUs."""


class Worker:
    """Completes samples of a run. Ray starts it again, in another process, if its process dies."""

    def __init__(self, spec: RunSpec, *, is_offline: bool, shared: dict[str, str]) -> None:
        """Set the environment variables; the setup and the model are made later.

        Variables in SHARED_VARIABLES change speed or numerics. They get the values that they have
        in the driver, the process that started the run. Those that it has not set are unset here.

        Args:
            spec: the run's options.
            is_offline: use no network.
            shared: names and values of the driver's environment variables to set.
        """
        import ray

        self._ray = ray
        self._spec = spec
        self._is_offline = is_offline
        self._shared = shared
        self._stack = ExitStack()  # frees the model and ends the samplers when it is closed
        self._sampler = CpuSampler()  # samples the CPU's load and clock
        self._machine: Environment | None = None  # hardware and versions here; None until reported
        self._runner: SampleRunner | None = None  # None before the model is loaded
        self._done: list[Record] = []  # this worker's records so far, without tokens and texts
        for name in SHARED_VARIABLES:
            os.environ.pop(name, None)  # Ray sets some of them
        os.environ.update(shared)

    def report(self) -> WorkerReport:
        """The setup on this machine, with the machine's address, versions and warnings.

        A setup is the model's files and the methods, found and checked, before anything is loaded.
        It has a title in words, the methods' labels, the methods without a checkpoint, a codec
        (chats to tokens and back), and the length of the model's context in tokens.

        Raises:
            SpecbenchError: the setup cannot be made here. The message names the machine.
        """
        address = str(self._ray.util.get_node_ip_address())
        try:
            setup = self._setup
            about = setup.describe()  # the setup's part of the run's header
        except SpecbenchError as error:
            raise error.at(address) from error  # names the machine in the message
        except Exception as error:
            raise UserError(f"A worker on {address} failed: {describe_error(error)}") from error
        # Hardware and versions, with only the driver's environment variables (`_shared`): Ray's
        # own, such as its choice of GPUs, differ by worker.
        self._machine = msgspec.structs.replace(environment.capture(), variables=self._shared)
        # The setup's warnings, and one if other work keeps the processor busy (else None).
        warnings = (*about.warnings, environment.busy_warning())
        return WorkerReport(
            address=address,
            about=msgspec.structs.replace(
                about,
                environment=self._machine,
                warnings=tuple(warning for warning in warnings if warning),
            ),
            title=setup.title,
            labels=setup.labels,
            no_checkpoint=setup.no_checkpoint,
            codec=setup.codec,
            context=setup.context,
        )

    def complete(self, opening: Opening, job: Job | None) -> Result:
        """Make those records of a sample that are not stored yet. Without a job, make none.

        The first call in a process loads the model, checks that it is the run's model, and warms
        up. Its result also has the worker's description.
        """
        info = None
        if self._runner is None:
            info = self._load(opening)
        records: Iterable[Record] = ()
        if job:
            records = self._get_runner().run_sample(job.sample, job.stored)
        return Result(info, tuple(records))

    def close(self) -> BackendInfo:
        """Free the model. Returns the last description of the worker."""
        self._stack.close()
        return self._describe()

    def append(self, record: Record) -> None:
        """Keep a record for `_describe`, without tokens and texts. The driver stores records."""
        self._done.append(replace(record, token_ids=(), text="", token_ends=(), trace=()))

    def _load(self, opening: Opening) -> BackendInfo:
        """Load the model and warm up. Returns the worker's part of the run's header.

        `opening.about` is the header's part about model, files and methods, to which this worker's
        part must be equal. `opening.requests` are the requests of the warm-up, a usual request
        first.

        Raises:
            UserError: the versions or files on this machine differ from those of the run.
            SpecbenchError: the setup cannot be made here, or the model cannot be loaded.
        """
        self.report()  # makes the setup, if Ray started this process again
        setup = self._setup
        # A run on a cluster has no servers, so this is the engine's backend. It uses no folder.
        backend = cast(RequestBackend, self._stack.enter_context(setup.open(Path())))
        self._stack.enter_context(self._sampler)
        self.report().check(opening.about)  # the files may have changed while they were loaded
        backend.warm_up(opening.requests)
        # The plan stays with the driver, but the usual request has the plan's `max_new_tokens`.
        max_new_tokens = opening.requests[0].max_new_tokens
        work = Work(self._spec, setup.labels, setup.codec, max_new_tokens)  # same for all samples
        silent_progress = Progress(lambda text: None)  # shows nothing
        self._runner = SampleRunner(  # gives each new record to `self.append`
            work, backend, sink=self, progress=silent_progress, watch=PauseWatch()
        )
        self._stack.enter_context(self._runner.watch)  # notes when this process was paused
        return self._describe()

    @cached_property
    def _setup(self) -> Setup:
        """The model's files and the methods, found and checked on this machine at the first use."""
        return make_setup(self._spec, is_offline=self._is_offline)

    def _get_runner(self) -> SampleRunner:
        """The runner of the loaded model."""
        assert self._runner is not None, "a call loads the model first"
        return self._runner

    def _describe(self) -> BackendInfo:
        """The worker's part of the run's header, as measured so far.

        `workers` has only this worker, with the name "": the driver gives workers their names.
        """
        info = self._get_runner().backend.describe(self._done)
        context = self._ray.get_runtime_context()
        gpu_ids = context.get_accelerator_ids().get("GPU", ())
        assert self._machine is not None, "the report has described the machine"
        header = WorkerHeader(
            node=context.get_node_id()[:12],  # enough to tell machines apart
            gpu_ids=tuple(str(gpu_id) for gpu_id in gpu_ids),
            environment=self._machine,
            preparation=info.preparation,
            threads=info.threads,
            roofline=info.roofline,
            gpu=info.gpu,
            cpu=self._sampler.describe(),
        )
        return replace(info, workers={"": header})
