"""Choose the operations of decoder layers for a device. Kernels must give correct results."""

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
    PairNorms,
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
    (1, Heads(1, 1, 128)),
    (5, Heads(1, 4, 64)),
    (9, Heads(2, 2, 64)),
    (26, Heads(1, 2, 64)),  # EAGLE's tree
    (40, Heads(1, 1, 128)),
)
"""Rows and heads of each trial. Each trial uses other kernels, or a kernel at another size."""
NO_OVERLAP = "launches do not overlap"
"""Name of the fallback to plain launches, on hardware that could overlap them."""
WINDOW = 100
"""Window of attention in a trial. It is shorter than the trial's cache."""
# Sizes of inputs. Each is larger than a block of its kernel, and not a multiple of a block.
HIDDEN = 1104
"""Hidden size of a layer."""
EXPERT_HIDDEN = 544
"""Hidden size of a layer of experts."""
VOCAB = 33_000
"""Number of logits per row."""


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """|actual - expected| / |expected|. A number that overflows in one must overflow in both."""
    largest = torch.finfo(expected.dtype).max
    finite = torch.where(expected.isfinite(), expected, 0).float()
    clamped = actual.float().clamp(-largest, largest)
    difference = clamped - expected.float().clamp(-largest, largest)
    return float(difference.norm() / finite.norm())


def pick_ops(device: torch.device, dtype: torch.dtype, kind: str = "auto") -> Ops:
    """Triton's kernels, if they run on the GPU and give the results of torch's operations.

    `kind` says how kernels are launched: `plain` or `overlapped`. With `auto` they overlap, unless
    more kernels run correctly without overlap.
    """
    try:
        from specbench.engine.kernels.triton_ops import TritonOps
    except Exception as error:  # not installed, or too old for the kernels
        return Ops(f"triton's kernels cannot be imported ({reason_of(error)})")
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    if capability < LEAST_CAPABILITY:
        actual = ".".join(map(str, capability))
        least = ".".join(map(str, LEAST_CAPABILITY))
        return Ops(f"the GPU has compute capability {actual}, kernels need {least}")
    from specbench.engine.graphs.recorder import CudaRecorder

    recorder = CudaRecorder(device)
    # The values of `is_early` to try, which are also the keys of `correct` and `reasons`.
    tried = (True, False) if capability >= (9, 0) else (False,)
    tried = {"plain": (False,), "overlapped": (True,)}.get(kind, tried)
    correct: dict[bool, TritonOps] = {}
    reasons: dict[bool, str] = {}
    for is_early in tried:
        ops = TritonOps(properties.multi_processor_count, is_early=is_early)
        fault = unsupported_reason(ops, device, dtype, recorder)
        if fault is None:
            correct[is_early] = ops
        reason = fault or ops.reason
        if reason is None:
            break
        reasons[is_early] = reason
    if not correct:
        return Ops("; ".join(reasons.values()))
    is_early = min(correct, key=lambda is_early: len(correct[is_early].fallbacks))
    ops = correct[is_early]
    if not is_early and True in reasons:
        ops.fallbacks[NO_OVERLAP] = reasons[True]
    return ops


def pick_native_ops(dtype: torch.dtype, folder: Path) -> Ops:
    """Compiled operations for a CPU if they give the results of torch's.

    The library is compiled once, and kept in `folder`.
    """
    try:
        ops = native_ops(dtype, folder)
    except BuildError as error:
        return Ops(str(error))
    fault = unsupported_reason(ops, torch.device("cpu"), dtype)
    return ops if fault is None else Ops(fault)


@torch.inference_mode()
def unsupported_reason(
    ops: Ops, device: torch.device, dtype: torch.dtype, recorder: Recorder | None = None
) -> str | None:
    """The reason that operations cannot be used on a device, or None if they agree with torch's.

    With a recorder, they must also agree when recorded.
    """
    allowed_error = ALLOWED_ERRORS.get(dtype)
    if allowed_error is None:
        return f"there are no kernels for {str(dtype).removeprefix('torch.')}"
    for num_rows, heads in TRIED:
        trial = Trial(num_rows, heads, device, dtype)
        expected = trial.run(TORCH)
        for used_recorder in (None, recorder) if recorder else (None,):
            label = f"{ops.name}, recorded," if used_recorder else ops.name
            try:
                if used_recorder:
                    runs = _replayed(trial, ops, used_recorder, [*expected])
                else:
                    runs = [trial.run(ops)]
            except Exception as error:  # a compiler, a driver or a device that is too old
                return f"{label} fails: {reason_of(error)}"
            for outputs in runs:
                for name, output in outputs.items():
                    error_of_output = relative_error(output, expected[name])
                    if not error_of_output <= allowed_error:
                        return f"{name} of {label} is off by {error_of_output:.1e}"
    return None


