"""The compiled operations of drafting: the best tokens, and the levels of heads."""

from pathlib import Path

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.execution import Execution
from specbench.engine.kernels import native_build
from specbench.engine.kernels.native_build import BuildError, user_folder
from specbench.engine.kernels.native_ops import NativeOps, native_ops
from specbench.engine.layers.ops import TORCH, Ops
from specbench.engine.target import Target
from specbench.methods._dynamic_tree import DynamicDrafter
from specbench.registry import get
from specbench.types import Completion, Request
from specbench.zoo import TINY
from tests.engine.test_target import load_in
from tests.methods.building import build_in
from tests.support.models import prompts, random_llama
from tests.support.weights import build
from tests.training.head_models import started

try:
    native_build.compiler()
except BuildError as reason:
    pytest.skip(str(reason), allow_module_level=True)


@pytest.fixture(scope="module", params=(torch.float32, torch.bfloat16), ids=str)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return native_ops(request.param, user_folder())


@pytest.mark.parametrize("size", [1, 7, 64, 65, 1000, 4099])
@pytest.mark.parametrize("k", [1, 3, 10, 64])
def test_best_tokens_are_the_first_of_a_stable_sort(ops: NativeOps, size: int, k: int) -> None:
    """Equal logits, which are frequent in bfloat16, keep their order."""
    k = min(k, size)
    generator = torch.Generator().manual_seed(size)
    wider = 4 * torch.randn(9, size + 3, generator=generator)
    logits = wider.to(ops._dtype)[:, 1:-2]
    order = logits.float().sort(dim=-1, descending=True, stable=True)
    log_probs, ids = ops.topk_logprobs(logits, k)
    assert torch.equal(ids, order.indices[:, :k])
    assert torch.equal(ops.topk_ids(logits, k), ids)
    assert torch.equal(ops.best_ids(logits), ids[:, 0])
    expected = logits.double().log_softmax(-1).gather(1, ids)
    largest_error = (log_probs - expected).abs().max()
    assert largest_error < 1e-5 * (1 + expected.abs().max())
    log_probs_of_a_row, _ = ops.topk_logprobs(logits[4:5], k)
    assert torch.equal(log_probs_of_a_row, log_probs[4:5])


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 70, 129])
def test_non_finite_logits_win(ops: NativeOps, broken: float, place: int) -> None:
    logits = torch.randn(3, 130, dtype=ops._dtype)
    logits[1, place] = broken
    logits[:, 5] = -torch.inf
    log_probs, ids = ops.topk_logprobs(logits, 4)
    assert torch.equal(ids[:, 0], TORCH.best_ids(logits))
    assert ids[1, 0] == place
    assert log_probs[1].isnan().any()
    assert log_probs[::2].isfinite().all()


def test_a_k_too_large_for_native_code_is_left_to_torch(ops: NativeOps) -> None:
    logits = torch.randn(2, 500, dtype=ops._dtype)
    log_probs, _ = ops.topk_logprobs(logits, 65)
    expected, _ = TORCH.topk_logprobs(logits, 65)
    assert torch.equal(log_probs, expected)


@pytest.mark.parametrize("name", ["sps", "medusa", "hydra", "eagle", "eagle2", "eagle3"])
def test_native_heads_draft_the_same_as_torchs(name: str) -> None:
    """All levels of a draft in native code give the same trees, and so the same steps."""

    def drafted_with(operations: Ops) -> Completion:
        target = load_in(TINY / "target", execution=Execution(operations))
        drafter = build_in(TINY / (get(name).weights or ""), name, target)
        return decode(target, drafter, Request(tuple(range(5, 45)), 40, eos_ids=frozenset()))

    native = drafted_with(native_ops(torch.float32, user_folder()))
    expected = drafted_with(TORCH)
    assert native.token_ids == expected.token_ids
    assert native.steps == expected.steps
    assert len(native.steps) < 39


@pytest.mark.parametrize(
    ("name", "maker_args"),
    [
        ("eagle2", {}),
        ("eagle3", {}),
        ("eagle3", {"norm_before_residual": True}),
        ("eagle3", {"norm_output": True}),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_levels_in_one_call_equal_levels_in_separate_calls(
    ops: NativeOps, name: str, maker_args: dict[str, bool], depth: int, tmp_path: Path
) -> None:
    """Scores have the same bits.

    Equal scores, which are frequent in bfloat16, may change places.
    """
    shape = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    target = Target(random_llama(3, **shape).to(ops._dtype), Execution(ops))
    drafter = build(name, target, tmp_path, maker_args, depth=depth, top_k=5)
    assert isinstance(drafter, DynamicDrafter)
    joined = drafter._joined
    assert joined
    for prompt in prompts():
        state = started(drafter, target, list(prompt))
        inputs = drafter.draft_inputs(state)
        span = drafter.cache_span(state)
        with torch.inference_mode():
            drafter._joined = joined
            drafter._grown(*inputs, cache_span=span)
            scores = torch.cat(drafter._pool._scores)
            tokens = torch.cat(drafter._pool._tokens)
            drafter._joined = None
            drafter._grown(*inputs, cache_span=span)
        expected = torch.cat(drafter._pool._scores)
        assert torch.equal(scores.sort().values, expected.sort().values)
        if ops._dtype == torch.float32:
            assert torch.equal(tokens, torch.cat(drafter._pool._tokens))
