"""Fields of config.json that the model's class lacks, and models with unsupported variants."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from specbench.engine import supported
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter
from specbench.engine.layers.config_fields import undeclared_fields
from specbench.engine.load import load_target
from specbench.engine.probe import tree_fault
from specbench.engine.target import Needs, Target
from specbench.errors import CheckpointError
from specbench.measure.local.engine_load import build_drafters
from specbench.measure.local.memory import MemoryLedger
from specbench.types import Request
from tests.engine.test_target import Oracle
from tests.support.architectures import FULL, LIMITED, SMALL, WINDOW, config_of, random_of
from tests.support.checkpoint import change_config
from tests.support.models import generated, save
from tests.support.refusals import error_with

GROUPED = {**SMALL, "num_key_value_heads": 2}
PROMPT = (1, 7, 8, 9, 10, 11, 12, 13)
MIXED = ["sliding_attention", "full_attention"]
CHUNKS = ["chunked_attention", "full_attention"]
ALL_FULL = ["full_attention"] * 2
LIMITS: list[dict[str, Any]] = [
    {"sliding_window": WINDOW},
    {"sliding_window": WINDOW, "layer_types": MIXED},
    {"attention_chunk_size": WINDOW},
    {"attention_chunk_size": WINDOW, "layer_types": CHUNKS},
]
IGNORED: list[tuple[str, dict[str, Any]]] = [
    *((name, {"final_logit_softcapping": 2.0}) for name in ("llama", "qwen3_moe", "gpt_oss")),
    ("mistral", {"hidden_activation": "relu"}),
    ("mixtral", {"norm_topk_prob": False}),
    ("gpt_oss", {"norm_topk_prob": False}),
    ("mixtral", {"layer_types": ALL_FULL}),
    ("qwen3_moe", {"layer_types": ALL_FULL}),
    ("mistral", {"use_sliding_window": False}),
    ("phi3", {"use_sliding_window": False}),
    ("llama", {"sliding_window": WINDOW, "use_sliding_window": False}),
    ("llama", {"sliding_window": 128}),
    ("llama", {"layer_types": ALL_FULL}),
    ("llama", {"attn_temperature_tuning": True, "floor_scale": 1100}),
]


def saved(folder: Path, model_type: str, fields: dict[str, Any]) -> Path:
    """The folder of a random model with these fields in its config.json."""
    save(random_of(config_of(model_type)), folder)
    change_config(folder, **fields)
    return folder


def loaded(folder: Path) -> Target:
    return load_target(folder, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("fields", LIMITS, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("model_type", ["llama", "gemma", "granite", "olmo2", "gpt_neox"])
def test_a_limit_of_another_class_is_refused_by_name(
    model_type: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    name = next(iter(fields))
    with error_with(
        CheckpointError, match=f"{name}={WINDOW}.* does not have", hint="delete the field"
    ):
        loaded(saved(tmp_path, model_type, fields))


@pytest.mark.parametrize(("model_type", "fields"), IGNORED)
def test_other_fields_of_other_classes_are_ignored_as_by_transformers(
    model_type: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tested class with such a field is probed. Its logits equal those of the model without the
    field.
    """
    probe = Mock(wraps=tree_fault)
    monkeypatch.setattr(supported, "tree_fault", probe)
    target = loaded(saved(tmp_path / "stray", model_type, fields))
    plain = loaded(saved(tmp_path / "plain", model_type, {}))
    assert probe.mock_calls == [call(target)]
    with torch.inference_mode():
        logits = [model.prefill(PROMPT).logits for model in (target, plain)]
    torch.testing.assert_close(*logits)
    assert target.context == 128


def test_a_fault_of_a_tested_class_with_such_a_field_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supported, "tree_fault", lambda _: "its logits differ")
    folder = saved(tmp_path, "llama", {"final_logit_softcapping": 2.0})
    match = "LlamaForCausalLM with final_logit_softcapping in its config, which .* logits differ"
    with pytest.raises(CheckpointError, match=match):
        loaded(folder)


def test_the_cap_that_gemma_3_with_images_ignores_is_ignored() -> None:
    text = {**config_of("gemma3").text_config.to_dict(), "final_logit_softcapping": 2.0}
    assert tree_fault(Target(random_of(config_of("gemma3", text_config=text)))) is None


def test_attention_to_later_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="with bidirectional attention"):
        loaded(saved(tmp_path, "llama", {"is_causal": False}))


@pytest.mark.parametrize("model_type", [*FULL, *LIMITED])
def test_configs_without_foreign_fields_are_not_suspected(model_type: str) -> None:
    try:
        config = config_of(model_type).get_text_config()
    except ValueError:
        pytest.skip(f"this release of transformers has no {model_type}")
    assert undeclared_fields(config) == {}


HYBRID: dict[str, Any] = {
    **GROUPED,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "position_embedding_type": "rope",
}


def test_granite_4_runs_if_its_layers_are_attention_only(tmp_path: Path) -> None:
    model = random_of(config_of("granitemoehybrid", **HYBRID, layer_types=["attention"] * 2))
    answer = generated(model, PROMPT, 24)
    done = decode(loaded(save(model, tmp_path)), Oracle(answer), Request(PROMPT, 24))
    assert list(done.token_ids) == answer
    assert done.accept_lengths == (4,) * 5 + (3,)


def test_granite_4_with_mamba_layers_is_refused(tmp_path: Path) -> None:
    config_of("granitemoehybrid", **HYBRID, layer_types=["attention", "mamba"]).save_pretrained(
        tmp_path
    )
    with pytest.raises(CheckpointError, match=r"linear_attention|mamba"):
        loaded(tmp_path)


def test_a_llama_4_without_room_for_a_tree_is_refused_with_the_reason() -> None:
    config = config_of("llama4_text", floor_scale=1024, attn_temperature_tuning=True)
    with pytest.raises(CheckpointError, match=r"in steps of 1024 rows \(floor_scale\)"):
        Target(random_of(config))


GEMMA_3N: dict[str, Any] = {
    **GROUPED,
    "head_dim": 8,
    "vocab_size_per_layer_input": 50,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
    "altup_num_inputs": 2,
    "activation_sparsity_pattern": None,
    "num_kv_shared_layers": 0,
    "layer_types": MIXED,
    "sliding_window": WINDOW,
}


@dataclass
class Reading:
    """A method whose drafter has these needs."""

    needs: Needs

    def build(self, options: Any, context: BuildContext) -> Drafter:
        drafter = Oracle([])
        drafter.needs = self.needs
        return drafter


def drafters(target: Target, needs: Needs) -> dict[str, Drafter]:
    method: Any = SimpleNamespace(label="m", method=Reading(needs), options=None, weights=None)
    return build_drafters(target, [method], MemoryLedger(target))


@pytest.mark.parametrize("layers", [(0, 1), (2,)])
def test_heads_that_read_layers_of_gemma_3n_are_refused_when_they_are_built(
    layers: tuple[int, ...],
) -> None:
    target = Target(random_of(config_of("gemma3n_text", **GEMMA_3N)))
    assert tree_fault(target) is None
    assert drafters(target, Needs(hidden=True))
    with pytest.raises(CheckpointError, match="Gemma3nForCausalLM have several streams"):
        drafters(target, Needs(layer_inputs=layers))
    llama = Target(random_of(config_of("llama")))
    assert drafters(llama, Needs(layer_inputs=layers)) and llama.cache.length == 0
