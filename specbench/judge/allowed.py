"""The allowed loss of a run against its baseline, as options of `specbench check`."""

from typing import Annotated, Literal

from msgspec import Struct

from specbench.log.options import option, options

SpeedRule = Literal["matching", "always", "never"]


class Allowed(Struct, frozen=True):
    """The allowed loss of a run against its baseline.

    A MAT that rises is suspect too, since a rule that accepts too much raises it. `max_mismatch` is
    the share of a lossless method's greedy answers that may stop being equal to vanilla's. If it is
    None, no answer may change in float32. In half precision, where near-ties may go either way,
    changes that chance explains are allowed.
    """

    # fmt: off
    max_slowdown: Annotated[float, option(
        "Largest rise in a method's time per token.", "limits", "note", "SHARE",
        form="share", word="5%")] = 0.05
    max_mat_drop: Annotated[float, option(
        "Largest drop in a method's mean accepted tokens.", "limits", "note", "SHARE",
        form="share", word="2%")] = 0.02
    max_mismatch: Annotated[float | None, option(
        "Largest share of a method's greedy answers that may stop matching vanilla's",
        "limits", "note", "SHARE", form="share",
        unset="0 in float32, else what chance explains")] = None
    speed: Annotated[SpeedRule, option(
        "When to check speed: matching (same machine), always or never.", "limits", "note", "WHEN",
        choices=("matching", "always", "never"), noun="rule for --speed")] = "matching"
    max_mat_rise: Annotated[float, option(
        "Largest rise in a method's mean accepted tokens.", "limits", "note", "SHARE",
        form="share", word="2%")] = 0.02
    # fmt: on

    def __post_init__(self) -> None:
        for declared in options(Allowed):
            declared.check(getattr(self, declared.name))
