"""Choose the operations of decoder layers for a device: kernels, if their results are correct."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.kernels.native_build import BuildError
from specbench.engine.kernels.native_ops import native_ops
from specbench.engine.layers.experts import Clamp, Experts
from specbench.engine.layers.operands import (
    CacheRows,
    CacheSlots,
    CacheSpan,
    HeadNorm,
    Heads,
    Norm,
    TreeMask,
    additive,
)
from specbench.engine.layers.ops import TORCH, Ops, gelu_tanh
from specbench.engine.layers.torch_attention import PLAIN, Scoring
from specbench.errors import reason_of

if TYPE_CHECKING:
    from specbench.engine.graphs.recorder import Recorder
    from specbench.engine.kernels.triton_ops import TritonOps


ALLOWED_ERRORS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest relative error of a kernel's result against torch's, by dtype."""
LEAST_CAPABILITY = (8, 0)
"""Lowest compute capability with the instructions and shared memory that the kernels need."""
TRIED = (
    (1, Heads(1, 1, 128)), (5, Heads(1, 4, 64)), (9, Heads(2, 2, 64)), (26, Heads(1, 2, 64)),
    (40, Heads(1, 1, 128)),
)  # fmt: skip
"""Rows and heads; each uses a different kernel, or a different size of it. 26 is EAGLE's tree."""
NO_OVERLAP = "launches do not overlap"
"""Reason for plain launches on hardware that can overlap them, if Triton is too old."""
WINDOW = 100
"""Window of attention in a trial, shorter than its cache."""
HIDDEN, EXPERT_HIDDEN, VOCAB = 1104, 544, 33_000
"""Sizes of inputs: each is larger than a block of its kernel, and not a multiple of one."""


def off_by(found: Tensor, right: Tensor) -> float:
    """Relative error of a result. What overflows in one has to overflow in both."""
    most, size = torch.finfo(right.dtype).max, torch.where(right.isfinite(), right, 0).float()
    differs = found.float().clamp(-most, most) - right.float().clamp(-most, most)
    return float(differs.norm() / size.norm())


def pick_ops(device: torch.device, dtype: torch.dtype, kind: str = "auto") -> Ops:
    """Triton's kernels if they run on the GPU with the results of torch's operations.

    They are `plain` or `overlapped`. With `auto`, launches overlap unless more kernels are
    correct and can be launched without overlap.
    """
    try:
        from specbench.engine.kernels.triton_ops import TritonOps
    except Exception as error:  # not installed, or too old for the kernels
        return Ops(f"triton's kernels cannot be imported ({reason_of(error)})")
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    if capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
        return Ops(f"the GPU has compute capability {found}, kernels need {least}")
    from specbench.engine.graphs.recorder import CudaRecorder

    recorder = CudaRecorder(device)
    sound: dict[bool, TritonOps] = {}
    reasons: dict[bool, str] = {}
    best = (True, False) if capability >= (9, 0) else (False,)
    for is_early in {"plain": (False,), "overlapped": (True,)}.get(kind, best):
        ops = TritonOps(properties.multi_processor_count, is_early=is_early)
        wrong = unsupported_reason(ops, device, dtype, recorder)
        if wrong is None:
            sound[is_early] = ops
        reason = wrong or ops.reason
        if reason is None:
            break
        reasons[is_early] = reason
    if not sound:
        return Ops("; ".join(reasons.values()))
    is_early, ops = min(sound.items(), key=lambda item: len(item[1].fallbacks))
    if not is_early and True in reasons:
        ops.fallbacks[NO_OVERLAP] = reasons[True]
    return ops


def pick_native_ops(dtype: torch.dtype, folder: Path) -> Ops:
    """Compiled operations for a CPU if they give the results of torch's.

    The library is compiled once and kept in `folder`.
    """
    try:
        ops = native_ops(dtype, folder)
    except BuildError as error:
        return Ops(str(error))
    wrong = unsupported_reason(ops, torch.device("cpu"), dtype)
    return ops if wrong is None else Ops(wrong)


@torch.inference_mode()
def unsupported_reason(
    ops: Ops, device: torch.device, dtype: torch.dtype, recorder: Recorder | None = None
) -> str | None:
    """Reason that operations cannot be used on a device; None if they agree with torch's.

    With a recorder, they must also agree when recorded.
    """
    limit = ALLOWED_ERRORS.get(dtype)
    if limit is None:
        return f"there are no kernels for {str(dtype).removeprefix('torch.')}"
    for num_rows, heads in TRIED:
        trial = Trial(num_rows, heads, device, dtype)
        expected = trial.run(TORCH)
        for used in (None, recorder) if recorder else (None,):
            how = f"{ops.name}, recorded," if used else ops.name
            try:
                results = _replayed(trial, ops, used) if used else [(*trial.run(ops).values(),)]
            except Exception as error:  # a compiler, a driver or a device that is too old
                return f"{how} fails: {reason_of(error)}"
            for found in results:
                for part, (name, right) in zip(found, expected.items(), strict=True):
                    off = off_by(part, right)
                    if not off <= limit:
                        return f"{name} of {how} is off by {off:.1e}"
    return None


def _replayed(trial: Trial, ops: Ops, recorder: Recorder) -> list[tuple[Tensor, ...]]:
    """Results of several replays, one right after the other."""
    recording = recorder(lambda: tuple(trial.run(ops).values()), ())
    results = []
    for _ in range(4):
        recording.replay()
        results.append(tuple(part.clone() for part in recording.outputs))
    return results


