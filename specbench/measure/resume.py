"""Continue a run: make its header, and check that its plan and machine have not changed."""

from collections.abc import Sequence
from dataclasses import replace as replace_key
from pathlib import Path

from msgspec.structs import replace

from specbench.errors import RunFolderError, few
from specbench.log.difference import Difference
from specbench.log.header import RunHeader, Segment
from specbench.log.methods import MethodHeader
from specbench.log.policies import RESUME
from specbench.log.run import Run
from specbench.measure.base import Plan
from specbench.measure.header import make_header
from specbench.settings.run_method import kept_options
from specbench.types import Record


def resumed_header(stored: Run, new: RunHeader, *, is_forced: bool) -> RunHeader:
    """The header of a continued run, which is the stored header opened again.

    `new` is the header that a new run of the same plan (methods, options and prompts) would have
    here. The policy RESUME compares the two headers. `conflicts` are differences between inputs,
    which forbid resuming. `cautions` are differences between machines or versions: if `is_forced`
    allows them, a segment with the new environment and a warning are added. The id is `new`'s.

    Raises:
        UserError: another tool measured the run.
        RunFolderError: the run was merged, has conflicts, or has cautions that are not allowed.
    """
    before = stored.header
    before.refuse_import("resumed")  # raises if another tool measured the run
    if before.origins:  # the runs that this run was merged from
        raise RunFolderError(
            f"The run in {stored.path} was merged from {len(before.origins)} runs.",
            "Resume one of these runs, and merge them again.",
        )
    # Compare with the machine and the versions of the run's last part.
    latest_environment = before.environment
    if before.segments:  # earlier resumptions with another environment, in order
        latest_environment = before.segments[-1].environment
    latest = replace(before, environment=latest_environment)
    # Methods keep the settings that were chosen when the run began, so these cannot differ.
    methods = {
        label: as_before(method, before.methods.get(label)) for label, method in new.methods.items()
    }
    resumed = replace(new, methods=methods)  # the header to compare with
    if conflicts := RESUME.conflicts(latest, resumed):
        raise RunFolderError(
            f"The run in {stored.path} had other inputs: {_listed(conflicts)}.",
            "Restore them, or start a new run without --resume. If a default has changed, continue "
            "with the version of specbench that began the run.",
        )
    segments, warnings = before.segments, before.warnings
    if cautions := RESUME.cautions(latest, resumed):
        how_measured = f"on another machine or with other versions: {_listed(cautions)}"
        if not is_forced:
            raise RunFolderError(
                f"The run in {stored.path} was measured {how_measured}.",
                "Restore them, start a new run without --resume, or continue with --force: "
                "reports then warn.",
            )
        num_done = len(stored.records)
        segment = Segment(num_before=num_done, created=new.created, environment=new.environment)
        segments += (segment,)
        warnings += (
            f"Records after the first {num_done} were measured {how_measured} "
            "(--resume --force). Totals mix them with the earlier ones. Measure the run again on "
            "one machine before you use its totals.",
        )
    return replace(
        before,
        id=new.id,  # the name of the run's folder, which may have been renamed
        status="running",
        finished=None,
        segments=segments,
        warnings=tuple(dict.fromkeys((*warnings, *new.warnings))),
    )


def check_same_run(stored: Run, plan: Plan, folder: Path) -> None:
    """Check, as `--resume` does, that a plan on this machine would continue a stored run.

    Raises:
        RunFolderError: inputs, machine or versions differ, or the run has records that are not part
            of the plan.
    """
    new = make_header(plan, folder, given=(), command=())  # these two are not compared
    resumed_header(stored, new, is_forced=False)
    check_records(plan, stored)


def as_before(new: MethodHeader, before: MethodHeader | None) -> MethodHeader:
    """The header of a method in a continued run, with the settings chosen when the run began.

    `new` is the method's header in a new run. `before` is its header in the stored run; None if the
    stored run does not have the method.
    """
    if before is None:
        return new
    # Options that were changed by the settings of either run keep the stored run's values.
    options = {**new.options, **kept_options(before, new.settings)}
    method = replace(new, settings=before.settings)
    if options == new.options:
        return method
    # The draft tree follows from the options.
    return replace(
        method, options=options, tree_sha256=before.tree_sha256, most_nodes=before.most_nodes
    )


def check_records(plan: Plan, stored: Run) -> None:
    """Raise RunFolderError if the stored run has records that are not part of the plan.

    Also raise it if the run is incomplete and a method remembers earlier prompts (`scope=run`),
    because the method's memory is lost.
    """
    planned = set(plan.keys)
    if unplanned := [record.key for record in stored.records if record.key not in planned]:
        key = unplanned[0]
        raise RunFolderError(
            f"The run in {stored.path} has {len(unplanned)} records that are not part of it, such "
            f"as {key.method} on {key.sample_id!r} (turn {key.turn} and repeat "
            f"{key.repeat}, both from 0, temperature {key.temperature:g}).",
            "Delete these lines of samples.jsonl, or start a new run without --resume.",
        )
    remembering = [
        label for label, method in stored.header.methods.items() if method.scope == "run"
    ]
    if remembering and stored.records and len(stored.records) < plan.num_records:
        raise RunFolderError(
            f"The run in {stored.path} cannot be resumed: {', '.join(remembering)} remembers "
            "earlier prompts, and that memory ended with the first part of the run.",
            "Start a new run without --resume.",
        )


def without_failed(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records without failed ones, so that the failed requests are repeated.

    A failed turn stays if a later turn of its chat has an answer: that answer is kept, and it was
    given in a chat without an answer to the failed turn.
    """
    answered_keys = [record.key for record in records if record.is_ok]
    # The last turn with an answer, by the key of the chat's first turn. The keys are sorted by
    # turn, and a dict keeps the last.
    last_answered = {
        replace_key(key, turn=0): key.turn
        for key in sorted(answered_keys, key=lambda key: key.turn)
    }
    return tuple(
        record
        for record in records
        if record.is_ok or record.key.turn < last_answered.get(replace_key(record.key, turn=0), 0)
    )


def _listed(differences: Sequence[Difference]) -> str:
    """The first four differences in words, and the number of the others."""
    changes = [
        f"{difference.field} was {difference.first} and is {difference.second}"
        for difference in differences
    ]
    return few(changes, 4)
