"""With trained heads of every shape, the output equals the target's.

A drafter's own cache equals a full recompute at every step. Proposing a tree never waits for the
device.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.engine.decode import decode
from specbench.engine.target import Target
from specbench.errors import CheckpointError, UserError
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
BIASED = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
"""Changes to the config of a Qwen 2, whose attention has biases."""
VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("medusa", {"layers": 3, "heads": 2}, {}),
    ("medusa", {"heads": 6}, {"tree": "3x2x1x1x1x1"}),
    ("medusa", {"layers": 0}, {}),
    ("medusa", {}, {"acceptance": "typical"}),
    ("hydra", {"layers": 3}, {}),
    ("hydra", {"heads": 2}, {}),
    ("hydra", {"arch": "prefix-mlp"}, {}),
    ("hydra", {"arch": "prefix-mlp", "layers": 2}, {"tree": "eagle_25"}),
    ("eagle", {"fc_bias": False, "rope_theta": 500000.0}, {}),
    ("eagle", {"qkv_bias": True, "kv_heads": 4}, {"tree": "mc_sim_7b_63"}),
    ("eagle2", {"has_embedding": False, "name": "model.safetensors"}, {}),
    ("eagle2", {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"depth": 1, "top_k": 50}),
    ("eagle2", {}, {"total_tokens": 2, "top_k": 1}),
    ("eagle2", {}, {"total_tokens": 500, "depth": 3}),
    ("eagle3", {"draft_vocab": 9}, {}),
    ("eagle2", {}, {"depth": 0}),
    ("eagle2", {"draft_vocab": 9}, {"depth": 2}),
    ("eagle3", {}, {"depth": 0, "top_k": 3, "total_tokens": 3}),
    ("hydra", {}, {"nodes": 5}),
    ("eagle3", {IDS: [0, 2, 3]}, {"depth": 3, "top_k": 4}),
]
"""The method, the arguments of its checkpoint's maker, and its options."""


@cache
def target_of(name: str) -> Target:
    if name == "biases":
        return Target(random_of(config_of("qwen2", **BIASED)).double())
    return random_target(layers=4, **TARGETS[name])


@cache
def greedy(name: str, prompt: tuple[int, ...]) -> list[int]:
    """The output of transformers' `generate`."""
    return generated(target_of(name).model, prompt, 24, eos_id=2)


def prompts_of(name: str) -> list[tuple[int, ...]]:
    last = target_of(name).vocab_size - 1
    chosen = (prompts()[1], prompts()[3], (4,))
    return [tuple(min(token, last) for token in prompt) for prompt in chosen]


@pytest.mark.parametrize(("method", "target_name"), each_once(HEADS, [*TARGETS]))
def test_greedy_output_is_the_targets_own(method: str, target_name: str, tmp_path: Path) -> None:
    target = target_of(target_name)
    drafter = build(method, target, tmp_path)
    for prompt in prompts_of(target_name):
        assert list(complete(target, drafter, prompt).token_ids) == greedy(target_name, prompt)


