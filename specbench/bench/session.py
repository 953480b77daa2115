"""A plan brought to life: the target loaded, the drafters built, the run written to its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specbench.bench import environment
from specbench.bench.contestants import Contestant
from specbench.bench.gpu_sampler import gpu_sampler, metered
from specbench.bench.plan import Plan, Setup
from specbench.bench.roofline import describe_drafts, describe_target
from specbench.bench.runner import Completer, Progress, Runner
from specbench.bench.spec import RunSpec
from specbench.bench.stand_ins import STAND_IN_WARNING
from specbench.bench.store import HEADER, RunFolder, StoredRun, list_runs, read_header, read_run
from specbench.bench.warm_up import warm_up
from specbench.errors import RunFolderError
from specbench.types import Record

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target

LATE_WARNING = (
    "{} steps were recorded as CUDA graphs while samples were timed, which are slower for it: "
    "their sizes had not come up in the warm-up."
)
PHASES_WARNING = (
    "The phases of every step were measured (--phases), which costs time: the run tells where a "
    "step's time goes, and is no evidence of speed."
)


def load_model(setup: Setup) -> Target:
    """The target, on its device."""
    import torch

    from specbench.engine.execution import Eager, Execution
    from specbench.engine.graphs import CudaRecorder, Graphs
    from specbench.engine.load import load_target
    from specbench.engine.pick_ops import pick_ops

    dtype, device = getattr(torch, setup.dtype), torch.device(setup.device.name)
    source = setup.stand_in.target if setup.stand_in else setup.path
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels and graphs go to the current one
    if setup.mode.name == "graph":
        execution: Execution = Graphs(CudaRecorder(device), pick_ops(device, dtype))
    else:
        execution = Eager()
    return load_target(source, dtype=dtype, device=device, execution=execution)


def build_drafters(target: Target, contestants: Sequence[Contestant]) -> dict[str, Drafter]:
    """Each contestant's drafter."""
    from specbench.engine.drafter import BuildContext

    return {
        c.label: c.method.build(c.options, BuildContext(target, c.weights)) for c in contestants
    }


def build_completers(
    target: Target,
    drafters: Mapping[str, Drafter],
    *,
    has_phases: bool = False,
    is_traced: bool = False,
) -> dict[str, Completer]:
    """For each drafter what completes a request: the engine's loop with it."""
    from specbench.engine.clock import phase_stopwatch
    from specbench.engine.decode import decode

    stopwatch = phase_stopwatch(target.device) if has_phases else None
    return {
        label: partial(decode, target, drafter, stopwatch=stopwatch, is_traced=is_traced)
        for label, drafter in drafters.items()
    }


def choose_folder(
    spec: RunSpec, output: Path | None, is_resumed: bool, root: Path
) -> tuple[Path, bool]:
    """Where the run is written, and whether it goes on with one that lies there.

    Raises:
        RunFolderError: the folder holds a run already, or nothing to resume, or another spec's run.
    """
    if is_resumed:
        path = output or _newest_unfinished(spec, root)
        differences = spec.differences(_asked(read_header(path)))
        if differences:
            raise RunFolderError(
                f"The run in {path} has another specification: {'; '.join(differences)}.",
                "Repeat its options, or start a new run without --resume.",
            )
        return path, True
    if output is None:
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{now}-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(spec.model).name)}"
        taken = sum(1 for _ in root.glob(f"{name}*"))
        return root / (f"{name}-{taken + 1}" if taken else name), False
    if (output / HEADER).exists():
        raise RunFolderError(
            f"{output} holds a run already.",
            "Go on with it by --resume, or give another --output.",
        )
    return output, False


def _newest_unfinished(spec: RunSpec, root: Path) -> Path:
    for path, header in list_runs(root):
        is_open = header.get("status") != "complete"
        if is_open and not spec.differences(_asked(header)):
            return path
    raise RunFolderError(
        f"No unfinished run with these options lies in {root}.",
        "See `specbench list runs`, and name one with --output DIR --resume.",
    )


