"""Wrong head files give one clear error, and nothing in them is executed."""

import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.target import Target
from specbench.errors import CheckpointError, UserError
from tests.methods.building import HEADS, build_in
from tests.methods.checkpoints import IDS, MAKERS, hydra
from tests.support.models import random_target
from tests.support.refusals import error_with

FILES = {
    **{method: f"{method}_lm_head.pt" for method in ("medusa", "hydra")},
    **dict.fromkeys(("eagle", "eagle3", "peagle"), "pytorch_model.bin"),
}
ONE_KEY = {
    "medusa": "2.0.linear.bias",
    "hydra": "hydra_mlp.1.0.res_connection.weight",
    "eagle": "layers.0.mlp.up_proj.weight",
    "eagle3": "midlayer.hidden_norm.weight",
    "peagle": "layers.1.mlp.down_proj.weight",
}


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target(layers=4)


@pytest.fixture(params=FILES)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(method: str, target: Target, tmp_path: Path) -> Path:
    return MAKERS[method](target, tmp_path / "head")


def assert_refused(method: str, target: Target, folder: Path) -> CheckpointError:
    """Check that the folder is refused by name and with a hint. Return the error."""
    with pytest.raises(CheckpointError) as caught:
        build_in(folder, method, target)
    assert caught.value.hint
    assert str(folder) in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t, key: t.pop(key), "lacks {key}|tensors: {key}"),
        (lambda t, key: t.update({"layers.1.x": torch.zeros(2)}), "tensors: layers.1.x"),
        (lambda t, key: t.update({key: t[key][..., 1:].clone()}), r"{key} of shape \[.*, not "),
    ],
    ids=["missing", "extra", "misshapen"],
)
def test_a_tensor_that_does_not_fit_is_named(
    method: str, target: Target, folder: Path, edit: Any, said: str
) -> None:
    path, key = folder / FILES[method], ONE_KEY[method]
    tensors = torch.load(path, weights_only=True)
    edit(tensors, key)
    torch.save(tensors, path)
    message = assert_refused(method, target, folder).message
    assert re.search(said.format(key=re.escape(key)), message)


def test_damaged_and_foreign_files_are_refused(method: str, target: Target, folder: Path) -> None:
    path = folder / FILES[method]
    content = path.read_bytes()
    for damaged in (
        b"", b"\x80", b"no checkpoint", content[:100], content[: len(content) // 2],
        content[:-1], content[:200] + bytes(200) + content[400:], pickle.dumps({"a": 1}),
        [1, 2], {"a": {"b": torch.zeros(1)}}, {"a": 1.0}, torch.zeros(2),
    ):  # fmt: skip
        path.write_bytes(damaged) if isinstance(damaged, bytes) else torch.save(damaged, path)
        assert_refused(method, target, folder)


class Malicious:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("protocol", ["zip", "plain"])
def test_code_in_a_pickle_is_never_executed(
    method: str, protocol: str, target: Target, folder: Path, tmp_path: Path
) -> None:
    path, trace = folder / FILES[method], tmp_path / "executed"
    code = {"a": Malicious(trace)}
    if protocol == "zip":
        torch.save(code, path)
        assert zipfile.is_zipfile(path)
    else:
        path.write_bytes(pickle.dumps(code))
    assert "executed" in assert_refused(method, target, folder).message
    assert not trace.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "nonsense", "{}"])
def test_a_broken_config_is_refused(content: str, target: Target, tmp_path: Path) -> None:
    folder = MAKERS["eagle3"](target, tmp_path)
    (folder / "config.json").write_text(content)
    assert "config" in assert_refused("eagle3", target, folder).message
    (folder / "config.json").unlink()
    assert "config.json" in assert_refused("eagle3", target, folder).message


@pytest.mark.parametrize("value", [{"num_attention_heads": 3}, {"num_attention_heads": "four"},
    {"num_key_value_heads": 4}, {"hidden_size": 64}, {"intermediate_size": 12},
    {"rope_scaling": {"type": "nonsense"}}, {"hidden_act": "nonsense"}])  # fmt: skip
@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_config_that_contradicts_the_tensors_is_refused(
    name: str, value: dict[str, Any], target: Target, tmp_path: Path
) -> None:
    assert_refused(name, target, MAKERS[name](target, tmp_path, **value))


def test_an_empty_folder_is_refused_with_the_missing_file(
    method: str, target: Target, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert FILES[method] in assert_refused(method, target, tmp_path / "empty").message
    assert FILES[method] in assert_refused(method, target, tmp_path / "nowhere").message


def test_a_head_of_another_target_is_refused(method: str, target: Target, tmp_path: Path) -> None:
    for changes in ({"hidden_size": 16}, {"vocab_size": 60}):
        other = random_target(layers=4, **changes)
        folder = MAKERS[method](other, tmp_path / str(changes))
        if method not in ("eagle3", "peagle") or "hidden_size" in changes:
            assert_refused(method, target, folder)


def test_without_a_checkpoint_the_error_says_how_to_name_one(target: Target) -> None:
    for name in HEADS:
        with error_with(UserError, "no checkpoint", hint=f"{name}:weights="):
            build_in(None, name, target)


def test_an_unknown_hydra_architecture_is_refused_by_name(target: Target, tmp_path: Path) -> None:
    folder = hydra(target, tmp_path)
    for change_, word in (
        ({"hydra_head_arch": "eagle-attn"}, "eagle-attn"),
        ({"grounded_heads": False}, "ungrounded"),
        ({"hidden_state_offset": 1}, "earlier hidden state"),
    ):
        (folder / "config.json").write_text(json.dumps({"hydra_head_arch": "mlp", **change_}))
        assert word in assert_refused("hydra", target, folder).message


def test_a_target_with_too_few_layers_for_the_formula_is_refused(
    target: Target, tmp_path: Path
) -> None:
    folder = MAKERS["eagle3"](target, tmp_path, **{IDS: None})
    assert IDS in assert_refused("eagle3", target, folder).message
