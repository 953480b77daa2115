"""The files that are read are recorded. Stale, doubled and lost files are reported."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.engine.weight_files import FILES, find_weights
from specbench.errors import CheckpointError
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.spec import RunSpec
from specbench.measure.weights import declared_source
from specbench.models.cards import tiny_card
from specbench.models.checkpoints import check_checkpoint, identify
from specbench.registry import MethodChoice
from tests.methods.building import build_in
from tests.methods.checkpoints import eagle3, medusa
from tests.support.checkpoint import save_checkpoint
from tests.support.models import random_target

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    if path.suffix == ".safetensors":
        save_file({**tensors}, path, metadata={"format": "pt"})
    else:
        torch.save(dict(tensors), path)


def write_index(folder: Path, weight_map: Mapping[str, str], stem: str = WHOLE) -> None:
    (folder / f"{stem}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict(weight_map)})
    )


def shard(folder: Path, tensors: Mapping[str, Tensor], suffix: str = ".safetensors") -> list[str]:
    """Write three shards with an index in place of the whole file. Return the shards' names."""
    stem = next(name for name in FILES if name.endswith(suffix))
    (folder / stem).unlink(missing_ok=True)
    names = [f"part-{i}{suffix}" for i in range(3)]
    files = {key: names[i % 3] for i, key in enumerate(sorted(tensors))}
    for name in names:
        write(folder / name, {key: tensors[key] for key in tensors if files[key] == name})
    write_index(folder, files, stem)
    return names


def add(path: Path, **tensors: Tensor) -> None:
    """Add tensors to a file, although the index does not list them there."""
    is_safe = path.suffix == ".safetensors"
    before = load_file(path) if is_safe else torch.load(path, weights_only=True)
    write(path, before | {key.replace("__", "."): tensor for key, tensor in tensors.items()})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "model")


@pytest.fixture
def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / WHOLE)


def loaded(folder: Path) -> Target:
    check_checkpoint(folder, what="It")
    return load_target(folder, dtype=torch.float32, device=torch.device("cpu"))


def refusal(folder: Path, kind: str = "") -> str:
    with pytest.raises(CheckpointError) as caught:
        check_checkpoint(folder, what="It", needs_tokenizer=False, kind=kind)
    return caught.value.message


def test_the_file_that_is_read_is_recorded_and_reported(
    folder: Path, tensors: dict[str, Tensor]
) -> None:
    shard(folder, {key: 3 * tensor for key, tensor in tensors.items()})
    write(folder / WHOLE, tensors)
    assert torch.equal(loaded(folder).model.state_dict()[NORM], tensors[NORM])
    about = make_engine_setup(RunSpec(str(folder), device="cpu")).describe()
    assert WHOLE in about.model.files
    assert not any(name.startswith("part-") for name in about.model.files)
    assert any(f"{WHOLE} was read" in text and INDEX in text for text in about.warnings)
    # Servers of vLLM and SGLang follow the index.
    files = identify(folder, prefers_index=True).files
    assert WHOLE not in files and "part-1.safetensors" in files


def test_an_index_of_the_whole_file_and_other_formats_are_not_reported(
    folder: Path, tensors: dict[str, Tensor]
) -> None:
    write_index(folder, dict.fromkeys(tensors, WHOLE))
    write_index(folder, dict.fromkeys(tensors, "gone.bin"), "pytorch_model.bin")
    write(folder / "adapter.safetensors", {NORM: 2 * tensors[NORM]})
    write(folder / "consolidated.safetensors", {"norm.weight": tensors[NORM]})
    weights = find_weights(folder)
    assert ([path.name for path in weights.paths], weights.note) == ([WHOLE], "")
    (folder / WHOLE).rename(folder / "unnamed.safetensors")
    (folder / "pytorch_model.bin.index.json").unlink()
    (folder / INDEX).unlink()
    write(folder / "pytorch_model.bin", tensors)
    assert "pytorch_model.bin" in identify(folder).files
    assert "unnamed.safetensors" not in identify(folder).files


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_copies_of_a_tensor_are_equal_or_refused_with_both_files(
    folder: Path, tensors: dict[str, Tensor], suffix: str
) -> None:
    first, second, third = shard(folder, tensors, suffix)
    if suffix == ".bin":
        (folder / WHOLE).unlink(missing_ok=True)
    name = "model.embed_tokens.weight"
    add(folder / second, **{name: tensors[name]})
    add(folder / third, **{name: tensors[name]}, unused__bias=torch.ones(2))
    assert torch.equal(loaded(folder).model.state_dict()[name], tensors[name])
    for changed in (tensors[name].half(), tensors[name][1:], tensors[name] + 1):
        add(folder / third, **{name: changed.contiguous()})
        message = refusal(folder)
        assert f"two values of {name}" in message
        assert second in message or first in message
        assert third in message


