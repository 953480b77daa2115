"""Linear layers over a single row: their shapes, possible launches, and the choice of one by
result and time. Needs neither Triton nor a GPU.

Products of more rows are torch's: in Vicuna-13B's layers on an H100, a kernel of our own was at
most 0.6 % faster for 16 to 64 rows (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.layers.experts import Act
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import Ops, gelu_tanh

MARGIN = 0.005
"""Share of a chain's time by which torch must be faster to replace the kernel.

Without it, noise would make the choice, and so the rounding of results: kernels and cuBLAS add
in different orders.
"""


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer over a single row."""

    num_out: int  # of each half, if it is gated
    size: int
    is_gated: bool = False

    def __str__(self) -> str:
        return f"products of a row, {'2 x ' * self.is_gated}{self.num_out} x {self.size}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel, with the weight rows that each program reads."""

    rows: int

    def __str__(self) -> str:
        return f"row kernel, {self.rows} rows"


Launch: TypeAlias = Kernel | None
"""None leaves a product to torch, which is cuBLAS on a GPU."""
Check: TypeAlias = Callable[[Kernel], str | None]
"""Returns the reason that a launch cannot be used."""
ROW = (Kernel(4), Kernel(1), Kernel(2))
"""All add in the same order, so the results are bitwise equal. Without measurements, the first."""


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
    def act(self) -> Act:
        return gelu_tanh if self.is_gelu else silu

    @property
    def product(self) -> Product | None:
        """The product of a single row; None for more."""
        if len(self.x) != 1:
            return None
        num_out, size = self.weight.shape
        return Product(num_out // (1 + self.is_gated), size, self.is_gated)

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
            "rows": 1,
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
    product: Product, check: Check, measure: Callable[[Sequence[Launch]], Sequence[float]]
) -> Choice:
    """Choose a launch by result and by time.

    `measure` returns the seconds of a chain with each launch. The fastest kernel wins unless
    torch is faster by `MARGIN`.
    """
    rejected = {str(kernel): reason for kernel in ROW if (reason := check(kernel)) is not None}
    kernels = [kernel for kernel in ROW if str(kernel) not in rejected]
    if not kernels:
        return Choice(product, None, rejected=rejected)
    sound: list[Launch] = [*kernels, None]
    seconds = dict(zip(sound, measure(sound), strict=True))
    best: Launch = min(kernels, key=seconds.__getitem__)
    if seconds[None] < seconds[best] * (1 - MARGIN):
        best = None
    by_label = {label(launch): found for launch, found in seconds.items()}
    return Choice(product, best, by_label, rejected)
