"""The actor that holds a worker in a Ray cluster.

Imports no torch before its environment is set: OpenMP reads it when torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property

from specbench.machine.threads import wait_briefly
from specbench.measure.backends import make_setup
from specbench.measure.cluster.cluster import Job, Opening, Place, SetupReport, WorkerState
from specbench.measure.cluster.worker import Worker
from specbench.measure.spec import RunSpec
from specbench.types import Record


class Restarted(Exception):
    """A worker that Ray restarted while it was idle gets a job before it has loaded its model."""


class RayWorker:
    """A worker of a spec. Its setup is made at the first use, so that its errors are told there.

    `variables` are the driver's environment variables that change speed or numerics, None for those
    that are not set: Ray sets some of them.
    """

    def __init__(
        self, spec: RunSpec, *, is_offline: bool, variables: Mapping[str, str | None]
    ) -> None:
        self._spec, self._is_offline, self._is_open = spec, is_offline, False
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        wait_briefly()

    def place(self) -> Place:
        """The machine and the GPUs that Ray chose."""
        import ray

        context = ray.get_runtime_context()
        gpu_ids = context.get_accelerator_ids().get("GPU", [])
        address = ray.util.get_node_ip_address()
        return Place(address, context.get_node_id()[:12], tuple(map(str, gpu_ids)))

    def report(self) -> SetupReport:
        return self._worker.report()

    def open(self, name: str, opening: Opening) -> WorkerState:
        self._is_open = True
        return self._worker.open(name, opening)

    def complete(self, job: Job) -> tuple[Record, ...]:
        if not self._is_open:
            raise Restarted("Its process was restarted.")
        return self._worker.complete(job)

    def close(self) -> WorkerState:
        return self._worker.close()

    @cached_property
    def _worker(self) -> Worker:
        setup = make_setup(self._spec, is_offline=self._is_offline)
        return Worker(self._spec, setup, self.place())
