"""Measure draft sizes on real servers. Each measurement is a run in the folder of the tune."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from specbench.log.backend import BlockHeader
from specbench.log.run import Run
from specbench.measure.base import Plan, Progress
from specbench.measure.continued_run import continued_run
from specbench.measure.plan import SetupMaker, make_plan, make_setup
from specbench.measure.requests import warm_up_requests
from specbench.measure.server.backend import ServerBackend
from specbench.measure.spec import RunSpec
from specbench.tune.served.draft_size import PLAIN, DraftSize, TunedMethod
from specbench.tune.served.shared_servers import make_shared_setup, unsupported_reason

SHORT_TOKENS = 64
"""The most tokens of an answer if only the time of a step matters."""


@dataclass
class RunBench:
    """Starts the engine's servers and measures them."""

    spec: RunSpec
    """The user's request: model, tasks, the length of answers, the engine."""
    folder: Path
    """The folder of the tune, with the folder of a run per measurement."""
    progress: Progress
    """Receives events and messages."""
    is_offline: bool = False
    """True if nothing may be downloaded."""
    setup_maker: SetupMaker = make_setup
    """Makes the setup of a run, with a server per size, or one server for all sizes of a method."""
    runs: dict[str, Run] = field(default_factory=dict)
    """The run of each measurement, by the name of the measurement."""

    def measure(
        self,
        name: str,
        sizes: Sequence[DraftSize],
        loads: Sequence[int],
        *,
        passes: int = 1,
        is_short: bool = False,
    ) -> Sequence[BlockHeader]:
        """Run requests with each draft size at each load, in turns. Returns the measured blocks.

        A block has the requests of a size for one task at one load in one pass. A run that is
        already in the folder is continued. `progress` receives a message per size with failed
        requests.

        Args:
            name: name of the measurement, and of the run's folder in the tune's folder.
            sizes: sizes to measure.
            loads: requests at once.
            passes: passes over the prompts.
            is_short: True if only the time of steps counts, so that short answers are enough.

        Raises:
            UserError: the folder has a run with other inputs, or of another machine or version.
        """
        self.progress.message(f"{name}: {', '.join(size.label for size in sizes)}")
        plan = self._plan(sizes, loads, passes=passes, is_short=is_short)
        run = continued_run(plan, self.folder / name, self.progress)
        self.runs[name] = run
        for size in sizes:
            records = [record for record in run.records if record.key.method == size.label]
            errors = [record.error for record in records if not record.is_ok]  # texts
            if errors:
                self.progress.message(
                    f"{size.label}: {len(errors)} of {len(records)} requests failed: {errors[0]}"
                )
        return run.header.blocks

    def try_shared_servers(self, methods: Sequence[TunedMethod], loads: Sequence[int]) -> None:
        """Let one server per method serve all sizes from now on, if every server allows it.

        A server allows it if it drafts as many tokens as a request asks for. Each method's server
        is started with the largest size, and tried. If one does not allow it, nothing changes: a
        server is started per size, and `progress` receives the reason.

        Args:
            methods: the methods with the sizes to try.
            loads: requests at once, as in the measurements.

        Raises:
            SpecbenchError: a server did not start, or did not answer.
        """
        for method in methods:
            plan = self._plan([method.largest], loads, passes=1, is_short=True)
            with tempfile.TemporaryDirectory(prefix="specbench-") as folder:
                backend = plan.setup.open(Path(folder))
                assert isinstance(backend, ServerBackend)  # the plans of a tune run on servers
                with backend:
                    request = warm_up_requests(plan)[0]  # a usual request with a short answer
                    # Why the server does not allow it; "" if it does. `run` runs the coroutine.
                    reason = backend.run(
                        unsupported_reason(backend.source, method.largest, request)
                    )
            if reason:
                self.progress.message(f"{reason} A server is started for each size.")
                return
        self.setup_maker = make_shared_setup  # of all later plans

    def _plan(
        self, sizes: Sequence[DraftSize], loads: Sequence[int], *, passes: int, is_short: bool
    ) -> Plan:
        """Plan a run with these sizes as methods, at these loads (requests at once)."""
        max_new_tokens = self.spec.max_new_tokens  # None: the tasks decide
        if is_short:
            max_new_tokens = min(max_new_tokens or SHORT_TOKENS, SHORT_TOKENS)
        spec = replace(
            self.spec,
            methods=tuple(str(size.method) for size in sizes),
            is_baseline_run=PLAIN in sizes,
            concurrency=tuple(loads),
            repeats=passes,
            max_new_tokens=max_new_tokens,
        )
        return make_plan(spec, is_offline=self.is_offline, setup_maker=self.setup_maker)
