"""A machine whose times are known: a cost curve of formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specbench.tune.cost import STEP_ROWS
from specbench.tune.stored_cost import Curve, MethodCost
from specbench.tune.stored_profile import Profile

PREFILL, SLOPE, MIDDLE = 7.0, 0.001, 200
LENGTHS = (1, MIDDLE, 1000)


def curve(
    profile: Profile,
    rows: Callable[[int], float],
    drafts: Mapping[str, tuple[tuple[dict[str, int], ...], Callable[..., float]]],
    *,
    blocks: int = 3,
    **changes: str,
) -> Curve:
    """A step takes `rows`(n) and `SLOPE` a token before it, a prefill `PREFILL`.

    `drafts` are the knots of each method of the profile, and the time of its draft at each.
    """
    model = profile.header.model
    about = {"model": model.name, "dtype": model.dtype, "quantization": "", "temperature": "0"}
    about |= {"machine": "a planted machine", "threads": "auto", "torch": "2"}
    steps = tuple(
        tuple(rows(n) + SLOPE * (context - MIDDLE) for n in STEP_ROWS) for context in LENGTHS
    )
    methods = {
        label: MethodCost(
            profile.header.methods[label].kind,
            False,
            knots,
            (((tuple(seconds(**knot) for knot in knots)),),) * blocks,
            ((1.0,) * len(LENGTHS),) * blocks,
        )
        for label, (knots, seconds) in drafts.items()
    }
    return Curve(
        about=about | changes,
        vanilla_s=0.01,
        threads=(1,),
        rows=STEP_ROWS,
        lengths=LENGTHS,
        most_context=1000,
        steps=((steps,),) * blocks,
        prefill=((PREFILL,) * len(LENGTHS),) * blocks,
        methods=methods,
        num_pairs=1,
    )
