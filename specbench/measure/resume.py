"""Going on with a run: the same inputs, the same machine, and the records that are missing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from specbench.errors import RunFolderError, few
from specbench.log.differences import RESUME, Difference
from specbench.log.header import MethodHeader, RunHeader, Segment
from specbench.log.run import Run
from specbench.measure.base import Plan
from specbench.measure.methods import kept_options


def resumed_header(stored: Run, now: RunHeader, *, is_forced: bool) -> RunHeader:
    """The header of a stored run that goes on, where a new run would have the header `now`.

    Everything is as it was at first. With `is_forced`, another machine or other versions are
    kept as a segment of the run.

    Raises:
        RunFolderError: the inputs differ, or without `is_forced` the machine or the versions.
    """
    before = stored.header
    if before.origins:
        raise RunFolderError(
            f"The run in {stored.path} was merged from {len(before.origins)} runs.",
            "Go on with one of those, and merge them again.",
        )
    machine = before.segments[-1].environment if before.segments else before.environment
    latest = replace(before, environment=machine)
    methods = {
        label: _as_before(one, before.methods.get(label)) for label, one in now.methods.items()
    }
    now = replace(now, methods=methods)
    if inputs := RESUME.conflicts(latest, now):
        raise RunFolderError(
            f"The run in {stored.path} had other inputs: {_listed(inputs)}.",
            "Restore them, or start a new run without --resume.",
        )
    segments, warnings = before.segments, before.warnings
    if cautions := RESUME.cautions(latest, now):
        what = f"on another machine or with other versions: {_listed(cautions)}"
        if not is_forced:
            raise RunFolderError(
                f"The run in {stored.path} was measured {what}.",
                "Restore them, start a new run without --resume, or go on with --force: reports "
                "then warn.",
            )
        count = len(stored.records)
        segments += (Segment(count, now.created, now.environment),)
        warnings += (
            f"Records after the first {count} were measured {what} (--resume --force). Totals mix "
            "both. Measure anew on one machine before you use them.",
        )
    return replace(
        before,
        id=now.id,
        status="running",
        finished=None,
        segments=segments,
        warnings=tuple(dict.fromkeys((*warnings, *now.warnings))),
    )


def _as_before(now: MethodHeader, before: MethodHeader | None) -> MethodHeader:
    """The method with the settings that were chosen when its run began."""
    if before is None:
        return now
    kept = kept_options(before, now.settings)
    return replace(now, options={**now.options, **kept}, settings=before.settings)


def check_records(plan: Plan, stored: Run) -> None:
    """Raise RunFolderError if the run has records that its plan does not make.

    Also if a method would need a memory of records that it did not make.
    """
    planned = set(plan.keys)
    if unknown := [one.key for one in stored.records if one.key not in planned]:
        key = unknown[0]
        raise RunFolderError(
            f"The run in {stored.path} has {len(unknown)} records that are not part of it, such as "
            f"{key.method} on {key.sample_id!r} (turn {key.turn}, repeat {key.repeat}, "
            f"temperature {key.temperature:g}).",
            "Delete these lines of samples.jsonl, or start a new run without --resume.",
        )
    methods = [name for name, one in stored.header.methods.items() if one.scope == "run"]
    if methods and stored.records and len(stored.records) < plan.num_records:
        raise RunFolderError(
            f"The run in {stored.path} cannot go on: {', '.join(methods)} remembers earlier "
            "prompts, and that memory ended with the first part of the run.",
            "Start a new run without --resume.",
        )


def _listed(differences: Sequence[Difference]) -> str:
    return few([f"{one.field} was {one.first} and is {one.second}" for one in differences], 4)
