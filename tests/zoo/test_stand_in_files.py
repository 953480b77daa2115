"""Stand-ins on disk: equal to those built in memory, and written once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specbench.api import load
from specbench.errors import UserError
from specbench.measure.stand_ins import stand_in_of
from specbench.models.cards import find_model
from specbench.zoo.stand_in.files import is_written, write_head, write_model
from specbench.zoo.stand_in.plan import StandIn
from tests.zoo.stand_in_shapes import write_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    folder = tmp_path_factory.mktemp("shape")
    return stand_in_of(find_model(str(write_config(folder, num_hidden_layers=12))))


@pytest.fixture(scope="module")
def folder(stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write(stand_in, folder)
    return folder


def write(stand_in: StandIn, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    target, head = folder / "target", folder / "eagle"
    write_model(stand_in.target, target, dtype=dtype, device=CPU)
    write_head(stand_in.drafters["eagle"], head, dtype=dtype, device=CPU)


def test_a_written_stand_in_has_tinys_tokens_and_steps(folder: Path) -> None:
    question = "Write three suggestions for cooking at home."
    method = f"eagle2:weights={folder / 'eagle'}"
    written = load(str(folder / "target"), method, device="cpu", dtype="float32")
    said = written.generate(question, max_new_tokens=24)
    tiny = load("tiny", "eagle2", device="cpu").generate(question, max_new_tokens=24)
    assert (said.text, said.prompt_ids) == (tiny.text, tiny.prompt_ids)
    assert said.completion.accept_lengths == tiny.completion.accept_lengths


def test_a_written_config_has_the_names_that_transformers_4_reads(folder: Path) -> None:
    for part in ("target", "eagle"):
        config = json.loads((folder / part / "config.json").read_text())
        assert config["architectures"] == ["LlamaForCausalLM"]
        assert (config["torch_dtype"], config["rope_theta"]) == ("float32", 10000.0)
        assert "rope_parameters" not in config
    tokenizer = json.loads((folder / "target" / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in tokenizer


def test_complete_folders_are_kept_and_others_rewritten(stand_in: StandIn, tmp_path: Path) -> None:
    write(stand_in, tmp_path)
    shard = tmp_path / "target" / "model.layers.0.safetensors"
    shard.write_bytes(b"")
    write(stand_in, tmp_path)
    assert shard.stat().st_size == 0
    write(stand_in, tmp_path, torch.bfloat16)
    assert shard.stat().st_size > 0
    assert not is_written(stand_in.target, shard.parent, dtype=torch.float32, device=CPU)
    assert is_written(stand_in.target, shard.parent, dtype=torch.bfloat16, device=CPU)


def test_a_folder_whose_writing_was_interrupted_is_not_whole(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    target = tmp_path / "target"
    write(stand_in, tmp_path)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("specbench.zoo.stand_in.files.save_file", full_disk)
        write(stand_in, tmp_path, torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        assert not is_written(stand_in.target, target, dtype=dtype, device=CPU)


def test_a_folder_with_somebody_elses_files_is_left_alone(
    stand_in: StandIn, tmp_path: Path
) -> None:
    theirs = tmp_path / "target" / "model-00001.safetensors"
    theirs.parent.mkdir()
    theirs.write_text("weights of theirs")
    with pytest.raises(UserError, match="holds files that are not a stand-in's"):
        write(stand_in, tmp_path)
    assert theirs.read_text() == "weights of theirs"
