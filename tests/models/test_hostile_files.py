"""Invalid config, header and index files: one message each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.errors import CheckpointError, UserError
from specbench.models.checkpoints import check_checkpoint
from specbench.models.memory import check_fits
from tests.models.making import make_checkpoint, refusal


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a whole number from 1"),
        ({"num_hidden_layers": -2}, "num_hidden_layers is -2"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"hidden_size": "16"}, "hidden_size is '16'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, not a number above 0"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"dtype": ["float16"]}, "dtype is ['float16'], not a name"),
        ({"text_config": 3}, "it is not a JSON object"),
        ({"text_config": {"head_dim": 0}}, "head_dim is 0"),
    ],
    ids=str,
)
def test_a_config_of_no_model_is_refused_by_the_name_of_the_value(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    told = refusal(make_checkpoint(tmp_path / "model", **changes))
    assert said in told and "config.json cannot be read" in told


def test_json_that_is_too_deep_is_an_error(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' * 100_000)
    assert "config.json cannot be read" in refusal(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [-1, 16]},
        {"data_offsets": [0.0, 16]},
        {"data_offsets": [0, 8]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [0]},
        {"shape": [-8]},
        {"shape": [4]},
        {"shape": 8},
        {"dtype": None},
        {"dtype": "F64"},
    ],
    ids=str,
)
def test_a_hostile_header_of_safetensors_is_an_error(
    folder: Path, change: dict[str, object]
) -> None:
    entry = {"dtype": "F16", "shape": [8], "data_offsets": [0, 16], **change}
    write_header(folder / "model.safetensors", {"w": entry})
    assert "model.safetensors " in refusal(folder)


def test_tensors_that_overlap_are_an_error(folder: Path) -> None:
    entry = {"dtype": "F16", "shape": [8], "data_offsets": [0, 16]}
    write_header(folder / "model.safetensors", {"a": entry, "b": entry})
    assert "the offsets 0 to 16 of b are wrong" in refusal(folder)


def write_header(file: Path, header: object) -> None:
    """A file of 16 bytes of data under this header."""
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))


@pytest.mark.parametrize(
    "names", [["../model.safetensors"], ["/etc/passwd"], [3], [None], [["a"]], ["a/b.safetensors"]]
)
def test_an_index_names_files_beside_it_only(folder: Path, names: list[object]) -> None:
    index = {"weight_map": dict(enumerate(names))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json cannot be read"):
        check_checkpoint(folder, what="Model mine")


def test_a_config_that_claims_more_than_the_machine_holds_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", vocab_size=2**28, hidden_size=2**24)
    with pytest.raises(UserError, match="does not fit"):
        check_fits(folder, "float32", "cpu")
