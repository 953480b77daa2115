"""With trained heads of every shape, the output equals the target's.

A drafter's own cache equals a full recompute at every step. Proposing a tree never waits for the
device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.engine.decode import decode
from specbench.engine.target import Target
from specbench.registry import get
from specbench.types import Request, Sampling
from tests.methods.building import HEADS, Recording, complete
from tests.methods.checkpoints import IDS, vocabulary
from tests.support.architectures import config_of, random_of
from tests.support.models import generated, prompts, random_llama, random_target
from tests.support.products import each_once
from tests.support.tracing import reads_a_value
from tests.support.weights import build
from tests.training.head_models import started

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TARGETS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "ungrouped": {"num_key_value_heads": 4},
    "wide_heads": {"head_dim": 20, "num_key_value_heads": 1},
    "other_rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "llama3_rope": {"rope_parameters": LLAMA3_ROPE},
    "odd_vocabulary": {"vocab_size": 53, "tie_word_embeddings": True},
    "narrow_vocabulary": {"vocab_size": 7},
    "biases": {},
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of head, with the options of its method."""

    method: str
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the checkpoint's maker."""
    options: Mapping[str, Any] = field(default_factory=dict)


VARIANTS = (
    Variant("medusa", checkpoint={"layers": 3, "heads": 2}),
    Variant("medusa", checkpoint={"heads": 6}, options={"tree": "3x2x1x1x1x1"}),
    Variant("medusa", checkpoint={"layers": 0}),
    Variant("medusa", options={"acceptance": "typical"}),
    Variant("hydra", checkpoint={"layers": 3}),
    Variant("hydra", checkpoint={"heads": 2}),
    Variant("hydra", checkpoint={"arch": "prefix-mlp"}),
    Variant("hydra", checkpoint={"arch": "prefix-mlp", "layers": 2}, options={"tree": "eagle_25"}),
    Variant("hydra", options={"nodes": 5}),
    Variant("eagle", checkpoint={"fc_bias": False, "rope_theta": 500000.0}),
    Variant(
        "eagle",
        checkpoint={"qkv_bias": True, "kv_heads": 4},
        options={"tree": "mc_sim_7b_63"},
    ),
    Variant("eagle2", checkpoint={"has_embedding": False, "name": "model.safetensors"}),
    Variant(
        "eagle2",
        checkpoint={"rope_scaling": {"type": "linear", "factor": 2.0}},
        options={"depth": 1, "top_k": 50},
    ),
    Variant("eagle2", options={"total_tokens": 2, "top_k": 1}),
    Variant("eagle2", options={"total_tokens": 500, "depth": 3}),
    Variant("eagle2", options={"depth": 0}),
    Variant("eagle2", checkpoint={"draft_vocab": 9}, options={"depth": 2}),
    Variant("eagle3", checkpoint={"draft_vocab": 9}),
    Variant("eagle3", options={"depth": 0, "top_k": 3, "total_tokens": 3}),
    Variant("eagle3", checkpoint={IDS: [0, 2, 3]}, options={"depth": 3, "top_k": 4}),
)


@cache
def target_of(name: str) -> Target:
    if name == "biases":
        # The attention of a Qwen 2 has biases.
        config = config_of("qwen2", num_hidden_layers=4, layer_types=["full_attention"] * 4)
        return Target(random_of(config).double())
    return random_target(layers=4, **TARGETS[name])


@cache
def greedy(name: str, prompt: tuple[int, ...]) -> list[int]:
    """The output of transformers' `generate`."""
    return generated(target_of(name).model, prompt, num_tokens=24, eos_id=2)


def prompts_of(name: str) -> list[tuple[int, ...]]:
    """Three prompts. The target's last token replaces tokens beyond its vocabulary."""
    last_id = target_of(name).vocab_size - 1
    _, random_prompt, _, repetitive_prompt = prompts()
    return [
        tuple(min(token, last_id) for token in prompt)
        for prompt in (random_prompt, repetitive_prompt, (4,))
    ]


def outputs_with(variant: Variant, target_name: str, folder: Path) -> list[list[int]]:
    """The outputs of the target with a drafter, for each prompt."""
    method, target = variant.method, target_of(target_name)
    drafter = build(method, target, folder, maker_args=variant.checkpoint, **variant.options)
    completions = [complete(target, drafter, prompt) for prompt in prompts_of(target_name)]
    return [[*completion.token_ids] for completion in completions]


def own_outputs(target_name: str) -> list[list[int]]:
    """The outputs of the target without a drafter, for each prompt."""
    return [greedy(target_name, prompt) for prompt in prompts_of(target_name)]


@pytest.mark.parametrize(("method", "target_name"), each_once(HEADS, [*TARGETS]))
def test_greedy_output_is_the_targets_own(method: str, target_name: str, tmp_path: Path) -> None:
    assert outputs_with(Variant(method), target_name, tmp_path) == own_outputs(target_name)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_greedy_output_is_the_targets_own_for_every_kind_of_head(
    variant: Variant, tmp_path: Path
) -> None:
    assert outputs_with(variant, "grouped", tmp_path) == own_outputs("grouped")


