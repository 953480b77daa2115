"""Checkpoints that come quantised are loaded by transformers, and run exactly over trees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, TorchAoConfig

from specbench.engine.decode import decode
from specbench.engine.layers.weights import pass_bytes
from specbench.engine.load import load_target
from specbench.types import Request
from tests.engine.test_target import GROUPED, Oracle
from tests.support.models import generated

quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")


def test_a_quantised_checkpoint_decodes_like_generate_and_counts_its_stored_bytes(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(**GROUPED))
    plain.save_pretrained(tmp_path / "plain")
    config = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", dtype=torch.bfloat16, quantization_config=config
    ).save_pretrained(tmp_path / "int8")

    target = load_target(tmp_path / "int8", dtype=torch.bfloat16, device=torch.device("cpu"))
    assert "quantised" in str(target.unfused_reason)
    linear = sum(
        part.weight.numel() for part in plain.model.modules() if hasattr(part, "in_features")
    )
    head = plain.lm_head.weight.numel() * 2  # stays in bfloat16
    assert linear + head < pass_bytes(target.model) < 1.5 * linear + head

    prompt = (1, 7, 8, 9, 10, 11)
    answer = generated(target.model, prompt, 13)
    done = decode(target, Oracle(answer), Request(prompt, 13))
    assert list(done.token_ids) == answer
    assert done.accept_lengths == (4, 4, 4)


@torch.inference_mode()
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_weights_are_quantised_while_a_model_is_loaded(quantize: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {**GROUPED, "hidden_size": 64}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path)
    cpu = torch.device("cpu")
    plain, target = (
        load_target(tmp_path, dtype=torch.bfloat16, device=cpu, quantize=name)
        for name in ("", quantize)
    )
    assert pass_bytes(target.model) < 0.9 * pass_bytes(plain.model)
    ids = (1, 7, 8, 9)
    logits = [one.prefill(ids).logits.float() for one in (plain, target)]
    off = (logits[0] - logits[1]).norm() / logits[0].norm()
    assert 0 < off < 0.2
