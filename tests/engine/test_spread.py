"""A target whose layers are spread over two GPUs, and models made from a source of tensors.

Tensors on the GPUs have only shapes and devices.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.engine import spread
from specbench.engine.load import load_target, without_weights
from specbench.engine.spread import Spread, device_map
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree
from specbench.errors import CheckpointError
from tests.support.architectures import config_of, random_of
from tests.support.fake_cuda import fake_gpus
from tests.support.models import random_llama

GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))
NUM_LAYERS = 4


class Empty:
    """The weights of a small Llama, of which only the shapes matter."""

    name = "empty"
    config: Mapping[str, Any] = config_of("llama", num_hidden_layers=NUM_LAYERS).to_dict()

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        model = without_weights(AutoConfig.for_model(**self.config), dtype)
        for name, parameter in model.named_parameters():
            yield name, torch.empty(parameter.shape, dtype=dtype, device=device)


@pytest.fixture
def target() -> Iterator[Target]:
    with fake_gpus(GPUS, free_bytes=10**9):
        yield load_target(Empty(), dtype=torch.float32, device=GPUS[0], spread=Spread(GPUS))


def numbers(devices: Any) -> list[int]:
    return [device.index for device in devices]


def test_only_layers_and_their_cache_are_spread(target: Target) -> None:
    model = target.model
    layers = [next(layer.parameters()).device for layer in target.layers]
    assert numbers(layers) == [0, 0, 1, 1]
    assert numbers(target.cache.shape(layer).device for layer in range(NUM_LAYERS)) == [0, 0, 1, 1]
    shared = (model.get_input_embeddings(), model.get_output_embeddings(), model.model.norm)
    assert {module.weight.device for module in shared} == {GPUS[0]}
    assert target.device == GPUS[0]
    assert target.devices == GPUS
    assert target.eager_reason == "the model is spread over several devices"


def test_a_drafter_gets_all_that_it_needs_on_the_first_gpu(target: Target) -> None:
    needs = Needs(hidden=True, layer_inputs=(1, 3, NUM_LAYERS))
    with target.capture(needs):
        for forward in (
            target.prefill([1, 2, 3], 5),
            target.forward(DraftTree.chain(torch.tensor([5, 6], device=GPUS[0]))),
        ):
            assert forward.hidden is not None
            tensors = (forward.logits, forward.hidden, *forward.layer_inputs.values())
            assert numbers(tensor.device for tensor in tensors) == [0] * 5
    target.commit([1])  # the path does not begin the chain, so both GPUs copy rows


def test_the_first_layers_run_without_the_others(target: Target) -> None:
    part = target.first_layers(3)
    with part.capture(Needs(hidden=True)):
        assert part.prefill([1, 2, 3]).logits.device == GPUS[0]
    ran: list[int] = []
    for index, layer in enumerate(target.layers):
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
    part.prefill([1, 2, 3])
    assert ran == [0, 1, 2]


@pytest.mark.parametrize(
    ("rooms", "layers"),
    [
        ([1, 3], [0, 1, 1, 1]),
        ([3, 1], [0, 0, 0, 1]),
        ([-5, 1], [1, 1, 1, 1]),  # drafters and head fill the first GPU
        ([1, 1, 2], [0, 1, 2, 2]),
    ],
)
def test_layers_are_placed_by_the_room_of_each_gpu(rooms: list[float], layers: list[int]) -> None:
    model = random_of(config_of("llama", num_hidden_layers=NUM_LAYERS))
    devices = [torch.device("cuda", number) for number in range(len(rooms))]
    placed = device_map(model, devices, rooms)
    assert [placed[f"model.layers.{layer}"].index for layer in range(NUM_LAYERS)] == layers
    others = {name: device.index for name, device in placed.items() if "layers" not in name}
    assert others == {"model.embed_tokens": 0, "model.norm": 0, "model.rotary_emb": 0, "lm_head": 0}


@torch.inference_mode()
def test_a_folder_is_read_onto_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU stands for both GPUs, and the model runs its own forward."""
    random_of(config_of("glm4", num_hidden_layers=NUM_LAYERS)).save_pretrained(tmp_path)
    cpu = torch.device("cpu")
    sent = []

    def send(inputs: Any, device: torch.device, **_: Any) -> Any:
        sent.append(inputs)
        return inputs

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9))
    monkeypatch.setattr(spread, "send_to_device", send)
    plain = load_target(tmp_path, dtype=torch.float32, device=cpu)
    assert not sent
    both = load_target(tmp_path, dtype=torch.float32, device=cpu, spread=Spread((cpu, cpu)))
    expected = plain.prefill([1, 2, 3])
    sent.clear()
    assert torch.equal(both.prefill([1, 2, 3]).logits, expected.logits)
    assert len(sent) == 2 * (NUM_LAYERS + 4)  # positional and keyword arguments of each module


def test_a_folder_is_given_to_transformers_with_the_device_of_each_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_of(config_of("llama", num_hidden_layers=NUM_LAYERS)).save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9))
    given: list[dict[str, torch.device]] = []

    def from_pretrained(path: Path, *, device_map: dict[str, torch.device], **_: Any) -> None:
        given.append(device_map)
        raise CheckpointError("no GPU here")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    for placement in (None, Spread(GPUS)):
        with pytest.raises(CheckpointError, match="no GPU here"):
            load_target(tmp_path, dtype=torch.float32, device=GPUS[0], spread=placement)
    alone, both = given
    assert alone == {"": GPUS[0]}
    assert [both[f"model.layers.{layer}"].index for layer in range(NUM_LAYERS)] == [0, 0, 1, 1]


@dataclass
class Source:
    """A source with a model's config and tensors."""

    config: Mapping[str, Any]
    state: dict[str, Tensor]
    name: str = "a test's source"

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.state.items():
            yield name, tensor.to(device, dtype)


def source() -> Source:
    model = random_llama(layers=2)
    return Source(model.config.to_dict(), dict(model.named_parameters()))


def loaded(source: Source) -> Target:
    return load_target(source, dtype=torch.float64, device=torch.device("cpu"))


def test_a_missing_and_a_misshapen_tensor_are_named() -> None:
    lacking, misshapen = source(), source()
    del lacking.state["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"a test's source lacks model\.norm\.weight"):
        loaded(lacking)
    misshapen.state["lm_head.weight"] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match=r"gives lm_head\.weight \[3, 3\]"):
        loaded(misshapen)