@pytest.mark.parametrize(
    ("method", "dtype"), each_once(HEADS, [torch.bfloat16, torch.float16, torch.float32])
)
def test_a_head_takes_the_targets_dtype(method: str, dtype: torch.dtype, tmp_path: Path) -> None:
    target = Target(random_llama(layers=4).to(dtype))
    drafter = build(method, target, tmp_path)
    for sampling in (Sampling(), Sampling(1.0)):
        completion = complete(
            target, drafter, prompt=prompts()[0], sampling=sampling, eos_ids=frozenset()
        )
        assert completion.num_tokens == 24
    draft_model = getattr(drafter, "model", None)
    stack = getattr(draft_model, "stack", None)
    if stack is not None:
        assert stack.cache.layers[0].keys.dtype == dtype


def test_only_typical_acceptance_is_lossy() -> None:
    for name in HEADS:
        method = get(name)
        assert method.is_lossless_with(method.options()), name
    medusa = get("medusa")
    assert not medusa.is_lossless_with(medusa.options(acceptance="typical"))


def maker_args_of(method: str) -> dict[str, Any]:
    """The arguments of the checkpoint's maker. Of Hydra's heads, only `prefix-mlp` has a cache."""
    return {"arch": "prefix-mlp"} if method == "hydra" else {}


@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "hydra", "sam"])
@torch.inference_mode()
def test_every_draft_equals_that_of_a_fresh_drafter(method: str, tmp_path: Path) -> None:
    """SAM-Decoding copies some drafts, and EAGLE-2 makes the others."""
    target = random_target(layers=4)
    maker_args = maker_args_of(method)
    options = {"other": "eagle2", "num_tokens": "5", "threshold": "3"} if method == "sam" else {}
    drafter = build(method, target, tmp_path, maker_args=maker_args, **options)
    recording = Recording(drafter)
    accept_lengths: list[int] = []
    for prompt in prompts():
        completion = decode(target, recording, Request(prompt, 40))
        accept_lengths += completion.accept_lengths
    assert max(accept_lengths) > 1
    if method == "sam":
        # Copies have at most 5 tokens, and trees have more.
        assert {len(draft) > 5 for _, draft in recording.drafts} == {True, False}
    fresh = build(method, target, tmp_path, maker_args=maker_args, **options)
    for text, draft in recording.drafts:
        state = started(fresh, target, list(text))
        tree = fresh.propose(state)
        assert tree.tokens[1:].tolist() == draft


@torch.inference_mode()
def test_an_eagle_head_drafts_the_best_tokens_of_its_vocabulary(tmp_path: Path) -> None:
    target = random_target(layers=4)
    size = target.vocab_size
    is_in_draft = vocabulary(size, 9)["t2d"].tolist()  # [vocab]

    def drafted(name: str, folder: str, maker_args: Any = None, **options: int) -> list[int]:
        drafter = build(name, target, tmp_path / folder, maker_args=maker_args, **options)
        state = started(drafter, target, list(prompts()[1]))
        tree = drafter.propose(state)
        draft: list[int] = tree.tokens[1:].tolist()
        return draft

    all_by_score = drafted("eagle2", "all", depth=0, top_k=size, total_tokens=size + 1)
    small = {"draft_vocab": 9}
    best_five = drafted("eagle2", "five", maker_args=small, depth=0, top_k=5, total_tokens=6)
    assert best_five == [token for token in all_by_score if is_in_draft[token]][:5]
    assert all(is_in_draft[token] for token in drafted("eagle", "chain", maker_args=small))


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not reads_a_value(func, args), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def without_waiting(
    propose: Callable[[Any], Any], patch: pytest.MonkeyPatch
) -> Callable[[Any], Any]:
    """The function, which fails now if one of its operations waits for the device."""

    def refuse(tensor: Tensor) -> None:
        raise AssertionError("a tensor became a list")

    def checked(state: Any) -> Any:
        with patch.context() as inside, NoWaiting():
            inside.setattr(Tensor, "tolist", refuse)
            return propose(state)

    return checked


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("method", HEADS)
def test_a_proposal_waits_for_nothing(
    method: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = random_target(layers=4)
    drafter: Any = build(method, target, tmp_path, maker_args=maker_args_of(method))
    drafter.propose = without_waiting(drafter.propose, monkeypatch)
    request = Request(prompts()[1], 12, sampling)
    assert decode(target, drafter, request).num_tokens == 12


def test_the_check_finds_operations_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Callable[[Tensor], Any]] = [
        lambda tensor: tensor.sum().item(),
        lambda tensor: bool(tensor.any()),
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor[tensor > 0],
    ]
    for wait in waiting:
        checked = without_waiting(wait, monkeypatch)
        with pytest.raises(AssertionError):
            checked(torch.ones(3))
