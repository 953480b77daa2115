"""In every shape, a stand-in generates tiny's tokens step by step."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.layers import ops
from specbench.engine.layers.experts import mix
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.registry import get
from specbench.types import Request, Sampling, Shape
from specbench.zoo import TINY
from specbench.zoo.stand_in.models import spread_layers
from specbench.zoo.stand_in.plan import StandIn, plan_stand_in
from tests.support.devices import CPU
from tests.support.tiny import CODEC
from tests.zoo.stand_in_shapes import DRAFT, SHAPE

METHODS = ("vanilla", "sps", "pld", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3")
NUM_WORDS = 2048
MIXTURE = replace(SHAPE, architecture="mixtral", num_experts=4)
REQUESTS = (
    "Explain the good and bad sides of speaking in public.",
    "Hannah earns $4 an hour by mowing lawns. Hannah works 4 hours a day for 2 days. How much?",
)


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target(TINY / "target", dtype=torch.float32, device=CPU)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    return tuple(CODEC.render([{"role": "user", "content": text}]) for text in REQUESTS)


@cache
def stand_in_and_target(shape: Shape = SHAPE) -> tuple[StandIn, Target]:
    """A stand-in, and its target."""
    stand_in = plan_stand_in("a test", shape, DRAFT)
    return stand_in, load_target(stand_in.target, dtype=torch.float32, device=CPU)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, SHAPE) for name in METHODS), *((name, MIXTURE) for name in ("vanilla", "eagle3"))],
)
def test_every_method_has_tinys_steps_and_tokens(name: str, shape: Shape, tiny: Target) -> None:
    method, (stand_in, big) = get(name), stand_in_and_target(shape)
    kind = method.weights
    weights: Any = (TINY / kind, stand_in.drafters[kind]) if kind else (None, None)
    small, large = (
        method.build(method.options(), BuildContext(target, source))
        for target, source in zip((tiny, big), weights, strict=True)
    )
    # EAGLE samples with one number per token of the vocabulary, so a larger vocabulary shifts them.
    temperatures = (0.0, 0.0 if name == "eagle" else 1.0)
    for seed, (prompt, temperature) in enumerate(zip(prompts(), temperatures, strict=True)):
        request = Request(prompt, 24, Sampling(temperature), frozenset({2}), seed)
        large_answer, small_answer = decode(big, large, request), decode(tiny, small, request)
        assert large_answer.token_ids == small_answer.token_ids
        assert large_answer.accept_lengths == small_answer.accept_lengths


@pytest.mark.parametrize(
    ("changes", "dtype", "bound"),
    [
        ({}, torch.float32, 1e-4),
        ({}, torch.bfloat16, 2.0),
        ({}, torch.float16, 0.25),
        ({"architecture": "qwen2"}, torch.float32, 1e-4),
        ({"architecture": "mistral"}, torch.float32, 1e-4),
        ({"architecture": "mixtral", "num_experts": 4}, torch.float32, 2e-5),
        ({"architecture": "mixtral", "num_experts": 4}, torch.bfloat16, 2.0),
        ({"num_layers": 12, "own_head_dim": 64}, torch.float32, 1e-4),
        ({"num_heads": 12, "hidden_size": 204}, torch.float32, 1e-4),
        ({"own_head_dim": 192, "vocab_size": NUM_WORDS}, torch.float32, 1e-4),
    ],
    ids=str,
)
def test_logits_are_tinys_in_every_shape_and_far_below_for_added_words(
    tiny: Target, changes: dict[str, Any], dtype: torch.dtype, bound: float
) -> None:
    """In half precision, the logits differ only by rounding."""
    shape = replace(SHAPE, **changes)
    target = load_target(plan_stand_in("x", shape).target, dtype=dtype, device=CPU)
    with torch.inference_mode():
        large_logits, small_logits = (
            model.prefill(prompts()[0]).logits[0].float() for model in (target, tiny)
        )
    assert large_logits.shape == (shape.vocab_size,)
    assert (large_logits[:NUM_WORDS] - small_logits).abs().max() < bound
    added = large_logits[NUM_WORDS:]
    least = -65504 if dtype == torch.float32 else -1e6
    assert all((added > least) & (added < -1000))


def test_a_tree_over_experts_has_tinys_logits_and_an_expert_left_out_is_found(
    tiny: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every expert is chosen in the tree, and each gives tiny's output."""
    _, big = stand_in_and_target(MIXTURE)
    chosen = set[int]()
    left_out = -1  # none

    def mixed(x: Any, experts: Any, ids: Any, shares: Any, act: Any) -> torch.Tensor:
        chosen.update(ids.unique().tolist())
        return mix(x, experts, ids, shares.masked_fill(ids == left_out, 0), act)

    monkeypatch.setattr(ops, "mix", mixed)
    tree = DraftTree.chain(torch.arange(100, 160))

    def difference() -> float:
        logits = []
        for target in (big, tiny):
            with torch.inference_mode():
                target.prefill(prompts()[0], num_new=tree.num_nodes)
                logits.append(target.forward(tree).logits[:, :NUM_WORDS])
        return float((logits[0] - logits[1]).abs().max())

    assert difference() < 1e-4
    left_out = 2
    assert difference() > 1
    assert chosen == {*range(4)}


@pytest.mark.slow
def test_added_weights_are_noise_and_not_zeros() -> None:
    wide = Shape(12, 768, 2048, 6, 6, vocab_size=3000, context=2048)
    stand_in = plan_stand_in("x", wide, wide)
    for name, source in {"target": stand_in.target, **stand_in.drafters}.items():
        num_zeros = num_numbers = 0
        for key, tensor in source.tensors(CPU, torch.float32):
            if key not in ("model.embed_tokens.weight", "d2t"):  # a step reads one row
                num_zeros += int((tensor == 0).sum())
                num_numbers += tensor.numel()
        assert num_numbers > 3e6, name
        assert num_zeros <= 193 / 768 * num_numbers, name  # the stripe of tiny's columns


def test_the_same_seed_makes_the_same_weights() -> None:
    def first(seed: int) -> torch.Tensor:
        source = plan_stand_in("x", SHAPE, seed=seed).drafters["eagle"]
        return next(tensor for _, tensor in source.tensors(CPU, torch.float32))

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


def test_captured_layers_equal_tinys() -> None:
    for num_layers in range(12, 81):
        taps = ((2, 2), (6, num_layers // 2), (9, num_layers - 3))
        places = spread_layers(12, num_layers, taps)
        for small, big in (*taps, (12, num_layers)):
            assert [place for place in places[:big] if place is not None] == [*range(small)]
