import json
import shutil
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.models.cards import find_model, known_models, pick_dtype
from specbench.models.memory import num_parameters
from tests.models.making import make_checkpoint

BILLIONS = {
    "vicuna-7b": 6.74, "vicuna-13b": 13.02, "vicuna-33b": 32.53, "llama2-70b-chat": 68.98,
    "llama3.1-8b": 8.03, "mixtral-8x7b": 46.70, "qwen2-7b": 7.62, "qwen2-72b": 72.7,
    "qwen2.5-7b": 7.62, "qwen2.5-14b": 14.77, "qwen2.5-32b": 32.76, "qwen2.5-72b": 72.7,
    "qwen3-8b": 8.19, "qwen3-14b": 14.77, "qwen3-32b": 32.76, "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.1, "tinyllama-1.1b": 1.10,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_a_cards_shape_gives_the_published_number_of_parameters(name: str, billions: float) -> None:
    shape = known_models()[name].shape
    assert shape is not None
    assert shape.num_parameters / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("name", ["lmsys/vicuna-13b-v1.3", "LMSYS/Vicuna-13b-v1.3", "Vicuna-13B"])
def test_known_models_are_found_by_hub_id_in_any_case(name: str) -> None:
    assert find_model(name) == known_models()["vicuna-13b"]


def test_an_unknown_hub_id_is_a_model_without_a_card() -> None:
    card = find_model("org/some-model")
    assert (card.name, card.repo, card.is_known) == ("org/some-model", "org/some-model", False)
    assert (card.template, card.dtype, card.draft_weights) == (None, None, ())


def test_a_folder_of_an_unknown_user_does_not_exist() -> None:
    with pytest.raises(UserError, match="'~nosuchuser/x' does not exist"):
        find_model("~nosuchuser/x")


@pytest.mark.parametrize(
    "folder", ["vicuna-7b-v1.3", "models--lmsys--vicuna-7b-v1.3/snapshots/0123abc"]
)
def test_a_local_copy_of_a_known_model_keeps_its_template_and_drafters(
    tmp_path: Path, folder: str
) -> None:
    path = make_checkpoint(tmp_path / folder, num_hidden_layers=32, hidden_size=4096)
    card = find_model(str(path))
    assert card.template == "vicuna-v1.1"
    assert card.weights_of("eagle") == known_models()["vicuna-7b"].weights_of("eagle")
    assert "lmsys/vicuna-7b-v1.3" in card.note


def test_a_folder_with_only_a_known_models_name_is_another_model(tmp_path: Path) -> None:
    assert find_model(str(make_checkpoint(tmp_path / "vicuna-7b-v1.3"))).template is None


def test_a_folder_is_named_by_its_model_or_by_kind_and_size(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    make_checkpoint(folder, _name_or_path="HuggingFaceTB/SmolLM2-135M")
    assert find_model(str(folder)).title == "SmolLM2-135M"
    make_checkpoint(folder, _name_or_path="/home/me/hf", model_type="llama")
    assert find_model(str(folder)).title.startswith("hf: llama")
    shutil.copytree(find_model("tiny").repo, tmp_path / "copy")
    assert find_model(str(tmp_path / "copy")).title == "copy: llama, 6.1 M parameters"


def test_the_drafters_of_tiny_are_the_folders_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("target", "sps", "eagle"):
        make_checkpoint(tmp_path / "tiny" / name)
    (tmp_path / "tiny" / "logs").mkdir()
    monkeypatch.setattr("specbench.models.cards._ZOO", tmp_path)
    card = find_model("tiny")
    assert [drafter.method for drafter in card.draft_weights] == ["eagle", "sps"]
    assert card.weights_of("eagle2") == card.weights_of("eagle")


@pytest.mark.parametrize(
    ("model", "requested", "device", "dtype"),
    [
        ("vicuna-7b", "auto", "cuda", "float16"),
        ("llama2-7b-chat", "auto", "cuda:1", "float16"),
        ("llama3-8b", "auto", "cuda", "bfloat16"),
        ("vicuna-7b", "auto", "cpu", "float32"),
        ("vicuna-7b", "bfloat16", "cpu", "bfloat16"),
        ("org/unknown", "auto", "cuda", "float16"),
    ],
)
def test_auto_means_the_papers_dtype_on_a_gpu_and_float32_on_a_cpu(
    model: str, requested: str, device: str, dtype: str
) -> None:
    assert pick_dtype(find_model(model), requested, device) == dtype


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_an_unknown_model_runs_in_the_dtype_of_its_config(tmp_path: Path, key: str) -> None:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({key: "bfloat16"}))
    assert pick_dtype(find_model(str(path)), "auto", "cuda", path) == "bfloat16"


@pytest.mark.parametrize(
    ("model", "billions"), [("vicuna-7b", 0.24), ("vicuna-13b", 0.37), ("llama2-70b-chat", 0.99)]
)
def test_eagles_parameters_are_the_published_ones(model: str, billions: float) -> None:
    card = find_model(model)
    drafter = card.weights_of("eagle")
    assert drafter is not None
    count = num_parameters(card, drafter)
    assert count is not None
    assert round(count / 1e9, 2) == pytest.approx(billions, abs=0.011)


def test_a_drafter_of_unknown_size_has_none() -> None:
    card = find_model("vicuna-7b")
    drafter = card.weights_of("hydra")
    assert drafter is not None
    assert num_parameters(card, drafter) is None
