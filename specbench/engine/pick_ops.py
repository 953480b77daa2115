"""Which operations compute a decoder layer on a device: kernels, if there are some that are right.

Knows the operations' results. Knows nothing of how they are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.graphs import CudaRecorder, Recorder
from specbench.engine.ops import TORCH, CacheRows, Heads, Norm, Ops, Place, Reach, View
from specbench.errors import reason_of

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""How far a kernel's result may be from torch's operations', relative to it, by dtype."""
TRIED = ((1, Heads(1, 1, 128)), (5, Heads(1, 4, 64)), (9, Heads(2, 2, 64)), (40, Heads(1, 1, 128)))
"""Rows and heads, each of which is computed by another kernel, or another size of it."""


def pick_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    """Triton's kernels if they can be had on a GPU and compute what torch's operations do."""
    try:
        from specbench.engine.triton_ops import TritonOps
    except Exception as error:  # it is not there, or too old for what the kernels need
        return Ops(f"triton's kernels cannot be imported ({reason_of(error)})")
    properties = torch.cuda.get_device_properties(device)
    reasons = []
    for is_early in (True, False) if properties.major >= 9 else (False,):
        ops = TritonOps(properties.multi_processor_count, is_early=is_early)
        reason = why_not(ops, device, dtype, CudaRecorder(device))
        if reason is None:
            return ops
        reasons.append(reason)
    return Ops("; ".join(reasons))


@torch.inference_mode()
def why_not(
    ops: Ops, device: torch.device, dtype: torch.dtype, recorder: Recorder | None = None
) -> str | None:
    """What is wrong with operations on a device; None if they compute what torch's do.

    With a recorder they have to do so as a recording, too.
    """
    limit = LIMITS.get(dtype)
    if limit is None:
        return f"there are none for {str(dtype).removeprefix('torch.')}"
    for num_rows, heads in TRIED:
        trial = _Trial.drawn(num_rows, heads, device, dtype)
        expected = trial.run(TORCH)
        for used in (None, recorder) if recorder else (None,):
            how = f"{ops.name}, recorded," if used else ops.name
            try:
                results = _replayed(trial, ops, used) if used else [trial.run(ops)]
            except Exception as error:  # a compiler, a driver or a device that is too old
                return f"{how} fails: {reason_of(error)}"
            for found, (name, right) in product(results, expected.items()):
                off = float((found[name] - right).norm() / right.norm())
                if not off <= limit:
                    return f"{name} of {how} is off by {off:.1e}"
    return None


def _replayed(trial: _Trial, ops: Ops, recorder: Recorder) -> list[dict[str, Tensor]]:
    """What several replays leave, one right after the other."""
    names: list[str] = []

    def recorded() -> tuple[Tensor, ...]:
        results = trial.run(ops)
        names[:] = results
        return tuple(results.values())

    recording = recorder(recorded, ())
    results = []
    for _ in range(4):
        recording.replay()
        results.append({n: x.clone() for n, x in zip(names, recording.outputs, strict=True)})
    return results


@dataclass(frozen=True, eq=False)
class _Trial:
    """What the operations are tried on: seeded random numbers for n rows."""

    heads: Heads
    x: Tensor  # [n, hidden]
    norm: Norm
    qkv: Tensor  # a weight, as the next three
    o: Tensor
    gate_up: Tensor
    down: Tensor
    logits: Tensor  # [rows, vocab]
    bias: Tensor
    each: tuple[Tensor, Tensor]  # weights and biases of a row each
    rows: Tensor  # of a cache
    place: Place
    tree: View
    nothing: View

    @classmethod
    def drawn(cls, n: int, heads: Heads, device: torch.device, dtype: torch.dtype) -> _Trial:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(shape, generator=generator)).to(device, dtype)

        def weight(num_out: int, size: int) -> Tensor:
            return drawn(num_out, size, scale=size**-0.5)

        hidden, inner, capacity, start = 1104, 144, 512, 300
        width = heads.query_width + 2 * heads.kv_width
        angles = torch.rand(n, 1, 1, heads.dim // 2, generator=generator).to(device)
        cos, sin = angles.cos().expand(-1, -1, 2, -1), angles.sin()
        turn = torch.stack([cos, torch.cat([-sin, sin], 2)], 1).to(dtype)
        place = Place(torch.arange(start, start + n, device=device), turn)
        rows = drawn(capacity, 2 * heads.kv_width)
        sees = torch.ones(n, n).tril().to(device, dtype)
        bias, reach = (sees - 1) * torch.finfo(dtype).max, Reach(capacity, is_exact=False)
        return cls(
            heads, drawn(n, hidden), Norm(drawn(hidden), 1e-5), weight(width, hidden),
            weight(hidden, heads.query_width), weight(2 * inner, hidden), weight(hidden, inner),
            drawn(min(n, 2), 33_000), drawn(width),
            (drawn(min(n, 2), inner, hidden), drawn(min(n, 2), inner)), rows, place,
            View(torch.tensor(start, device=device), bias, reach),
            View(torch.tensor([start], device=device), rows.new_zeros(1, 0), reach),
        )  # fmt: skip

    def run(self, ops: Ops) -> dict[str, Tensor]:
        """What the operations make of it, as float32: each alone, then all in two layers."""
        x, norm, heads, rows = self.x, self.norm, self.heads, self.rows.clone()
        cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
        qkv = ops.project(x, self.qkv, self.bias, norm=norm)
        results = {"the norm": ops.norm(x, norm), "a normed product": qkv.clone()}
        ops.keep(qkv, cached, self.place, heads)
        queries = qkv[:, : heads.query_width]
        results |= {
            "the rotary embedding": queries,
            "the cache": rows.clone(),
            "attention of a row": ops.attend(queries[:1], cached, self.nothing, heads),
            "attention": ops.attend(queries, cached, self.tree, heads),
            "the gate": ops.gated(x, self.gate_up, None, norm, silu),
            "products of each row": ops.project_each(x[:2], *self.each),
            "a sum": ops.project(queries, self.o, onto=x.clone()),
        }
        stream = x.clone()
        for _ in range(2):
            qkv = ops.project(stream, self.qkv, self.bias, norm=norm)
            ops.keep(qkv, cached, self.place, heads)
            queries = qkv[:, : heads.query_width]
            ops.project(ops.attend(queries, cached, self.tree, heads), self.o, onto=stream)
            inner = ops.gated(stream, self.gate_up, None, norm, silu)
            ops.project(inner, self.down, onto=stream)
        results["two layers"] = stream
        log_probs, ids = ops.likeliest(self.logits, 10)
        scores = self.logits[0, :900].double()
        greatest, places = ops.greatest(scores, 60)
        results |= {
            "the likeliest tokens": torch.cat([log_probs, self.logits.gather(1, ids)]),
            "the greatest": torch.cat([greatest, scores[places]]),
        }
        return {name: part.float() for name, part in results.items()}
