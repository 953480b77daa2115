"""Wrong head files give one clear error, and nothing in them is executed."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.errors import CheckpointError, UserError
from specbench.registry import get
from tests.methods.building import HEADS, build_in
from tests.methods.checkpoints import MAKERS, Tensors, hydra
from tests.support.models import random_target

FILES = {
    "medusa": "medusa_lm_head.pt",
    "hydra": "hydra_lm_head.pt",
    "eagle": "pytorch_model.bin",
    "eagle3": "pytorch_model.bin",
    "peagle": "pytorch_model.bin",
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


def change(path: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = torch.load(path, weights_only=True)
    edit(tensors)
    torch.save(tensors, path)


def assert_refused(method: str, target: Target, folder: Path) -> CheckpointError:
    """Check that the folder is refused by its name with a hint; returns the error."""
    with pytest.raises(CheckpointError) as caught:
        build_in(folder, method, target)
    assert caught.value.hint
    assert str(folder) in caught.value.message
    return caught.value


def test_a_missing_tensor_is_named(method: str, target: Target, folder: Path) -> None:
    change(folder / FILES[method], lambda tensors: tensors.pop(ONE_KEY[method]))
    message = assert_refused(method, target, folder).message
    assert f"lacks {ONE_KEY[method]}" in message or f"tensors: {ONE_KEY[method]}" in message


def test_an_extra_tensor_is_named(method: str, target: Target, folder: Path) -> None:
    change(folder / FILES[method], lambda t: t.update({"layers.1.stray.weight": torch.zeros(2)}))
    assert "tensors: layers.1.stray.weight" in assert_refused(method, target, folder).message


def test_a_misshapen_tensor_is_named_with_both_shapes(
    method: str, target: Target, folder: Path
) -> None:
    key = ONE_KEY[method]
    change(folder / FILES[method], lambda t: t.update({key: t[key][..., 1:].clone()}))
    message = assert_refused(method, target, folder).message
    assert f"{key} of shape [" in message
    assert "not [" in message


def test_something_else_than_tensors_is_refused(method: str, target: Target, folder: Path) -> None:
    for content in ([1, 2], {"a": {"b": torch.zeros(1)}}, {"a": 1.0}, torch.zeros(2)):
        torch.save(content, folder / FILES[method])
        assert_refused(method, target, folder)


def test_a_damaged_file_is_refused(method: str, target: Target, folder: Path) -> None:
    path = folder / FILES[method]
    content = path.read_bytes()
    for damaged in (
        b"", b"\x80", b"no checkpoint", content[:100], content[: len(content) // 2],
        content[:-1], content[:200] + bytes(200) + content[400:], pickle.dumps({"a": 1}),
    ):  # fmt: skip
        path.write_bytes(damaged)
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
@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_broken_config_is_refused(
    name: str, content: str, target: Target, tmp_path: Path
) -> None:
    folder = MAKERS[name](target, tmp_path)
    (folder / "config.json").write_text(content)
    assert "config" in assert_refused(name, target, folder).message
    (folder / "config.json").unlink()
    assert "config.json" in assert_refused(name, target, folder).message


@pytest.mark.parametrize("value", [{"num_attention_heads": 3}, {"num_attention_heads": "four"},
    {"num_key_value_heads": 4}, {"hidden_size": 64}, {"intermediate_size": 12},
    {"rope_scaling": {"type": "nonsense"}}, {"hidden_act": "nonsense"}])  # fmt: skip
@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_config_that_contradicts_the_tensors_is_refused(
    name: str, value: dict[str, Any], target: Target, tmp_path: Path
) -> None:
    folder = MAKERS[name](target, tmp_path, **value)
    assert_refused(name, target, folder)


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
    from specbench.engine.drafter import BuildContext

    for name in HEADS:
        method = get(name)
        with pytest.raises(UserError, match="no checkpoint") as caught:
            method.build(method.options(), BuildContext(target))
        assert f"{name}:weights=" in caught.value.hint


def test_an_unknown_hydra_architecture_is_refused_by_name(target: Target, tmp_path: Path) -> None:
    folder = hydra(target, tmp_path)
    for change_, word in (
        ({"hydra_head_arch": "eagle-attn"}, "eagle-attn"),
        ({"grounded_heads": False}, "ungrounded"),
        ({"hidden_state_offset": 1}, "earlier hidden state"),
    ):
        (folder / "config.json").write_text(json.dumps({"hydra_head_arch": "mlp", **change_}))
        assert word in assert_refused("hydra", target, folder).message


@pytest.mark.parametrize("offsets", [-1, 1000, "repeated"])
def test_a_vocabulary_map_beyond_the_vocabulary_is_refused(
    offsets: int | str, target: Target, tmp_path: Path
) -> None:
    folder = MAKERS["eagle3"](target, tmp_path)

    def edit(tensors: Tensors) -> None:
        size = tensors["d2t"].shape[0]
        tensors["d2t"] = (
            -torch.arange(size) if offsets == "repeated" else torch.full((size,), int(offsets))
        )

    change(folder / FILES["eagle3"], edit)
    assert "d2t" in assert_refused("eagle3", target, folder).message


def test_the_inverse_vocabulary_map_has_a_shape_too(target: Target, tmp_path: Path) -> None:
    folder = MAKERS["eagle3"](target, tmp_path)
    change(folder / FILES["eagle3"], lambda tensors: tensors.update(t2d=torch.zeros(3)))
    assert "t2d of shape [3]" in assert_refused("eagle3", target, folder).message
    change(folder / FILES["eagle3"], lambda tensors: tensors.pop("t2d"))
    assert isinstance(build_in(folder, "eagle3", target), Drafter)


@pytest.mark.parametrize("layers", [[1, 1, 2], [0, 1, 5], [-1, 0, 1], "all", None])
def test_layers_that_the_target_does_not_have_are_refused(
    layers: Any, target: Target, tmp_path: Path
) -> None:
    """None: the formula names layer 2 twice on a target with four."""
    key = "eagle_aux_hidden_state_layer_ids"
    folder = MAKERS["eagle3"](target, tmp_path, **{key: layers})
    assert key in assert_refused("eagle3", target, folder).message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"logit_scale": 0.5}, "logit_scale 0.5"),
        ({"eagle_config": {"parallel_draft_step": 2}}, "eagle_config.parallel_draft_step 2"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state False"),
        ({"eagle_config": {"new_field": 1}}, "eagle_config.new_field"),
        ({"eagle_config": [1]}, "eagle_config is not a JSON object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary"),
        ({"layer_types": ["sliding_attention"]}, "layer_types ['sliding_attention']"),
    ],
)
@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_field_that_asks_for_other_arithmetic_is_refused_by_name(
    name: str, fields: dict[str, Any], named: str, target: Target, tmp_path: Path
) -> None:
    folder = MAKERS[name](target, tmp_path, **fields)
    assert named in assert_refused(name, target, folder).message


@pytest.mark.parametrize("switch", ["fc_norm", "norm_before_fc", "norm_output"])
def test_eagle_refuses_the_switches_of_eagle3(switch: str, target: Target, tmp_path: Path) -> None:
    written: list[dict[str, Any]] = [{switch: True}, {"eagle_config": {switch: True}}]
    for number, fields in enumerate(written):
        folder = MAKERS["eagle"](target, tmp_path / str(number), **fields)
        assert f"{switch} True" in assert_refused("eagle", target, folder).message


def test_fields_that_ask_for_what_is_computed_are_accepted(target: Target, tmp_path: Path) -> None:
    fields = {"use_last_layernorm": True, "use_mtp_layernorm": False, "parallel_draft_step": 1}
    folder = MAKERS["eagle3"](target, tmp_path, norm_output=False, eagle_config=fields)
    assert isinstance(build_in(folder, "eagle3", target), Drafter)


def test_constants_of_old_files_are_accepted(target: Target, tmp_path: Path) -> None:
    folder = MAKERS["eagle"](target, tmp_path)
    constant = {"layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    change(folder / FILES["eagle"], lambda tensors: tensors.update(constant))
    assert isinstance(build_in(folder, "eagle", target), Drafter)
