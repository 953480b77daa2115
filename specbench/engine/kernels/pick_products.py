"""Choose launches for a model's products on its device, by result and by time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from specbench.engine.graphs.recorder import Recorder
from specbench.engine.kernels.products import (
    Choice,
    Kernel,
    Launch,
    LinearCall,
    choose,
    launches,
)
from specbench.engine.layers.ops import TORCH, Chain
from specbench.errors import reason_of

if TYPE_CHECKING:
    from specbench.engine.kernels.triton_ops import TritonOps

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest relative error of a kernel's result against torch's, by dtype."""
MEASURED_ROWS = (1, 10, 26, 60)
"""Rows of a chain for each bucket of products: the sizes of common trees."""
SWEEPS = 2
"""Rounds of choices: in the second one, the other products already have their launches."""
ROUNDS, REPLAYS = 5, 10

Timer: TypeAlias = Callable[[Sequence[Callable[[], Tensor]]], Sequence[float]]
"""Measures several calls in turn; returns the seconds of each."""


class ReplayTimer:
    """Times calls as CUDA graphs: replays each several times in a row, and takes the best round.

    One recorder serves all calls: torch keeps a workspace for each stream that multiplies.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, works: Sequence[Callable[[], Tensor]]) -> list[float]:
        recordings = [self._recorder(partial(_as_tuple, work), ()) for work in works]
        seconds = [float("inf")] * len(works)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(ROUNDS):  # in turn, because the GPU's clock changes
            for i, recording in enumerate(recordings):
                began.record()
                for _ in range(REPLAYS):
                    recording.replay()
                ended.record()
                ended.synchronize()
                seconds[i] = min(seconds[i], began.elapsed_time(ended) / 1e3 / REPLAYS)
        return seconds


@torch.inference_mode()
def pick_launches(ops: TritonOps, chain: Chain, *, timer: Timer, has_few: bool) -> None:
    """Choose a launch for each product of a chain that has none, one product at a time.

    `has_few` allows the kernel for few rows.
    """
    for num_rows in MEASURED_ROWS:
        run = chain(num_rows)
        calls = {call.product: call for call in ops.calls_in(run) if call.product}
        open_calls = [call for product, call in calls.items() if product not in ops.choices]
        reasons: dict[tuple[LinearCall, Launch], str | None] = {}
        for _ in range(SWEEPS):
            for call in open_calls:
                _pick(ops, run, call, launches(call, has_few=has_few), timer, reasons)


def _pick(
    ops: TritonOps, run: Callable[[], Tensor], call: LinearCall, candidates: Sequence[Launch],
    timer: Timer, reasons: dict[tuple[LinearCall, Launch], str | None],
) -> None:  # fmt: skip
    """Choose the launch of one call in a chain; `reasons` caches the results of checks."""
    product = call.product
    assert product is not None

    def launching(launch: Launch) -> Tensor:
        ops.choices[product] = Choice(product, launch)
        return run()

    def check(launch: Launch) -> str | None:
        key = call, launch
        if key not in reasons:
            reasons[key] = None if launch is None else wrong_with(ops, call, launch)
        return reasons[key]

    def measure(sound: Sequence[Launch]) -> Sequence[float]:
        return timer([partial(launching, launch) for launch in sound])

    ops.choices[product] = choose(product, candidates, check, measure)


def wrong_with(ops: TritonOps, call: LinearCall, launch: Kernel) -> str | None:
    """Reason that a launch cannot be used for a call or for its product alone; None if it can."""
    calls = [call] if call.is_gated else [call, LinearCall(call.x, call.weight, call.bias)]
    for each in calls:
        expected = _added_to_zeros(each).by(TORCH)
        try:
            found = ops.launched(_added_to_zeros(each), launch)
        except Exception as error:  # of the compiler or driver, or for too small a device
            return reason_of(error)
        off = off_by(found, expected)
        if not off <= LIMITS[call.x.dtype]:
            return f"it is off by {off:.1e}"
    return None


def off_by(found: Tensor, right: Tensor) -> float:
    """Relative error of a result. What overflows in one has to overflow in both."""
    most, size = torch.finfo(right.dtype).max, torch.where(right.isfinite(), right, 0).float()
    differs = found.float().clamp(-most, most) - right.float().clamp(-most, most)
    return float(differs.norm() / size.norm())


def _added_to_zeros(call: LinearCall) -> LinearCall:
    """The same call, with zeros as the residual if it has one."""
    if call.residual is None:
        return call
    return replace(call, residual=torch.zeros_like(call.residual))


def _as_tuple(work: Callable[[], Tensor]) -> tuple[Tensor, ...]:
    return (work(),)
