"""The target over trees, with the model families that use the fused layers."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.load import load_target
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import CheckpointError, UserError
from specbench.types import Request
from tests.support.architectures import config_of
from tests.support.models import generated, random_llama, random_target, save

GROUPED = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_key_value_heads": 2,
}
WINDOW = {"sliding_window": 6, "head_dim": 16}
GEMMA = {**GROUPED, **WINDOW, "query_pre_attn_scalar": 24}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
}
YARN = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 32,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 16, "mlp_only_layers": [1]}
_of = AutoConfig.for_model
ARCHITECTURES = {
    "llama": _of("llama", **GROUPED),
    "llama, wide heads": _of("llama", **GROUPED, head_dim=24),
    "qwen2": _of("qwen2", **GROUPED),
    "qwen3": _of("qwen3", **GROUPED, head_dim=24),
    "qwen3 moe": _of("qwen3_moe", **GROUPED, **EXPERTS, num_experts=6, norm_topk_prob=False),
    "mixtral": _of("mixtral", **GROUPED, num_local_experts=4),
    "mistral": _of("mistral", **GROUPED, sliding_window=None),
    "mistral, window": _of("mistral", **GROUPED, sliding_window=6),
    "qwen3, windows": _of(
        "qwen3", **GROUPED, **WINDOW, use_sliding_window=True, layer_types=MIXED
    ),
    "gemma2": _of("gemma2", **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
    "gemma3": _of("gemma3_text", **GEMMA, layer_types=MIXED, rope_parameters=ROPES),
    "gemma3, images": config_of("gemma3", text_config={**GEMMA, "model_type": "gemma3_text"}),
    "gpt-oss": _of(
        "gpt_oss", **GROUPED, **WINDOW, num_local_experts=4, num_experts_per_tok=2,
        layer_types=MIXED, rope_parameters=YARN,
    ),
}  # fmt: skip


def random_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(ARCHITECTURES[name])).double().eval()
    model.config._experts_implementation = "eager"  # the others take no float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(4)
            else:
                parameter.add_(torch.rand_like(parameter) - 0.5)  # norms and biases
    return model


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    """Compare up to float32 rounding, which transformers' norms have in float64 models too."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Oracle(Drafter):
    """Knows the answer and adds wrong siblings, so that every step commits a branch."""

    def __init__(self, answer: list[int], depth: int = 3) -> None:
        self.answer, self.depth = answer, depth

    def propose(self, state: State) -> DraftTree:
        done = len(state.token_ids) - len(state.request.prompt_ids)
        tokens, parents, parent = [state.pending], [0], 0
        for token in self.answer[done : done + self.depth]:
            tokens += [(token + 1) % 50, token, (token + 2) % 50]
            parents += [parent] * 3
            parent = len(tokens) - 2
        layout = TreeLayout.from_parents(parents, "cpu")
        return DraftTree(torch.tensor(tokens), layout, len(tokens))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tree_decoding_gives_the_tokens_of_generate(name: str) -> None:
    model = random_model(name)
    prompt = (1, 7, 8, 9, 10, 11)
    answer = generated(model, prompt, 40)
    target = Target(model)
    assert target.unfused_reason is None
    done = decode(target, Oracle(answer), Request(prompt, 40))
    assert list(done.token_ids) == answer
    assert done.accept_lengths == (4,) * 9 + (3,)


@torch.inference_mode()
def test_committed_paths_leave_the_cache_of_a_plain_forward() -> None:
    target, other = random_target(), random_target()
    target.prefill((1, 5, 6), num_new=4)
    layout = TreeLayout.from_parents([0, 0, 0, 2, 3], "cpu")
    for _ in range(100):  # far beyond the capacity that was reserved
        target.forward(DraftTree(torch.tensor([7, 11, 8, 9, 12]), layout, 5))
        target.commit([0, 2, 3])
    other.prefill((1, 5, 6, *(7, 8, 9) * 100))
    assert target.cache.length == other.cache.length == 303
    for mine, theirs in zip(target.cache.layers, other.cache.layers, strict=True):
        torch.testing.assert_close(mine.keys[:, :, :303], theirs.keys[:, :, :303])
        torch.testing.assert_close(mine.values[:, :, :303], theirs.values[:, :, :303])


@torch.inference_mode()
@pytest.mark.parametrize("architecture", [LlamaConfig, Qwen3Config])
def test_the_number_of_layers_names_the_last_layers_output(architecture: Any) -> None:
    """Llama runs in the engine's stack, Qwen3 may run transformers' own forward."""
    torch.manual_seed(0)
    config = architecture(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, pad_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).double().eval()
    seen: list[Any] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].clone()))
    model(torch.tensor([[1, 5, 6, 7, 8]]))
    target = Target(model)
    with target.capture(Needs(layer_inputs=(1, 3), all_prompt_positions=True)):
        assert_equal(target.prefill((1, 5, 6, 7)).layer_inputs[3], seen[0][:4])
        tree = target.forward(DraftTree.chain(torch.tensor([8])))
        torch.testing.assert_close(tree.layer_inputs[3], seen[0][4:])


@torch.inference_mode()
def test_extending_and_cropping_is_prefilling() -> None:
    target = random_target()
    target.extend([1, 5, 6])
    target.extend([9, 9])
    target.crop(3)
    extended = target.extend([7, 8])
    torch.testing.assert_close(extended, target.prefill((1, 5, 6, 7, 8)).logits[0])


@pytest.mark.parametrize(
    ("tensors", "config", "fault"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, {},
         r"lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        ({"lm_head.weight": torch.zeros(49, 32)}, {}, r"lm_head\.weight"),
        ({}, {"num_hidden_layers": 1}, r"no place for: model\.layers\.1\..* and 6 more"),
    ],
    ids=["lacking", "misshapen", "of a deeper model"],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused_by_name(
    tensors: dict[str, Tensor | None], config: dict[str, int], fault: str, tmp_path: Path
) -> None:
    folder = save(random_llama(layers=2), tmp_path)
    changed = {**load_file(folder / "model.safetensors"), **tensors}
    kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    whole = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**whole, **config}))
    with pytest.raises(CheckpointError, match=fault):
        load_target(folder, dtype=torch.float32, device=torch.device("cpu"))


def test_a_damaged_pickle_is_refused_and_its_code_is_not_executed(tmp_path: Path) -> None:
    folder = save(random_llama(layers=1), tmp_path)
    (folder / "model.safetensors").unlink()
    ran = tmp_path / "ran"
    (folder / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(ran).encode() + b"'\ntR."
    )
    with pytest.raises(CheckpointError, match="does not load as a causal language model"):
        load_target(folder, dtype=torch.float32, device=torch.device("cpu"))
    assert not ran.exists()


@pytest.mark.parametrize(("prompt", "budget"), [((1,) * 512, 5), ((), 5), ((1, 5), 0)])
def test_a_request_that_cannot_be_completed_is_refused(
    prompt: tuple[int, ...], budget: int
) -> None:
    with pytest.raises(UserError, match=r"context|budget"):
        decode(random_target(), Oracle([]), Request(prompt, budget))
