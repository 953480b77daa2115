"""GGUF files of every architecture are read correctly, or refused by name.

They are refused if transformers would skip a part of them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoConfig, PreTrainedModel

from specbench.engine.load import load_target
from specbench.errors import CheckpointError
from specbench.models.cards import find_model
from specbench.models.hub import resolve_model
from tests.support.architectures import random_of
from tests.support.checkpoint import NUM_TOKENS
from tests.support.gguf_files import write_gguf, write_model
from tests.support.refusals import error_with

TOKENS = {"vocab_size": NUM_TOKENS + 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {**TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SMALL | {
    "intermediate_size": 128,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GEMMA = {**GROUPED, "head_dim": 256, "sliding_window": 8}
ROPE = {"rope.freq_base": 1e4}
NORM = {"attention.layer_norm_epsilon": 1e-5}
RMS = {"attention.layer_norm_rms_epsilon": 1e-6}
GEMMA_KEYS = {**RMS, "attention.key_length": 256, "attention.sliding_window": 8}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "falcon": (
        {**SMALL, "multi_query": True, "alibi": False},
        {**NORM, "attention.head_count_kv": 1, "context_length": 2048},
    ),
    "gemma2": (GEMMA, {**GEMMA_KEYS, **ROPE, **CAPS}),
    "gemma3_text": (GEMMA, {**GEMMA_KEYS, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}),
    "gpt2": (SMALL, {**NORM, "feed_forward_length": 256}),
    "llama": (GROUPED, {**ROPE, **RMS, "rope.dimension_count": 16, "attention.key_length": 16}),
    "nemotron": (GROUPED, {**ROPE, **NORM, "rope.dimension_count": 8}),
    "phi3": (
        {**GROUPED, "rms_norm_eps": 1e-6},
        {**ROPE, **RMS, "rope.dimension_count": 16, "attention.sliding_window": 128},
    ),
    "qwen2": (GROUPED, {**ROPE, **RMS, "rope.scaling.type": "none"}),
    "qwen3": ({**GROUPED, "head_dim": 128}, {**ROPE, **RMS, "attention.key_length": 128}),
    "stablelm": (GROUPED, {**NORM, **ROPE, "rope.dimension_count": 4}),
    "starcoder2": (GROUPED, {**ROPE, **NORM, "rope.scaling.factor": 1.0}),
}
"""By model type: a config, and the metadata that llama.cpp's converter writes."""
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("starcoder2", {"rope.freq_base": 1e6}, r"rope\.freq_base is 1000000\.0 \(loaded: 10000\.0\)"),
    ("stablelm", {"rope.freq_base": 1e6}, r"rope\.freq_base is 1000000\.0"),
    ("gemma3_text", {"rope.freq_base_swa": 1e5}, r"rope\.freq_base_swa is 100000\.0"),
    ("stablelm", {"rope.dimension_count": 8}, r"rope\.dimension_count is 8 \(loaded: 4\)"),
    ("phi3", {"rope.dimension_count": 12}, r"rope\.dimension_count is 12 \(loaded: 16\)"),
    ("qwen2", {"rope.dimension_count": 8}, r"rope\.dimension_count is 8 \(loaded: 16\)"),
    ("llama", {"rope.scale_linear": 4.0}, "scales its rotary embedding"),
    ("qwen2", {"rope.scale_linear": 4.0, "rope.scaling.type": None}, "scales its rotary"),
    ("starcoder2", {"rope.scaling.factor": 2.0}, "scales its rotary embedding"),
    ("llama", {"rope.scaling.attn_factor": 1.2}, "scales its rotary embedding"),
    ("phi3", {"attention.sliding_window": 24}, r"sliding_window is 24 \(loaded: 0\)"),
    ("qwen3", {"attention.sliding_window": 24}, r"sliding_window is 24 \(loaded: 0\)"),
    ("llama", {"attention.sliding_window": 24}, r"sliding_window is 24 \(loaded: 0\)"),
    ("gemma2", {"attention.sliding_window_pattern": 3}, "sliding_window_pattern is "),
    ("llama", {"attention.key_length": 32}, r"attention\.key_length is 32 \(loaded: 16\)"),
    ("qwen3", {"attention.value_length": 64}, r"attention\.value_length is 64 \(loaded: 128\)"),
    ("gemma2", {"attn_logit_softcapping": 20.0}, r"attn_logit_softcapping is 20\.0"),
    ("gemma2", {"final_logit_softcapping": 20.0}, r"final_logit_softcapping is 20\.0"),
    ("gemma3_text", {"final_logit_softcapping": 30.0}, r"softcapping is 30\.0 \(loaded: 0\)"),
    ("llama", {"attn_logit_softcapping": 30.0}, r"attn_logit_softcapping is 30\.0"),
    ("falcon", {"attention.layer_norm_epsilon": 1e-3}, "attention.layer_norm_epsilon is 0.00"),
    ("qwen2", {"attention.causal": False}, r"attention\.causal is False"),
]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "small.gguf"