def test_a_file_that_the_config_names_is_read_and_recorded(
    folder: Path, tensors: dict[str, Tensor]
) -> None:
    config = json.loads((folder / "config.json").read_text())

    def name_in_config(name: object) -> None:
        (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": name}))

    tripled = {key: 3 * tensor for key, tensor in tensors.items()}
    write(folder / "best.safetensors", tripled)
    name_in_config("best.safetensors")
    assert torch.equal(loaded(folder).model.state_dict()[NORM], tripled[NORM])
    files = identify(folder).files
    assert "best.safetensors" in files and WHOLE not in files
    shard(folder, tripled)
    write(folder / WHOLE, tensors)
    name_in_config(INDEX)
    assert torch.equal(loaded(folder).model.state_dict()[NORM], tripled[NORM])
    files = identify(folder).files
    assert "part-2.safetensors" in files and WHOLE not in files
    for name in ("../best.safetensors", "gone.safetensors", 3):
        name_in_config(name)
        assert f"{name!r} in config.json, not a file beside it" in refusal(folder)


def test_only_tensors_that_the_index_lists_need_a_place(
    folder: Path, tensors: dict[str, Tensor]
) -> None:
    first, *_ = shard(folder, tensors)
    add(folder / first, extra__weight=torch.ones(3))
    loaded(folder)
    files = json.loads((folder / INDEX).read_text())["weight_map"]
    write_index(folder, {**files, "extra.weight": first})
    with pytest.raises(CheckpointError, match=r"has no place for: extra\.weight"):
        loaded(folder)


def test_a_missing_tensor_is_named_with_an_unread_file_that_has_it(
    folder: Path, tensors: dict[str, Tensor]
) -> None:
    lost = "model.layers.1.mlp.up_proj.weight"
    shard(folder, {key: tensor for key, tensor in tensors.items() if key != lost})
    with pytest.raises(CheckpointError) as caught:
        loaded(folder)
    assert caught.value.message.endswith(f"lacks {lost}.")
    write(folder / "late.safetensors", {lost: tensors[lost]})
    (folder / "odd.bin").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError) as caught:
        loaded(folder)
    assert caught.value.message.endswith(f"late.safetensors, which is not read, has {lost}.")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_heads_are_read_by_the_same_rule(tmp_path: Path, suffix: str) -> None:
    target = random_target()
    folder = eagle3(target, tmp_path / "head")
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    (folder / "pytorch_model.bin").unlink()
    *_, last = shard(folder, tensors, suffix)
    add(folder / last, unused__weight=torch.ones(2), fc__weight=tensors["fc.weight"])
    check_checkpoint(folder, what="It", needs_tokenizer=False, kind="eagle3")
    build_in(folder, "eagle3", target)
    name = "midlayer.mlp.down_proj.weight"
    listed = next(folder.glob("*.index.json"))
    files = json.loads(listed.read_text())["weight_map"]
    holder = folder / files.pop(name)
    listed.write_text(json.dumps({"weight_map": files}))
    held = load_file(holder) if suffix == ".safetensors" else torch.load(holder)
    write(holder, {key: tensor for key, tensor in held.items() if key != name})
    write(folder / f"left{suffix}", {name: tensors[name]})
    with pytest.raises(CheckpointError, match=f"lacks {name}; left{suffix}, which is not read"):
        build_in(folder, "eagle3", target)
    add(folder / last, fc__weight=tensors["fc.weight"] - 1)
    assert "two values of fc.weight" in refusal(folder, "eagle3")


def test_a_head_is_recorded_by_the_names_of_its_own_files(tmp_path: Path) -> None:
    """Medusa's own file comes first; a whole model beside it is the target's."""
    target = random_target()
    folder = medusa(target, tmp_path / "head")
    write(folder / WHOLE, {"x": torch.ones(2)})
    build_in(folder, "medusa", target)
    assert [path for path in identify(folder, "medusa").files if path != "config.json"] == [
        "medusa_lm_head.pt"
    ]
    (folder / WHOLE).rename(folder / "one.safetensors")  # a plug-in may read either of them
    write(folder / "another.safetensors", {"x": torch.zeros(2)})
    check_checkpoint(folder, what="It", needs_tokenizer=False, kind="theirs")
    (folder / "medusa_lm_head.pt").write_bytes(b"PK")
    source = declared_source(tiny_card(), MethodChoice("medusa", {"weights": str(folder)}))
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt is truncated"):
        source.check_local()
