"""Quantised checkpoints decode like the weights that they stand for, or are refused by name.

transformers loads them, and they run exactly over trees.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)  # fmt: skip

from specbench.engine import stored_formats
from specbench.engine.decode import decode
from specbench.engine.layers.weights import weight_bytes
from specbench.engine.model_parts import pass_bytes
from specbench.engine.stored_formats import is_dequantized
from specbench.engine.target import Target
from specbench.errors import CheckpointError
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.spec import RunSpec
from specbench.models.memory import estimate
from specbench.types import Request
from specbench.zoo import TINY
from tests.engine.test_target import GROUPED, PROMPT, Oracle, load_in
from tests.support.checkpoint import change_config
from tests.support.devices import CPU
from tests.support.models import generated
from tests.support.quantised import fp8_layers, mxfp4_experts, write
from tests.support.refusals import error_with

EXPERTS = {
    **GROUPED, "hidden_size": 64, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}  # fmt: skip


def llama(folder: Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**GROUPED))
    model.save_pretrained(folder)
    return model


def check_stands_for(folder: Path, plain: PreTrainedModel) -> Target:
    """Check that the folder decodes over trees like the plain model, and needs the estimated
    memory.
    """
    target = load_in(folder)
    with torch.inference_mode():
        logits = plain(torch.tensor([PROMPT])).logits[0, -1]
        assert (target.prefill(PROMPT).logits[-1] - logits).norm() < 1e-4 * logits.norm()
    answer = generated(target.model, PROMPT, 13)
    done = decode(target, Oracle(answer), Request(PROMPT, 13))
    assert list(done.token_ids) == answer and done.accept_lengths == (4, 4, 4)
    need = estimate(folder, "float32", context=128, what="it", is_dequantized=True)
    held = sum(tensor.nbytes for tensor in plain.state_dict().values())
    assert held <= need.weight_bytes < 1.1 * held
    return target


def test_fp8_weights_decode_like_the_weights_they_stand_for(tmp_path: Path) -> None:
    plain = llama(tmp_path)
    plain.load_state_dict(fp8_layers(tmp_path))
    target = check_stands_for(tmp_path, plain)
    assert target.unfused_reason is None
    assert pass_bytes(target.model) == pass_bytes(plain)


def test_mxfp4_experts_decode_like_the_weights_they_stand_for(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = GptOssForCausalLM(GptOssConfig(**EXPERTS))
    plain.save_pretrained(tmp_path)
    plain.load_state_dict(mxfp4_experts(tmp_path))
    assert check_stands_for(tmp_path, plain).unfused_reason is None
    stored = estimate(tmp_path, "float32", context=128, what="it")
    assert stored.weight_bytes < sum(tensor.nbytes for tensor in plain.state_dict().values())


def test_counting_bytes_does_not_repack_weights() -> None:
    """On a CPU, bitsandbytes repacks weights that it is asked to save, which changes them."""

    class Packed(nn.Linear):
        def _save_to_state_dict(self, *args: Any) -> None:
            raise AssertionError("repacked")

    layer = Packed(64, 64, bias=False)
    nested = SimpleNamespace(absmax=torch.zeros(4), blocksize=256)
    layer.weight.quant_state = SimpleNamespace(absmax=torch.zeros(64), state2=nested)  # type: ignore[attr-defined]
    layer.register_buffer("scales", torch.zeros(8))
    layer.register_buffer("table", torch.zeros(100), persistent=False)
    assert weight_bytes(nn.Sequential(layer)) == 4 * (64 * 64 + 64 + 4 + 8)


def tiny_in(folder: Path, method: str, **changes: Any) -> Path:
    shutil.copytree(TINY / "target", folder)
    stored_format = {"quant_method": method}
    change_config(folder, quantization_config=stored_format, **changes)
    return folder


def spec(folder: Path, **more: str) -> RunSpec:
    return RunSpec(model=str(folder), methods=("pld",), device="cpu", **more)  # type: ignore[arg-type]


def test_dequantised_weights_are_recorded_as_such(tmp_path: Path) -> None:
    setup = make_engine_setup(spec(tiny_in(tmp_path / "a", "fp8")), is_offline=True)
    assert "fp8 → float32" in setup.title
    assert setup.describe().model.precision == "fp8 → float32"


@pytest.mark.parametrize(
    ("method", "packages"),
    [("awq", "gptqmodel"), ("gptq", "gptqmodel optimum"), ("bitsandbytes", "bitsandbytes")],
)
def test_a_format_without_its_package_is_refused_before_it_is_loaded(
    method: str, packages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_formats, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=f"format {method}") as caught:
        make_engine_setup(spec(tiny_in(tmp_path / "a", method)), is_offline=True)
    assert caught.value.hint == f"Install it: pip install {packages}"


def test_a_format_that_transformers_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, llama(tmp_path).state_dict(), {"quant_method": "q9"})
    with pytest.raises(CheckpointError, match="format q9, which transformers does not know"):
        load_in(tmp_path)


def test_a_gpu_computes_with_formats_that_it_has_kernels_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda:0")
    for capability, expected in (((8, 0), (True, False)), ((9, 0), (False, False))):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        monkeypatch.setattr(stored_formats, "find_spec", lambda name: name)
        flags = tuple(is_dequantized(name, gpu) for name in ("fp8", "mxfp4"))
        assert flags == expected
    monkeypatch.setattr(stored_formats, "find_spec", lambda name: None)
    assert is_dequantized("mxfp4", gpu)
    assert not is_dequantized("awq", CPU) and not is_dequantized("", CPU)
    assert is_dequantized("compressed-tensors", gpu)


def test_a_model_that_transformers_does_not_have_is_refused_with_both_names(tmp_path: Path) -> None:
    own_code = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    folder = tiny_in(tmp_path / "a", "fp8", model_type="kimi_k9", auto_map=own_code)
    reason = f"is a kimi_k9 model, which transformers {transformers.__version__} does not have"
    with error_with(
        CheckpointError, match=reason, hint="code that comes with a checkpoint is not run"
    ):
        make_engine_setup(spec(folder), is_offline=True)
    with pytest.raises(CheckpointError, match=reason):
        load_in(folder)
