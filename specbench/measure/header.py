"""The header of a run that is about to start, from its plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from specbench.log.header import RunHeader
from specbench.log.spec import SpecHeader
from specbench.machine import environment
from specbench.measure.base import Plan

PHASES_WARNING = (
    "The phases of every step were timed (--phases), which slows steps down: this run shows where "
    "a step's time goes, and is not evidence of speed."
)


def make_header(
    plan: Plan, path: Path, *, given: Sequence[str], command: Sequence[str]
) -> RunHeader:
    """The header of a plan that runs in a folder for the first time.

    Args:
        plan: what runs.
        path: the run's folder.
        given: options that the user gave.
        command: arguments of the command line.
    """
    about = plan.about
    columns = {one.task.name: one.task.title for one in plan.prompt_sets}
    values = replace(
        plan.spec,
        methods=plan.setup.labels,
        tasks=tuple(columns),
        concurrency=tuple(load.concurrency for load in plan.loads if load.concurrency),
        max_new_tokens=plan.max_new_tokens,
        **about.values,
    )
    phases = PHASES_WARNING if plan.spec.phases else None
    busy = None if about.environment else environment.busy_warning()
    warnings = (control_warning(plan), busy, phases)
    return RunHeader(
        id=path.name,
        uid=uuid4().hex,
        status="running",
        created=now(),
        command=tuple(command),
        spec=SpecHeader(values=values, asked=plan.spec, given=tuple(sorted(given))),
        environment=about.environment or environment.capture(),
        warnings=(*about.warnings, *(text for text in warnings if text)),
        model=about.model,
        methods=about.methods,
        no_checkpoint=plan.setup.no_checkpoint,
        num_records=plan.num_records,
        columns=columns,
        prompts=tuple(one.describe() for one in plan.prompt_sets),
    )


def control_warning(plan: Plan) -> str | None:
    """A sentence about the prompts whose text has control tokens; None if none has."""
    found = {
        prompt.sample_id: token
        for prompts in plan.prompts.values()
        for prompt in prompts
        for turn in prompt.turns
        for token in plan.setup.codec.control_tokens(turn)
    }
    if not found:
        return None
    shown = ", ".join(f"{name} ({token})" for name, token in [*found.items()][:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"The text of {shown}{more} has special tokens, which the model reads as control "
        "tokens, not as text. Use a chat template, or leave these prompts out."
    )


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