def _asked(header: Mapping[str, Any]) -> RunSpec:
    return RunSpec.from_json(header["spec"]["asked"])


def run_plan(
    plan: Plan, path: Path, progress: Progress, given: Sequence[str], command: Sequence[str] = ()
) -> StoredRun:
    """Run everything that is missing in the folder, and leave a valid run however it ends.

    An interrupt leaves the status `interrupted` and is raised again; an error, `failed`.
    """
    setup = plan.setup
    with RunFolder(path) as folder, gpu_sampler(setup.device.name) as sampler:
        header = _header(plan, path, given, command)
        folder.write_header(header)
        progress.message(f"Loading {setup.card.title} ({setup.dtype}, {setup.device.name}) …")
        status = "failed"
        drafters: Mapping[str, Drafter] = {}
        try:
            began = perf_counter()
            target = load_model(setup)
            drafters = build_drafters(target, setup.contestants)
            header["preparation"] = {"load_s": round(perf_counter() - began, 3)}
            header["roofline"] = describe_target(target)
            header["kernels"] = _kernels(target)
            completers = build_completers(
                target, drafters, has_phases=plan.spec.phases, is_traced=plan.spec.trace
            )
            if sampler:
                sampler.start()
            measured = metered(completers, target.device, sampler)
            _run(plan, target, measured, folder, progress, header)
            if late := getattr(target.execution, "num_late", 0):
                header["warnings"] = [*header["warnings"], LATE_WARNING.format(late)]
            status = "complete"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            if "roofline" in header:
                header["roofline"]["draft_bytes"] = describe_drafts(drafters, folder.records())
            if sampler:
                sampler.stop()
                header["gpu"] = sampler.describe()
                header["warnings"] = header["warnings"] + sampler.warnings()
            folder.write_header({**header, "status": status, "finished": _now()})
    return read_run(path)


def _run(
    plan: Plan,
    target: Target,
    completers: Mapping[str, Completer],
    folder: RunFolder,
    progress: Progress,
    header: dict[str, Any],
) -> None:
    """Run what is missing; the header is told how each method's steps are run."""
    runner = Runner(plan.spec, plan.max_new_tokens, completers, plan.setup.codec, folder, progress)
    done = folder.records()
    missing = runner.total(plan.prompts) - len(done)
    if not missing:
        return
    progress.message("Warming up …")
    began = perf_counter()
    header["execution"] = warm_up(plan, completers, target)
    header["preparation"]["warm_up_s"] = round(perf_counter() - began, 3)
    progress.started(missing)
    try:
        for _ in runner.run(plan.prompts, done):
            pass
    finally:
        progress.finished()


def _kernels(target: Target) -> dict[str, str | None]:
    """What computes the layers, and why not kernels of our own where they were wanted."""
    if target.why_not_fused:
        return {"name": "transformers", "reason": target.why_not_fused}
    ops = target.execution.ops
    return {"name": ops.name, "reason": ops.why_no_kernels}


def _header(plan: Plan, path: Path, given: Sequence[str], command: Sequence[str]) -> dict[str, Any]:
    try:
        created = read_header(path)["created"]
    except RunFolderError:
        created = _now()
    described = plan.describe()
    return {
        "id": path.name,
        "status": "running",
        "created": created,
        "finished": None,
        "command": list(command),
        "spec": {
            "values": described.pop("effective"),
            "asked": plan.spec.to_json(),
            "given": sorted(given),
        },
        "environment": environment.capture(),
        "warnings": _warnings(plan),
        **described,
    }


def _warnings(plan: Plan) -> list[str]:
    found = [plan.setup.codec.template.warning, environment.busy_warning()]
    if plan.spec.phases:
        found.append(PHASES_WARNING)
    if plan.setup.stand_in:
        found.append(STAND_IN_WARNING)
    return [warning for warning in found if warning]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def failures(records: Sequence[Record]) -> list[Record]:
    """The records of samples that failed."""
    return [record for record in records if not record.is_ok]
