"""Decide which differences between two runs block operations such as resume, merge and compare.

Runs of different work are not comparable. Machines, versions and options of methods are often the
subject of a comparison, so their differences are only mentioned.
"""

from typing import NamedTuple

from msgspec import Struct

from specbench.errors import UserError
from specbench.log.difference import Difference, RoleOrPattern, change_lines
from specbench.log.differences import differences
from specbench.log.header import RunHeader


class Policy(NamedTuple):
    """The differences that block an operation, and those that are only reported."""

    blocking: tuple[RoleOrPattern, ...]
    """Roles and fields in which runs must not differ."""
    reported: tuple[RoleOrPattern, ...] = ()
    """Roles and fields in which runs may differ, but the differences are mentioned."""
    ignored: tuple[RoleOrPattern, ...] = ()
    """Exceptions to both sets. Runs may differ in these, and in fields of neither set."""
    is_exact: bool = False
    """True if void fields and fields without a name for readers are also compared."""

    def conflicts(self, first: Struct, second: Struct) -> tuple[Difference, ...]:
        """The differences that block the operation."""
        return tuple(
            difference
            for difference in differences(first, second, is_exact=self.is_exact)
            if difference.is_any_of(self.blocking) and not difference.is_any_of(self.ignored)
        )

    def cautions(self, first: RunHeader, second: RunHeader) -> tuple[Difference, ...]:
        """The differences to report, which may explain why numbers differ."""
        return tuple(
            difference
            for difference in differences(first, second, is_exact=self.is_exact)
            if difference.is_any_of(self.reported)
            and not difference.is_any_of((*self.blocking, *self.ignored))
        )


_CELLS = ("spec.methods", "spec.temperatures", "spec.concurrency", "spec.request_rates",
          "spec.backend", "spec.serving_engine")  # fmt: skip
"""Options in which two compared runs need to share only some values."""
_VERSIONS = ("specbench", "git.commit", "torch.version", "transformers")
"""Versions, in the environment, that must be equal on all machines of a run."""

COMPARE = Policy(
    blocking=("work",), reported=("method", "draw", "machine"), ignored=("hardware", *_CELLS)
)
CHECK = Policy(blocking=("work", "methods.*.options"), reported=("hardware",), ignored=_CELLS)
"""Speed is checked only on equal hardware. Nothing is checked if the options of methods differ."""
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
"""The files and versions in setups (not headers) that must be equal on all machines of a run."""
PROFILE = Policy(
    blocking=("model.*", "methods.*.weights.*"),
    ignored=("model.name", "model.label", "model.source", "model.revision", "*.weights.revision"),
    is_exact=True,
)
"""The fields of setups that must be equal for an acceptance profile to apply."""


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