class Trial:
    """Inputs for a check of the operations: seeded random numbers for n rows."""

    def __init__(self, n: int, heads: Heads, device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(shape, generator=generator)).to(device, dtype)

        def weight(num_out: int, size: int) -> Tensor:
            return drawn(num_out, size, scale=size**-0.5)

        hidden, inner, capacity, start = HIDDEN, 144, 512, 300
        width = heads.query_width + 2 * heads.kv_width
        angles = torch.rand(n, 1, 1, heads.dim // 2, generator=generator).to(device)
        cos, sin = angles.cos().expand(-1, -1, 2, -1), angles.sin()
        cos_sin = torch.stack([cos, torch.cat([-sin, sin], 2)], 1).to(dtype)
        self.heads = heads
        self.slots = CacheSlots(torch.arange(start, start + n, device=device), cos_sin)
        self.rows = drawn(capacity, 2 * heads.kv_width)  # of a cache
        bias = additive(torch.ones(n, n, device=device).tril().bool(), dtype)
        cache_span, few = CacheSpan(capacity, is_exact=False), min(n, 2)
        self.x = drawn(n, hidden)
        self.norm = Norm(drawn(hidden), 1e-5)
        self.head_norm = HeadNorm(drawn(heads.num_kv * (heads.group + 1), heads.dim), 1e-6)
        self.qkv, self.o = weight(width, hidden), weight(hidden, heads.query_width)
        self.gate_up, self.down = weight(2 * inner, hidden), weight(hidden, inner)
        self.logits = drawn(few, VOCAB)
        self.bias = drawn(width)
        self.each = drawn(few, inner, hidden), drawn(few, inner)  # a weight and a bias per row
        self.experts = (  # their input, weights, ids and shares
            drawn(few, EXPERT_HIDDEN),
            Experts(drawn(4, 32, EXPERT_HIDDEN, scale=0.04), drawn(4, EXPERT_HIDDEN, 16)),
            drawn(few, 4).topk(3).indices,
            drawn(few, 3),
        )
        biases, clamp = (drawn(4, 32), drawn(4, EXPERT_HIDDEN)), Clamp(1.702, 1.0)
        self.clamped = Experts(self.experts[1].gate_up, self.experts[1].down, *biases, clamp)
        self.scoring = Scoring(0.2, 5.0, drawn(heads.num_kv * heads.group))
        rows, first = self.slots.rows, torch.tensor([start], device=device)
        self.tree = TreeMask(torch.tensor(start, device=device), bias, cache_span, rows)
        self.nothing = TreeMask(first, self.rows.new_zeros(1, 0), cache_span)

    def run(self, ops: Ops) -> dict[str, Tensor]:
        """Results of the operations as float32: each alone, then all in two layers."""
        x, norm, heads, rows = self.x, self.norm, self.heads, self.rows.clone()
        cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
        qkv = ops.project(x, self.qkv, self.bias, norm=norm)
        results = {
            "the norm": ops.norm(x, norm),
            "a normed sum": ops.norm(x, norm, x.clone()),
            "a normed product": qkv.clone(),
        }
        normed, normed_rows = qkv.clone(), rows.clone()
        normed_cache = CacheRows.of(normed_rows, *[(heads.num_kv, heads.dim)] * 2)
        ops.write_kv(normed, normed_cache, self.slots, heads, self.head_norm)
        ops.write_kv(qkv, cached, self.slots, heads)
        queries = qkv[:, : heads.query_width]
        results |= {
            "the rotary embedding of normed heads": normed[:, : heads.query_width],
            "the cache of normed heads": normed_rows,
            "the rotary embedding": queries,
            "the cache": rows.clone(),
            "attention of a row": ops.attend(queries[:1], cached, self.nothing, heads),
            "attention": ops.attend(queries, cached, self.tree, heads),
            "attention in a window": ops.attend(queries, cached, self.tree, heads, PLAIN, WINDOW),
            "attention with sinks": ops.attend(queries, cached, self.tree, heads, self.scoring),
            "the gate": ops.gated(x, self.gate_up, None, norm, silu),
            "the gelu gate": ops.gated(x, self.gate_up, None, norm, gelu_tanh),
            "the experts": ops.experts(*self.experts, silu),
            "clamped experts": ops.experts(self.experts[0], self.clamped, *self.experts[2:], silu),
            "products of each row": ops.project_each(x[:2], *self.each),
            "a sum": ops.project(queries, self.o, residual=x.clone()),
        }
        stream = x.clone()
        for _ in range(2):
            qkv = ops.project(stream, self.qkv, self.bias, norm=norm)
            ops.write_kv(qkv, cached, self.slots, heads)
            queries = qkv[:, : heads.query_width]
            ops.project(ops.attend(queries, cached, self.tree, heads), self.o, residual=stream)
            inner = ops.gated(stream, self.gate_up, None, norm, silu)
            ops.project(inner, self.down, residual=stream)
        results["two layers"] = stream
        log_probs, ids = ops.topk_logprobs(self.logits, 10)
        scores = self.logits[0, :900].double()
        topk, places = ops.topk(scores, 60)
        results |= {
            "the most likely tokens": torch.cat([log_probs, self.logits.gather(1, ids)]),
            "the largest values": torch.cat([topk, scores[places]]),
        }
        return {name: part.float() for name, part in results.items()}
