"""Make the header of a new run from its plan."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from specbench.errors import few
from specbench.log.header import RunHeader
from specbench.log.spec import SpecHeader
from specbench.machine import environment
from specbench.measure.base import Plan, loads_of_run

PHASES_WARNING = (
    "The phases of every step were timed (--phases), which slows steps down: this run shows where "
    "a step's time goes, and is not evidence of speed."
)


def make_header(
    plan: Plan, path: Path, *, given: Sequence[str], command: Sequence[str]
) -> RunHeader:
    """The header of a plan's new run in a folder.

    Args:
        plan: the setup, the prompts and the options of the run.
        path: the run's folder.
        given: names of the options that the user gave.
        command: arguments of the command line.
    """
    about = plan.about  # the setup's part of the header
    # The columns of tables: the title of each task by its name.
    columns = {prompt_set.task.name: prompt_set.task.title for prompt_set in plan.prompt_sets}
    loads = loads_of_run(plan.spec)
    values = replace(
        plan.spec,
        methods=plan.setup.labels,
        tasks=tuple(columns),
        concurrency=tuple(load.concurrency for load in loads if load.concurrency),
        max_new_tokens=plan.max_new_tokens,
        **about.values,
    )
    return RunHeader(
        id=path.resolve().name,
        uid=uuid4().hex,
        status="running",
        created=now(),
        command=tuple(command),
        spec=SpecHeader(values=values, asked=plan.spec, given=tuple(sorted(given))),
        environment=about.environment or environment.capture(),
        warnings=(*about.warnings, *_warnings(plan)),
        model=about.model,
        methods=about.methods,
        no_checkpoint=plan.setup.no_checkpoint,
        num_records=plan.num_records,
        columns=columns,
        prompts=tuple(prompt_set.describe() for prompt_set in plan.prompt_sets),
    )


def _warnings(plan: Plan) -> list[str]:
    """Warnings about control tokens in prompts, other programs on this machine, and --phases."""
    warnings = [control_warning(plan)]
    if not plan.about.environment:  # this machine completes the requests
        warnings.append(environment.busy_warning())
    if plan.spec.phases:
        warnings.append(PHASES_WARNING)
    return [warning for warning in warnings if warning]


def control_warning(plan: Plan) -> str | None:
    """A warning about prompts whose text has control tokens, or None without such prompts."""
    tokens = {  # the last control token of each such prompt, by the prompt's id
        prompt.sample_id: token
        for prompts in plan.prompts.values()
        for prompt in prompts
        for turn in prompt.turns
        for token in plan.setup.codec.control_tokens(turn)
    }
    if not tokens:
        return None
    prompts_text = few([f"{sample_id} ({token})" for sample_id, token in tokens.items()])
    return (
        f"The text of {prompts_text} has special tokens, which the model reads as control "
        "tokens, not as text. Use a chat template, or leave these prompts out."
    )


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