def _replayed(
    trial: Trial, ops: Ops, recorder: Recorder, names: list[str]
) -> list[dict[str, Tensor]]:
    """The results of several replays in a row. The keys of each are the operations' `names`."""
    recording = recorder(lambda: tuple(trial.run(ops).values()), ())
    runs = []
    for _ in range(4):
        recording.replay()
        copies = [output.clone() for output in recording.outputs]
        runs.append(dict(zip(names, copies, strict=True)))
    return runs


class Trial:
    """Inputs for a check of the operations: seeded random numbers for n rows."""

    def __init__(self, n: int, heads: Heads, device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(shape, generator=generator)).to(device, dtype)

        def weight(num_out: int, size: int) -> Tensor:
            return drawn(num_out, size, scale=size**-0.5)

        inner = 144  # width of the MLP
        capacity = 512  # rows of the cache
        start = 300  # filled rows of the cache
        width = heads.query_width + 2 * heads.kv_width  # queries, keys and values
        num_queries = heads.num_kv * heads.group
        angles = torch.rand(n, 1, 1, heads.dim // 2, generator=generator).to(device)
        cos = angles.cos().expand(-1, -1, 2, -1)
        sin = torch.cat([-angles.sin(), angles.sin()], 2)
        cos_sin = torch.stack([cos, sin], 1).to(dtype)
        self.heads = heads
        self.slots = CacheSlots(torch.arange(start, start + n, device=device), cos_sin)
        self.cache_rows = drawn(capacity, 2 * heads.kv_width)
        self.x = drawn(n, HIDDEN)
        self.norm = Norm(drawn(HIDDEN), 1e-5)
        self.head_norm = HeadNorm(drawn(num_queries + heads.num_kv, heads.dim), 1e-6)
        self.qkv = weight(width, HIDDEN)
        self.o = weight(HIDDEN, heads.query_width)
        self.gate_up = weight(2 * inner, HIDDEN)
        self.down = weight(HIDDEN, inner)
        few = min(n, 2)  # enough: the kernels below do not depend on the number of rows
        self.logits = drawn(few, VOCAB)
        self.bias = drawn(width)
        self.row_weights = drawn(few, inner, HIDDEN)
        self.row_biases = drawn(few, inner)
        self.expert_x = drawn(few, EXPERT_HIDDEN)
        gate_up = drawn(4, 32, EXPERT_HIDDEN, scale=0.04)
        down = drawn(4, EXPERT_HIDDEN, 16)
        self.candidates = torch.randperm(100, generator=generator).double().to(device)
        self.experts = Experts(gate_up, down)
        self.expert_ids = drawn(few, 4).topk(3).indices
        self.expert_shares = drawn(few, 3)
        gate_up_bias = drawn(4, 32)
        down_bias = drawn(4, EXPERT_HIDDEN)
        self.clamped = Experts(gate_up, down, gate_up_bias, down_bias, Clamp(1.702, 1.0))
        self.scoring = Scoring(0.2, 5.0, drawn(num_queries))
        cache_span = CacheSpan(capacity, is_exact=False)
        bias = additive(torch.ones(n, n, device=device).tril().bool(), dtype)
        num_filled = torch.tensor(start, device=device)
        self.chain_mask = TreeMask(num_filled, bias, cache_span, self.slots.rows)
        no_bias = self.cache_rows.new_zeros(1, 0)
        self.row_mask = TreeMask(num_filled.view(1), no_bias, cache_span)

    def run(self, ops: Ops) -> dict[str, Tensor]:
        """Run each operation by itself, and all of them in two layers. The results are float32."""
        x, norm, heads = self.x, self.norm, self.heads
        cache_rows = self.cache_rows.clone()
        cached = self._cached(cache_rows)
        qkv = ops.project(x, self.qkv, self.bias, norm=norm)
        results = {
            "the norm": ops.norm(x, norm),
            "a normed sum": ops.norm(x, norm, x.clone()),
            "a normed product": qkv.clone(),
        }
        normed_qkv = qkv.clone()
        normed_rows = cache_rows.clone()
        ops.write_kv(normed_qkv, self._cached(normed_rows), self.slots, heads, self.head_norm)
        ops.write_kv(qkv, cached, self.slots, heads)
        queries = qkv[:, : heads.query_width]
        mask, scoring = self.chain_mask, self.scoring
        routing = self.expert_ids, self.expert_shares, silu
        results |= {
            "the rotary embedding of normed heads": normed_qkv[:, : heads.query_width],
            "the cache of normed heads": normed_rows,
            "the rotary embedding": queries,
            "the cache": cache_rows.clone(),
            "attention of a row": ops.attend(queries[:1], cached, self.row_mask, heads),
            "attention": ops.attend(queries, cached, mask, heads),
            "attention in a window": ops.attend(queries, cached, mask, heads, PLAIN, WINDOW),
            "attention with sinks": ops.attend(queries, cached, mask, heads, scoring),
            "the gate": ops.gated(x, self.gate_up, None, norm, silu),
            "the gelu gate": ops.gated(x, self.gate_up, None, norm, gelu_tanh),
            "the experts": ops.experts(self.expert_x, self.experts, *routing),
            "clamped experts": ops.experts(self.expert_x, self.clamped, *routing),
            "products of each row": ops.project_each(x[:2], self.row_weights, self.row_biases),
            "a sum": ops.project(queries, self.o, residual=x.clone()),
            "two layers": self._two_layers(ops, cached),
        }
        log_probs, ids = ops.topk_logprobs(self.logits, 10)
        scores = self.logits[0, :900].double()
        largest, indices = ops.topk(scores, 60)
        results |= {
            "the most likely tokens": torch.cat([log_probs, self.logits.gather(1, ids)]),
            "the largest values": torch.cat([largest, scores[indices]]),
            **self._growth(ops),
        }
        return {name: result.float() for name, result in results.items()}

    def _growth(self, ops: Ops) -> dict[str, Tensor]:
        """Run the operations that grow a draft tree of 10 nodes per level."""
        x, logits, scores = self.x, self.logits, self.candidates
        tokens = scores.long()
        sees_itself = additive(torch.eye(10, device=x.device) > 0, x.dtype)
        beam = ops.beam(scores, tokens, sees_itself, sees_itself, -scores[:1, None])
        norms, rows = PairNorms(self.norm, self.norm, True), beam.rows % len(x)
        token_ids = torch.arange(VOCAB, device=x.device).flip(0)
        child_scores, ids = ops.topk_scores(logits, 10, scores[: len(logits), None], token_ids)
        return {
            "the nodes to expand": torch.stack([beam.above[:, 0], beam.rows, beam.tokens]),
            "their mask": beam.mask == 0,
            "inputs of a draft": torch.cat(ops.pairs(self.gate_up, tokens[: len(x)], x), 1),
            "normed inputs": torch.cat(ops.pairs(self.gate_up, beam.tokens, x, rows, norms), 1),
            "scores of candidates": torch.cat([child_scores, logits.gather(1, VOCAB - 1 - ids)]),
        }

    def _cached(self, rows: Tensor) -> CacheRows:
        return CacheRows.of(rows, *[(self.heads.num_kv, self.heads.dim)] * 2)

    def _two_layers(self, ops: Ops, cached: CacheRows) -> Tensor:
        """The output [n, hidden] of two equal layers in a row."""
        heads = self.heads
        residual = self.x.clone()
        for _ in range(2):
            qkv = ops.project(residual, self.qkv, self.bias, norm=self.norm)
            ops.write_kv(qkv, cached, self.slots, heads)
            queries = qkv[:, : heads.query_width]
            attended = ops.attend(queries, cached, self.chain_mask, heads)
            ops.project(attended, self.o, residual=residual)
            inner = ops.gated(residual, self.gate_up, None, self.norm, silu)
            ops.project(inner, self.down, residual=residual)
        return residual