@pytest.mark.parametrize(("method", "maker_args", "options"), VARIANTS, ids=str)
def test_greedy_output_is_the_targets_own_for_every_kind_of_head(
    method: str, maker_args: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    target = target_of("grouped")
    drafter = build(method, target, tmp_path, maker_args, **options)
    for prompt in prompts_of("grouped"):
        assert list(complete(target, drafter, prompt).token_ids) == greedy("grouped", prompt)


@pytest.mark.parametrize(
    ("method", "dtype"), each_once(HEADS, [torch.bfloat16, torch.float16, torch.float32])
)
def test_a_head_takes_the_targets_dtype(method: str, dtype: torch.dtype, tmp_path: Path) -> None:
    target = Target(random_llama(layers=4).to(dtype))
    drafter = build(method, target, tmp_path)
    for sampling in (Sampling(), Sampling(1.0)):
        done = complete(target, drafter, prompts()[0], sampling=sampling, eos_ids=frozenset())
        assert done.num_tokens == 24
    model = getattr(drafter, "model", None)
    stack = getattr(model, "stack", None)
    if stack is not None:
        assert stack.cache.layers[0].keys.dtype == dtype


def test_only_typical_acceptance_is_lossy() -> None:
    for name in HEADS:
        method = get(name)
        assert method.is_lossless_with(method.options()), name
    medusa = get("medusa")
    assert not medusa.is_lossless_with(medusa.options(acceptance="typical"))


@pytest.mark.parametrize(
    ("flat", "nested", "chosen", "layers"),
    [
        (None, None, "", (2, 4, 5)),
        ([6, 1, 3], None, "", (1, 3, 6)),
        (None, [1, 3, 4], "", (2, 4, 5)),  # the formula's layers, numbered by their outputs
        (None, [2, 4, 5], "", (2, 4, 5)),
        (None, [1, 3, 6], "2+4+7", (2, 4, 7)),
        (None, [2, 5, 8], "", (2, 5, 8)),  # 8 layers: the last one's output counts as an input
        ([6, 1, 3], None, "0+1+8", (0, 1, 8)),
        ([6, 1, 3], None, "0+1+2", (0, 1, 2)),
    ],
)
def test_eagle3_reads_layers_of_an_option_its_config_or_the_formula(
    flat: list[int] | None,
    nested: list[int] | None,
    chosen: str,
    layers: tuple[int, ...],
    tmp_path: Path,
) -> None:
    fields = {IDS: flat, "eagle_config": {IDS: nested}}
    drafter = build("eagle3", random_target(layers=8), tmp_path, fields, layers=chosen)
    assert drafter.needs.layer_inputs == layers


def test_nested_layers_of_unknown_numbering_need_the_option(tmp_path: Path) -> None:
    fields = {IDS: None, "eagle_config": {IDS: [1, 3, 6]}}
    with pytest.raises(CheckpointError, match=r"\[1, 3, 6\] in eagle_config") as caught:
        build("eagle3", random_target(layers=8), tmp_path, fields)
    assert "layers=1+3+6" in caught.value.hint
    assert "layers=2+4+7" in caught.value.hint
    with pytest.raises(UserError, match="'2,4' is not a list"):
        build("eagle3", random_target(layers=8), tmp_path, fields, layers="2,4")


@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "hydra", "sam"])
@torch.inference_mode()
def test_every_draft_equals_that_of_a_fresh_drafter(method: str, tmp_path: Path) -> None:
    """SAM-Decoding copies some drafts, and EAGLE-2 makes the others."""
    target = random_target(layers=4)
    maker_args = {"arch": "prefix-mlp"} if method == "hydra" else None
    options = {}
    if method == "sam":
        options = {"other": "eagle2", "num_tokens": "5", "threshold": "3"}
    drafter = build(method, target, tmp_path, maker_args, **options)
    recording = Recording(drafter)
    lengths: list[int] = []
    for prompt in prompts():
        done = decode(target, recording, Request(prompt, 40))
        lengths += done.accept_lengths
    assert max(lengths) > 1
    if method == "sam":
        assert {len(tokens) > 5 for _, tokens in recording.drafts} == {True, False}
    fresh = build(method, target, tmp_path, maker_args, **options)
    for text, tokens in recording.drafts:
        assert fresh.propose(started(fresh, target, list(text))).tokens[1:].tolist() == tokens


@torch.inference_mode()
def test_an_eagle_head_drafts_the_best_tokens_of_its_vocabulary(tmp_path: Path) -> None:
    target = random_target(layers=4)
    size = target.vocab_size
    draft_vocabulary = {*vocabulary(size, 9)["t2d"].nonzero().flatten().tolist()}

    def drafted(name: str, folder: str, draft_vocab: int | None, **options: int) -> list[int]:
        maker_args = None if draft_vocab is None else {"draft_vocab": draft_vocab}
        drafter = build(name, target, tmp_path / folder, maker_args, **options)
        state = started(drafter, target, list(prompts()[1]))
        tokens: list[int] = drafter.propose(state).tokens.tolist()
        return tokens[1:]

    of_all = drafted("eagle2", "all", None, depth=0, top_k=size, total_tokens=size + 1)
    best_of_some = [token for token in of_all if token in draft_vocabulary][:5]
    assert drafted("eagle2", "some", 9, depth=0, top_k=5, total_tokens=6) == best_of_some
    assert {*drafted("eagle", "chain", 9)} <= draft_vocabulary


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not reads_a_value(func, args), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def capture(propose: Callable[[Any], Any], patch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    def refuse(tensor: Tensor) -> None:
        raise AssertionError("a tensor became a list")

    def inner(state: Any) -> Any:
        with patch.context() as inside, NoWaiting():
            inside.setattr(Tensor, "tolist", refuse)
            return propose(state)

    return inner


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("method", HEADS)
def test_a_proposal_waits_for_nothing(
    method: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = random_target(layers=4)
    maker_args = {"arch": "prefix-mlp"} if method == "hydra" else None
    drafter: Any = build(method, target, tmp_path, maker_args)
    drafter.propose = capture(drafter.propose, monkeypatch)
    assert decode(target, drafter, Request(prompts()[1], 12, sampling)).num_tokens == 12


def test_the_check_finds_operations_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Callable[[Tensor], Any]] = [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
    ]
    for wait in waiting:
        with pytest.raises(AssertionError):
            capture(wait, monkeypatch)(torch.ones(3))
