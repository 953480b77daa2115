"""The kernels that grow a draft tree compute the same as torch. A level launches few of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from specbench.engine.layers.operands import Norm, PairNorms, additive
from specbench.engine.layers.ops import TORCH
from tests.support.devices import DEVICE
from tests.support.launches import CountedKernel, Launches, per_level

pytest.importorskip("triton", reason="triton is not installed")

from specbench.engine.kernels import triton_drafts, triton_ops
from specbench.engine.kernels.triton_ops import TritonOps

LAUNCHED = {
    triton_drafts: ("choose_beam", "pair_rows", "topk_of_chunk", "topk_of_row"),
    triton_ops: ("attend_split", "join_splits", "gate_rows", "norm_rows", "project_row",
                 "rotate_and_write_kv", "topk_of_few"),
}  # fmt: skip


@pytest.mark.parametrize(("k", "levels"), [(1, 4), (3, 3), (10, 4)])
def test_beams_equal_torchs(k: int, levels: int) -> None:
    """Each beam's mask extends the mask of the previous beam."""
    kernels = TritonOps(8)
    generator = torch.Generator().manual_seed(k)
    sees_itself = additive(torch.eye(k, device=DEVICE) > 0, torch.float16)
    penalty = torch.full((1, 1), -1e-9, dtype=torch.float64, device=DEVICE)
    masks = [sees_itself[:1, :0]] * 2
    for level in range(levels):
        num_candidates = k * k if level else k
        scores = torch.randn(num_candidates, generator=generator, dtype=torch.float64).to(DEVICE)
        if num_candidates > k:
            scores[0] = -torch.inf
        tokens = torch.randint(100, (num_candidates,), generator=generator).to(DEVICE)
        beams = [
            ops.beam(scores, tokens, mask, sees_itself, penalty)
            for ops, mask in zip((kernels, TORCH), masks, strict=True)
        ]
        for part, expected in zip(*beams, strict=True):
            assert part.dtype == expected.dtype and torch.equal(part, expected)
        masks = [beam.mask for beam in beams]
    assert kernels.fallbacks == {}


@pytest.mark.parametrize("is_residual_normed", [False, True])
@pytest.mark.parametrize("has_rows", [False, True])
def test_pairs_of_embeddings_and_outputs_equal_torchs(
    has_rows: bool, is_residual_normed: bool
) -> None:
    torch.manual_seed(0)
    kernels = TritonOps(8)
    table, hidden = torch.randn(50, 72, device=DEVICE), torch.randn(4, 144, device=DEVICE)[:, :72]
    tokens, rows = torch.randint(50, (4,), device=DEVICE), torch.tensor([3, 0, 0, 2], device=DEVICE)
    weights = [torch.rand(72, device=DEVICE) + 0.5 for _ in range(2)]
    norms = PairNorms(Norm(weights[0], 1e-5), Norm(weights[1], 1e-3), is_residual_normed)
    chosen_rows = rows if has_rows else None
    for pair_norms in (None, norms):
        outputs, expected = (
            ops.pairs(table, tokens, hidden, chosen_rows, pair_norms) for ops in (kernels, TORCH)
        )
        torch.testing.assert_close(outputs, expected)
    assert kernels.fallbacks == {}


def test_scores_of_candidates_include_their_parents_and_ids_are_the_targets() -> None:
    torch.manual_seed(0)
    kernels = TritonOps(8)
    logits = torch.randn(3, 3000, device=DEVICE)
    above = torch.randn(3, 1, dtype=torch.float64, device=DEVICE)
    token_ids = torch.randperm(9000, device=DEVICE)[:3000]
    for ids in (None, token_ids):
        scores, chosen = kernels.topk_scores(logits, 10, above, ids)
        expected, expected_ids = TORCH.topk_scores(logits, 10, above, ids)
        assert scores.dtype == torch.float64 and torch.equal(chosen, expected_ids)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    assert kernels.fallbacks == {}


LAYER = Counter({"linear": 2, "addmm_": 2}) + Counter(
    ("rotate_and_write_kv", "attend_split", "join_splits", "norm_rows", "gate_rows")
)
GROWTH = Counter(("choose_beam", "pair_rows", "topk_of_chunk", "topk_of_row"))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("eagle2", ("linear", "linear")),  # fc and the head
        ("eagle3", ("norm_rows", "linear")),  # the head
    ],
)
def test_a_level_launches_only_the_listed_kernels(
    name: str, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches()
    for module, labels in LAUNCHED.items():
        for label in labels:
            kernel = CountedKernel(getattr(module, label), launches)
            monkeypatch.setattr(module, label, kernel)
    counts = per_level(name, TritonOps(8), tmp_path, launches)
    assert counts == LAYER + GROWTH + Counter(more) and counts.total() == 15
