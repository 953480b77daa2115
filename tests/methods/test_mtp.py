"""MTP: the target's own prediction layer reads its final hidden states.

LayerSkip: a draft has the tokens that a model of the target's first layers would generate.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig

from specbench.engine.decode import decode
from specbench.engine.kv import KVCache
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.errors import CheckpointError, UserError
from specbench.measure.weights import find_checkpoint
from specbench.models.cards import find_model
from specbench.models.memory import check_fits, num_parameters
from specbench.registry import MethodChoice
from specbench.settings.run_method import RunMethod
from specbench.types import Request
from tests.methods.building import Recording, build_in, complete
from tests.methods.checkpoints import mtp, random
from tests.support.architectures import LIMITED, config_of, random_of
from tests.support.checkpoint import change_config
from tests.support.models import generated, random_llama, random_target

VOCAB, LAYERS = 8, 2
"""A vocabulary so small that a random layer is often right.

`LAYERS` are the layers before the prediction layer.
"""

PROMPTS = [(1, 7, 3, 4), (5,), (3, 4, 5, 6) * 6]
NORMS = ("enorm", "hnorm", "shared_head.norm")
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_attention_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "max_position_embeddings": 128,
}  # fmt: skip


MODELS: dict[str, Callable[..., Any]] = {
    "deepseek": partial(
        DeepseekV3Config, **SHAPE, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    ),
    "glm": partial(Glm4MoeConfig, **SHAPE, num_key_value_heads=2, head_dim=8, use_qk_norm=True),
}  # fmt: skip
"""The config of each model, without its number of layers."""


def random_model(name: str, num_layers: int) -> Any:
    torch.manual_seed(0)
    config = MODELS[name](num_hidden_layers=num_layers)
    return AutoModelForCausalLM.from_config(config).eval()


@cache
def model_of(name: str) -> Any:
    """A model whose last layer is the prediction layer for the model without that layer."""
    model = random_model(name, LAYERS + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(random(*buffer.shape, seed=5))
    return model


@cache
def target_of(name: str) -> Target:
    model = random_model(name, LAYERS)
    report = model.load_state_dict(model_of(name).state_dict(), strict=False)
    assert not report.missing_keys
    return Target(model)


def parts() -> dict[str, Tensor]:
    """The tensors that only a prediction layer has."""
    tensors = {f"{n}.weight": 1 + random(32, seed=40 + i).float() for i, n in enumerate(NORMS)}
    return {**tensors, "eh_proj.weight": random(32, 64, seed=50).float()}


def publish(name: str, folder: Path) -> Path:
    """Write the model's last layer in the published layout, as transformers does."""
    model_of(name).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    prefix = f"model.layers.{LAYERS}."
    assert f"{prefix}mlp.experts.0.gate_proj.weight" in tensors
    tensors |= {prefix + key: value for key, value in parts().items()}
    tensors[f"{prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{prefix}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    change_config(
        folder,
        num_hidden_layers=LAYERS,
        num_nextn_predict_layers=1,
    )
    return folder


@torch.no_grad()
def plain_draft(name: str, text: tuple[int, ...], num_tokens: int) -> list[int]:
    """A chain drafted by the model's last layer, without a cache."""
    model, tensors = model_of(name), parts()
    states = target_of(name).model.base_model(torch.tensor([text[:-1]])).last_hidden_state[0]
    tokens, drafted = list(text[1:]), list[int]()

    def norm(x: Tensor, which: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], tensors[f"{which}.weight"], model.config.rms_norm_eps)

    for _ in range(num_tokens):
        embedded = model.get_input_embeddings()(torch.tensor(tokens))
        both = torch.cat([norm(embedded, "enorm"), norm(states, "hnorm")], -1)
        pairs, n = (both @ tensors["eh_proj.weight"].T)[None], len(tokens)
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(pairs.dtype).min).triu(1)[None, None]
        out = model.base_model.layers[LAYERS](
            pairs, attention_mask=mask, position_ids=positions,
            position_embeddings=model.base_model.rotary_emb(pairs, positions),
        )  # fmt: skip
        output = norm(out[0, -1:], "shared_head.norm")
        drafted.append(int(model.get_output_embeddings()(output).argmax()))
        tokens.append(drafted[-1])
        states = torch.cat([states, output])
    return drafted


@pytest.mark.parametrize("name", MODELS)
def test_every_draft_is_what_the_published_layer_predicts(name: str, tmp_path: Path) -> None:
    drafter = Recording(build_in(publish(name, tmp_path), "mtp", target_of(name), num_tokens=4))
    whole = [decode(target_of(name), drafter, Request(prompt, 30)) for prompt in PROMPTS]
    assert max(max(done.accept_lengths) for done in whole) > 1
    for text, drafted in drafter.drafts:
        assert drafted == plain_draft(name, text, 4)


