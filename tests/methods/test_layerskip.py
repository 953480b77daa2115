"""LayerSkip: a draft is what the target's first layers alone would generate."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
)

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.registry import get
from specbench.types import Request
from tests.methods.building import Recording
from tests.methods.test_mtp import deepseek
from tests.support.models import generated, random_llama, random_target

VOCAB = 8
"""So few tokens that the first layers are often right."""

NAMES = ("llama", "gpt2", "deepseek", "gemma3")
PROMPTS = [(1, 7, 3, 4), (5,), (3, 4, 5, 6) * 6]


@cache
def model_of(name: str) -> Any:
    """A random model with four layers: run by the engine's stack (llama), or by transformers.

    Gemma 3's layers are those of its text part, and three of four have a window.
    """
    torch.manual_seed(0)
    if name == "llama":
        return random_llama(layers=4, vocab_size=VOCAB)
    if name == "gpt2":
        config = GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=4, n_head=4, n_positions=128)
        return GPT2LMHeadModel(config).double().eval()
    if name == "gemma3":
        text = {
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128, "sliding_window": 8, "initializer_range": 0.2,
        }  # fmt: skip
        image = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                 "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
        both = Gemma3Config(text_config=text, vision_config=image)
        return Gemma3ForConditionalGeneration(both).double().eval()
    return deepseek(4)  # in float32: grouped products have no float64


def build(target: Target, **options: Any) -> Any:
    method = get("layerskip")
    return method.build(method.options(**options), BuildContext(target))


@torch.inference_mode()
def cut(model: Any, num_layers: int) -> Any:
    """A copy of the model that ends after its first layers."""
    part = copy.deepcopy(model)
    decoder = getattr(part.base_model, "language_model", part.base_model)
    name = "h" if hasattr(decoder, "h") else "layers"
    setattr(decoder, name, getattr(decoder, name)[:num_layers])
    return part


@torch.inference_mode()
@pytest.mark.parametrize("exit_layer", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_draft_is_what_the_first_layers_would_generate(name: str, exit_layer: int) -> None:
    model = model_of(name)
    target, plain = Target(model), cut(model, exit_layer)
    drafter = Recording(build(target, exit_layer=exit_layer, num_tokens=4))
    whole = [decode(target, drafter, Request(prompt, 30)) for prompt in PROMPTS]
    assert [list(done.token_ids) for done in whole] == [generated(model, p, 30) for p in PROMPTS]
    assert max(max(done.accept_lengths) for done in whole) > 1
    for text, (pending, *drafted) in drafter.drafts:
        assert pending == text[-1]
        ids = list(text)
        for token in drafted:
            logits = plain(torch.tensor([ids]), use_cache=False).logits[0, -1]
            assert token == int(logits.argmax())
            ids.append(token)
    assert max(len(tokens) for _, tokens in drafter.drafts) == 5


def test_a_quarter_of_the_layers_draft_by_default() -> None:
    target = random_target(layers=8)
    assert build(target).bytes_read(2) == build(target, exit_layer=2).bytes_read(2)


@pytest.mark.parametrize(("layers", "exit_layer"), [(4, 4), (4, 9), (1, 0)])
def test_a_target_without_layers_after_the_exit_is_refused(layers: int, exit_layer: int) -> None:
    with pytest.raises(UserError, match="cannot exit after layer"):
        build(random_target(layers=layers), exit_layer=exit_layer)
