"""Linear layers over few rows: their shapes, possible launches, and the choice of one by
result and time. Needs neither Triton nor a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import Ops, gelu_tanh

BUCKETS = (1, 16, 32, 64)
"""Rows of a product are rounded up to one of these; larger products are left to torch."""
MARGIN = 0.005
"""Share of a chain's time by which a launch of the other kind must be faster to replace the first.

Without it, noise would make the choice, and so the rounding of results: kernels and cuBLAS add
in different orders.
"""


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer over at most `num_rows` rows."""

    num_rows: int
    num_out: int  # of each half, if it is gated
    size: int
    is_gated: bool = False

    @classmethod
    def of(cls, num_rows: int, weight: Tensor, *, is_gated: bool = False) -> Product | None:
        """The product of `num_rows` rows with weight [output, input]; None for too many rows."""
        bucket = next((bucket for bucket in BUCKETS if bucket >= num_rows), None)
        if bucket is None:
            return None
        return cls(bucket, weight.shape[0] // (1 + is_gated), weight.shape[1], is_gated)

    def __str__(self) -> str:
        width = f"{'2 x ' * self.is_gated}{self.num_out} x {self.size}"
        return f"products of up to {self.num_rows} rows, {width}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel for a single row or for few, with the weight rows that each program reads."""

    name: Literal["row", "few-row"]
    rows: int

    def __str__(self) -> str:
        return f"{self.name} kernel, {self.rows} rows"


Launch: TypeAlias = Kernel | None
"""None leaves a product to torch, which is cuBLAS on a GPU."""
ROW = (Kernel("row", 4), Kernel("row", 1), Kernel("row", 2))
"""For a single row. All add in the same order, so the results are bitwise equal."""
FEW = Kernel("few-row", 128)
"""For 2 to 64 rows in half precision."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearCall:
    """A call of a linear layer: x [n, input], after `norm` if given; weight [output, input]."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    norm: Norm | None = None
    residual: Tensor | None = None  # [n, output]; the result is added to it in place
    is_gated: bool = False
    is_gelu: bool = False  # the gate's activation; otherwise silu

    @property
    def act(self) -> Callable[[Tensor], Tensor]:
        return gelu_tanh if self.is_gelu else silu

    @property
    def product(self) -> Product | None:
        return Product.of(self.x.shape[0], self.weight, is_gated=self.is_gated)

    @property
    def is_dense(self) -> bool:
        """True if rows are contiguous and the weight is aligned, as the kernels require."""
        whole = [part for part in (self.weight, self.residual) if part is not None]
        is_aligned = self.weight.data_ptr() % 16 == 0
        return is_aligned and self.x.stride(1) == 1 and all(part.is_contiguous() for part in whole)

    def by(self, ops: Ops) -> Tensor:
        """The result of these operations."""
        if not self.is_gated:
            return ops.project(
                self.x, self.weight, self.bias, norm=self.norm, residual=self.residual
            )
        assert self.norm is not None  # a gate has a norm before it
        return ops.gated(self.x, self.weight, self.bias, self.norm, self.act)


def launches(call: LinearCall, *, has_few: bool = True) -> list[Launch]:
    """All launches of a call; the first one is used without measurements.

    A single row uses a kernel unless cuBLAS measures faster; few rows use cuBLAS unless a
    kernel does. `has_few` allows the kernel for few rows.
    """
    product = call.product
    if product is None:
        return [None]
    if product.num_rows == 1:
        return [*ROW, None]
    is_aligned = product.size * call.weight.itemsize % 16 == 0 and product.size >= 64
    return [None, FEW] if has_few and is_aligned and call.weight.itemsize == 2 else [None]


@dataclass(frozen=True, slots=True)
class Choice:
    """The launch chosen for a product, with times and reasons."""

    product: Product
    launch: Launch
    seconds: Mapping[str, float] = field(default_factory=dict)  # launch -> time of the chain
    rejected: Mapping[str, str] = field(default_factory=dict)  # launch -> reason

    def to_json(self) -> dict[str, Any]:
        """The choice for the header of a run, with times in microseconds."""
        return {
            "rows": self.product.num_rows,
            "weight": [self.product.num_out * (1 + self.product.is_gated), self.product.size],
            "is_gated": self.product.is_gated,
            "launch": label(self.launch),
            "chain_us": {name: round(seconds * 1e6, 2) for name, seconds in self.seconds.items()},
            "rejected": dict(self.rejected),
        }


def label(launch: Launch) -> str:
    """Name of a launch."""
    return "torch" if launch is None else str(launch)


def choose(
    product: Product,
    candidates: Sequence[Launch],
    check: Callable[[Launch], str | None],
    measure: Callable[[Sequence[Launch]], Sequence[float]],
) -> Choice:
    """Choose a launch by result and by time.

    `check` returns the reason that a launch cannot be used, `measure` the seconds of a chain
    with each launch. The kind of the first candidate, torch or kernel, wins unless the other
    kind is faster by `MARGIN`; within a kind, the fastest wins.
    """
    rejected = {
        launch: reason
        for launch in candidates
        if launch is not None and (reason := check(launch)) is not None
    }
    sound = [launch for launch in candidates if launch not in rejected]
    reasons = {label(launch): reason for launch, reason in rejected.items()}
    if len(sound) == 1:
        return Choice(product, sound[0], rejected=reasons)
    seconds = dict(zip(sound, measure(sound), strict=True))
    usual = [launch for launch in sound if (launch is None) == (candidates[0] is None)]
    fastest = min(sound, key=seconds.__getitem__)
    if usual:
        best = min(usual, key=seconds.__getitem__)
        if seconds[fastest] >= seconds[best] * (1 - MARGIN):
            fastest = best
    by_label = {label(launch): found for launch, found in seconds.items()}
    return Choice(product, fastest, by_label, reasons)
