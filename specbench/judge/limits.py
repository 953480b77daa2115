"""The limits of the gate: how much worse a run may be."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from specbench.errors import unknown_name
from specbench.log.options import share

SpeedRule = Literal["matching", "always", "never"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the loss of a run against its baseline.

    A MAT that rises is suspect too: a rule that accepts too much raises it.

    `max_mismatch` is the share of a lossless method's greedy answers that may stop being vanilla's.
    None allows none in float32, and in half precision, where near-ties fall either way, as many as
    chance explains.
    """

    max_slowdown: float = 0.05
    max_mat_drop: float = 0.02
    max_mismatch: float | None = None
    speed: SpeedRule = "matching"
    max_mat_rise: float = 0.02


def parse_limits(
    max_slowdown: str,
    max_mat_drop: str,
    max_mismatch: str | None,
    speed: str,
    max_mat_rise: str = "2%",
) -> Limits:
    """The limits from the texts of the command line, such as "5%" or "0.05".

    Raises:
        UserError: a value is not a share, or the rule for speed is unknown.
    """
    if speed not in get_args(SpeedRule):
        raise unknown_name("rule for --speed", speed, get_args(SpeedRule))
    return Limits(
        max_slowdown=share("--max-slowdown", max_slowdown),
        max_mat_drop=share("--max-mat-drop", max_mat_drop),
        max_mat_rise=share("--max-mat-rise", max_mat_rise),
        max_mismatch=None if max_mismatch is None else share("--max-mismatch", max_mismatch),
        speed=cast(SpeedRule, speed),
    )