def test_a_step_reads_only_the_experts_of_one_token(tmp_path: Path) -> None:
    target = target_of("glm")
    drafter = build_in(publish("glm", tmp_path), "mtp", target, num_tokens=1)
    layer = target.model.base_model.layers[-1]
    experts = sum(parameter.nbytes for parameter in layer.mlp.experts.parameters())
    every = sum(tensor.nbytes for tensor in layer.state_dict().values())
    more = (32 * 64 + VOCAB * 32) * 4
    assert drafter.bytes_read(2) == every + more - experts / 2


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_with_a_prediction_layer_is_the_target_and_its_weights(
    name: str, tmp_path: Path
) -> None:
    publish(name, tmp_path)
    card = find_model(str(tmp_path))
    checkpoint = find_checkpoint(card, RunMethod(MethodChoice("mtp")), is_offline=True)
    assert checkpoint.weights == tmp_path.resolve()
    weights = card.weights_of("mtp")
    assert weights is not None and num_parameters(card, weights) is None
    both = check_fits(tmp_path, "float32", "cpu", drafts=[tmp_path])
    assert both == check_fits(tmp_path, "float32", "cpu")
    target = load_target(tmp_path, dtype=torch.float32, device=torch.device("cpu"))
    drafter = build_in(tmp_path, "mtp", target)
    done = complete(target, drafter, PROMPTS[0], max_new_tokens=8, eos_ids=frozenset())
    assert list(done.token_ids) == generated(target.model, PROMPTS[0], 8)


def test_mtps_cache_is_on_the_gpu_of_the_embedding(tmp_path: Path) -> None:
    target = random_target()
    *first, last = (target.cache.shape(layer) for layer in range(4))
    target.cache = KVCache([*first, replace(last, device=torch.device("meta"))])
    drafter: Any = build_in(mtp(target, tmp_path), "mtp", target)
    assert drafter.model.cache.shape(0).device == target.device


def test_only_the_layers_own_files_are_read(tmp_path: Path) -> None:
    target = random_target()
    folder = mtp(target, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    places = {
        key: "own.safetensors" if "layers.4." in key else "gone.safetensors" for key in tensors
    }
    layer_tensors = {key: tensors[key] for key, name in places.items() if name == "own.safetensors"}
    save_file(layer_tensors, folder / "own.safetensors")
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert build_in(folder, "mtp", target).tree_sizes == (4,)


def test_a_target_with_windows_is_refused(tmp_path: Path) -> None:
    target = Target(random_of(config_of("mistral")))
    with pytest.raises(CheckpointError, match="attention windows"):
        build_in(mtp(target, tmp_path), "mtp", target)


NAMES = ("llama", "gpt2", "deepseek", "gemma3")


@cache
def layers_of(name: str) -> Any:
    """A random model with four layers, which run in the engine's stack (llama) or by transformers.

    Gemma 3's layers are those of its text part, and three of four have a window.
    """
    if name == "llama":
        return random_llama(layers=4, vocab_size=VOCAB)
    if name == "gpt2":
        return random_of(config_of(name, vocab_size=VOCAB, n_layer=4)).double()
    if name == "gemma3":
        kinds = [*["sliding_attention"] * 3, "full_attention"]
        text = {**LIMITED[name]["text_config"], "vocab_size": VOCAB, "layer_types": kinds}
        config = config_of(name, text_config={**text, "num_hidden_layers": 4})
        return random_of(config).double()
    return random_model("deepseek", 4)  # in float32: grouped products have no float64


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
    model = layers_of(name)
    target, plain = Target(model), cut(model, exit_layer)
    drafter = Recording(build_in(None, "layerskip", target, exit_layer=exit_layer, num_tokens=4))
    whole = [decode(target, drafter, Request(prompt, 30)) for prompt in PROMPTS]
    assert [list(done.token_ids) for done in whole] == [generated(model, p, 30) for p in PROMPTS]
    assert max(max(done.accept_lengths) for done in whole) > 1
    for text, drafted in drafter.drafts:
        ids = list(text)
        for token in drafted:
            logits = plain(torch.tensor([ids]), use_cache=False).logits[0, -1]
            assert token == int(logits.argmax())
            ids.append(token)
    assert max(len(drafted) for _, drafted in drafter.drafts) == 4


def test_a_quarter_of_the_layers_draft_by_default() -> None:
    target = random_target(layers=8)
    given: tuple[dict[str, int], ...] = ({}, {"exit_layer": 2})
    usual, second = (build_in(None, "layerskip", target, **options) for options in given)
    assert usual.bytes_read(2) == second.bytes_read(2)


@pytest.mark.parametrize(("layers", "exit_layer"), [(4, 4), (4, 9), (1, 0)])
def test_a_target_without_layers_after_the_exit_is_refused(layers: int, exit_layer: int) -> None:
    with pytest.raises(UserError, match="cannot exit after layer"):
        build_in(None, "layerskip", random_target(layers=layers), exit_layer=exit_layer)