def converted(file: Path) -> Path:
    return resolve_model(find_model(str(file)), offline=True)


def written(file: Path, model_type: str, keys: dict[str, Any], **changes: Any) -> PreTrainedModel:
    """Write a random model of that type, and return it.

    `keys` replace keys of the file, and `changes` fields of the config.
    """
    fields, metadata = MODELS[model_type]
    model = random_of(AutoConfig.for_model(model_type, **{**fields, **changes}))
    write_model(file, model, {**metadata, **keys})
    return model


@pytest.mark.parametrize("model_type", MODELS)
def test_an_honest_file_has_the_logits_of_its_model(file: Path, model_type: str) -> None:
    model = written(file, model_type, {})
    ids = torch.arange(3, 63)[None]
    target = load_target(converted(file), dtype=torch.float32, device=torch.device("cpu"))
    with torch.no_grad():
        torch.testing.assert_close(target.model(ids).logits, model(ids).logits)


@pytest.mark.parametrize(("model_type", "keys", "message"), FAULTS)
def test_metadata_that_the_loaded_model_lacks_is_refused_by_name(
    file: Path, model_type: str, keys: dict[str, Any], message: str
) -> None:
    written(file, model_type, keys)
    with error_with(CheckpointError, match=message, hint="folder or Hub id"):
        converted(file)


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "num_layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_gemmas_27b_is_refused_for_its_scale(file: Path, model_type: str, num_layers: int) -> None:
    written(file, model_type, {}, num_hidden_layers=num_layers, head_dim=256, intermediate_size=8)
    with pytest.raises(CheckpointError, match=r"attention scale .*is 16\.0 \(loaded: 256\)"):
        converted(file)


EXTRA = [
    ("llama", "blk.0.attn_q.bias", "attn_q.bias"),
    ("llama", "blk.1.ffn_gate.scale", "ffn_gate.scale"),
    ("qwen3", "blk.0.attn_k.bias", "attn_k.bias"),
    ("stablelm", "blk.0.attn_q_norm.weight", "attn_q_norm.weight"),
    ("starcoder2", "blk.2.attn_norm.weight", "blk.2.attn_norm.weight"),
    ("gemma2", "my.own.tensor", "my.own.tensor"),
]


@pytest.mark.parametrize(("model_type", "tensor", "message"), EXTRA)
def test_a_tensor_that_is_not_read_is_refused_by_name(
    file: Path, model_type: str, tensor: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_it(monkeypatch, tensor)
    written(file, model_type, {})
    with pytest.raises(CheckpointError, match=f"tensors that transformers skips: .*{message}"):
        converted(file)


def test_tensors_that_llama_cpp_skips_too_may_be_skipped(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_it(monkeypatch, "blk.0.attn_rot_embd")
    written(file, "llama", {})
    assert (converted(file) / "config.json").is_file()


def add_it(monkeypatch: pytest.MonkeyPatch, tensor: str) -> None:
    """Add a tensor with that name to the files that are written."""
    finish = GGUFWriter.write_header_to_file

    def add_and_finish(writer: GGUFWriter, *arguments: Any) -> None:
        writer.add_tensor(tensor, np.ones(64, np.float32))
        finish(writer, *arguments)

    monkeypatch.setattr(GGUFWriter, "write_header_to_file", add_and_finish)


FILE_TYPES = [(15, "Q4_0", "Q4_K_M"), (1, "Q4_0", "Q4_0"), (999, "Q8_0", "Q8_0"), (15, "F16", "")]


@pytest.mark.parametrize(("file_type", "kind", "shown"), FILE_TYPES)
def test_the_type_is_the_files_own(
    file: Path, file_type: int, kind: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of the file may have other types, since rows of 64 cannot have blocks of 256."""
    finish = GGUFWriter.write_header_to_file

    def add_and_finish(writer: GGUFWriter, *arguments: Any) -> None:
        writer.add_file_type(file_type)
        finish(writer, *arguments)

    monkeypatch.setattr(GGUFWriter, "write_header_to_file", add_and_finish)
    write_gguf(file, kind)
    assert getattr(AutoConfig.from_pretrained(converted(file)), "gguf_type", "") == shown
