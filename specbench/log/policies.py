"""The effect of differences between two runs on each operation (resume, merge, compare …).

Runs that differ in the work are not comparable. Machine, versions and methods' options are often
the subject of a comparison, so differences in them are only mentioned.
"""

from typing import Literal, NamedTuple

from msgspec import Struct

from specbench.errors import UserError
from specbench.log.difference import Difference, RoleOrPattern, change_lines
from specbench.log.differences import differences
from specbench.log.header import RunHeader


class Policy(NamedTuple):
    """The differences that block an operation (resume, merge, compare …), and those to report."""

    blocking: tuple[RoleOrPattern, ...]
    """Roles and fields: runs that differ in one of them do not fit together."""
    reported: tuple[RoleOrPattern, ...] = ()
    """Roles and fields: runs that differ in them fit together, but the differences are mentioned.
    """
    ignored: tuple[RoleOrPattern, ...] = ()
    """Exceptions from both sets, which may differ. So may fields that no set names."""
    is_exact: bool = False
    """Void fields, and fields without a name for readers, are compared too."""

    def conflicts(self, first: Struct, second: Struct) -> tuple[Difference, ...]:
        """The differences that keep two runs from fitting together."""
        return self._differences("blocking", first, second)

    def cautions(self, first: RunHeader, second: RunHeader) -> tuple[Difference, ...]:
        """The differences of runs that fit together; they may explain differences in numbers."""
        return self._differences("reported", first, second)

    def _differences(
        self, effect: Literal["blocking", "reported"], first: Struct, second: Struct
    ) -> tuple[Difference, ...]:
        all_differences = differences(first, second, is_exact=self.is_exact)
        return tuple(
            difference for difference in all_differences if self._effect_of(difference) == effect
        )

    def _effect_of(self, difference: Difference) -> Literal["ignored", "blocking", "reported"]:
        """The effect of a difference on the operation. `ignored` comes first, then `blocking`."""
        if difference.is_any_of(self.ignored):
            return "ignored"
        if difference.is_any_of(self.blocking):
            return "blocking"
        return "reported" if difference.is_any_of(self.reported) else "ignored"


_CELLS = ("spec.methods", "spec.temperatures", "spec.concurrency", "spec.request_rates",
          "spec.backend", "spec.serving_engine")  # fmt: skip
"""Compared runs need to share only a part of these."""
_VERSIONS = ("specbench", "git.commit", "torch.version", "transformers")
"""Versions in the environment that decide what the machines of one run compute."""

COMPARE = Policy(
    blocking=("work",), reported=("method", "draw", "machine"), ignored=("hardware", *_CELLS)
)
CHECK = Policy(blocking=("work", "methods.*.options"), reported=("hardware",), ignored=_CELLS)
"""Speed is checked only on equal hardware. Nothing is checked if settings were chosen
differently.
"""
POOL = Policy(
    blocking=(
        *("work", "spec.methods", "hardware"),
        *("methods.*.weights.*", "methods.*.tree_sha256"),  # each run may choose other options
    ),
    reported=("method", "draw", "machine"),
)
MERGE = Policy(blocking=("work", "method", "draw"), reported=("machine",))
RESUME = Policy(blocking=("spec.*", "work", "method", "draw"), reported=("machine",), is_exact=True)
"""Resuming on another machine needs --force."""
REPLAY = Policy(blocking=("model.files.*", "prompts.*.sha256"), is_exact=True)
WORKERS = Policy(
    blocking=("work", "method", *(f"environment.{name}" for name in _VERSIONS)), is_exact=True
)
"""For setups, not headers: the files and versions that all machines of one run must share."""
PROFILE = Policy(
    blocking=("model.*", "methods.*.weights.*"),
    ignored=("model.name", "model.label", "model.source", "model.revision", "*.weights.revision"),
    is_exact=True,
)
"""For setups: the fields that must be equal for an acceptance profile to apply."""


def require_same_work(first: RunHeader, second: RunHeader) -> None:
    """Raise UserError if two runs did not do the same work. The message names the models, every
    difference and the fix.
    """
    conflicts = COMPARE.conflicts(first, second)
    if not conflicts:
        return
    runs = [f"run {header.id} of {header.model.marked_label}" for header in (first, second)]
    listed = "\n".join(f"  {line}" for line in change_lines(conflicts))
    raise UserError(
        f"The {' and the '.join(runs)} did not do the same work. Repeat one of them with the "
        "other's options, or show them side by side, marked as not comparable: `specbench compare "
        f"--force`. From the first to the second:\n{listed}"
    )
