"""GGUF files that `tools.to_gguf` writes: reading them gives the original weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file

from specbench.methods._eagle import FILES
from specbench.methods.shared.checkpoint import read_tensors
from specbench.models.cards import find_model
from specbench.models.hub import resolve_model
from specbench.zoo import TINY
from tests.support.gguf_files import write_gguf
from tools.to_gguf import write_dequantised, write_folder

pytestmark = pytest.mark.tools


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))


def weights(file: Path) -> dict[str, torch.Tensor]:
    """The weights as specbench converts them."""
    return load_file(resolve_model(find_model(str(file)), offline=True) / "model.safetensors")


def test_a_dequantised_file_has_the_metadata_names_and_weights_of_the_original(
    tmp_path: Path,
) -> None:
    before, after = tmp_path / "before.gguf", tmp_path / "after.gguf"
    write_gguf(before, "Q4_1")
    write_dequantised(before, after)
    first, second = GGUFReader(before), GGUFReader(after)
    fields, second_fields = (
        {name: field.contents() for name, field in file.fields.items()} for file in (first, second)
    )
    assert second_fields == fields
    assert [tensor.name for tensor in second.tensors] == [tensor.name for tensor in first.tensors]
    assert {tensor.tensor_type.name for tensor in second.tensors} == {"F32", "BF16"}
    expected, weight = weights(before), weights(after)
    assert weight.keys() == expected.keys()
    assert all(torch.equal(weight[name], expected[name]) for name in expected)


def test_a_written_model_has_the_weights_of_its_folder(tmp_path: Path) -> None:
    write_folder(TINY / "target", tmp_path / "tiny.gguf", kind="F32")
    expected, written = (
        load_file(TINY / "target" / "model.safetensors"),
        weights(tmp_path / "tiny.gguf"),
    )
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name].float()) for name in expected)


def test_a_written_head_names_its_tokens_and_layers_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    write_folder(TINY / "eagle3", tmp_path / "h.gguf", target=TINY / "target", kind="F32")
    reader = GGUFReader(tmp_path / "h.gguf")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    head = read_tensors("eagle3", TINY / "eagle3", FILES)
    tokens = head["d2t"].numpy() + np.arange(len(head["d2t"]))
    assert np.array_equal(tensors["d2t"], tokens) and len(set(tokens)) == len(tokens)
    assert np.array_equal(tensors["fc.weight"], head["fc.weight"].float().numpy())
    norm = head["midlayer.hidden_norm.weight"].float().numpy()
    assert np.array_equal(tensors["blk.0.attn_norm_2.weight"], norm)
    assert reader.fields["eagle3.target_layers"].contents() == [2, 6, 9]
    assert reader.fields["eagle3.target_hidden_size"].contents() == 192
