"""A target whose layers are spread over two GPUs, and models made from a source of tensors.

Tensors on the GPUs have only shapes and devices.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from specbench.engine import spread
from specbench.engine.load import load_target
from specbench.engine.spread import Spread, device_map
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree
from specbench.errors import CheckpointError
from tests.support.architectures import config_of, random_of
from tests.support.devices import CPU
from tests.support.fake_cuda import fake_gpus

GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))
NUM_LAYERS = 4


def tiny_llama() -> PreTrainedModel:
    return random_of(config_of("llama", num_hidden_layers=NUM_LAYERS))


@dataclass
class Source:
    """A source with a model's config and tensors."""

    config: Mapping[str, Any]
    state: dict[str, Tensor]
    name: str = "a test's source"

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.state.items():
            yield name, tensor.to(device, dtype)


def random_source() -> Source:
    model = tiny_llama()
    return Source(model.config.to_dict(), dict(model.named_parameters()))


@pytest.fixture
def target() -> Iterator[Target]:
    with fake_gpus(GPUS, free_bytes=10**9):
        yield load_target(
            random_source(),
            dtype=torch.float32,
            device=GPUS[0],
            spread=Spread(GPUS),
        )


def indices_of(devices: Iterable[torch.device]) -> list[int]:
    return [device.index for device in devices]


def layer_indices(device_by_name: Mapping[str, torch.device]) -> list[int]:
    """The index of each layer's device."""
    names = [f"model.layers.{layer}" for layer in range(NUM_LAYERS)]
    return indices_of(device_by_name[name] for name in names)


def test_layers_and_their_cache_are_spread(target: Target) -> None:
    parameters = [next(layer.parameters()) for layer in target.layers]
    caches = [target.cache.shape(layer) for layer in range(NUM_LAYERS)]
    assert indices_of(parameter.device for parameter in parameters) == [0, 0, 1, 1]
    assert indices_of(cache.device for cache in caches) == [0, 0, 1, 1]
    assert target.devices == GPUS
    assert target.eager_reason == "the model is spread over several devices"


def test_embedding_norm_and_head_are_on_the_first_gpu(target: Target) -> None:
    model = target.model
    modules = (
        model.get_input_embeddings(),
        model.model.norm,
        model.get_output_embeddings(),
    )
    assert {module.weight.device for module in modules} == {GPUS[0]}
    assert target.device == GPUS[0]


def test_a_drafter_gets_all_that_it_needs_on_the_first_gpu(target: Target) -> None:
    needs = Needs(hidden=True, layer_inputs=(1, 3, NUM_LAYERS))
    token_ids = torch.tensor([5, 6], device=GPUS[0])
    with target.capture(needs):
        prefill = target.prefill([1, 2, 3], 5)
        forward = target.forward(DraftTree.chain(token_ids))
    for outputs in (prefill, forward):
        assert outputs.hidden is not None
        tensors = (outputs.logits, outputs.hidden, *outputs.layer_inputs.values())
        assert indices_of(tensor.device for tensor in tensors) == [0] * 5  # with three layer inputs
    target.commit([1])  # the path does not begin the chain, so both GPUs copy rows


def test_the_first_layers_run_without_the_others(target: Target) -> None:
    part = target.first_layers(3)
    with part.capture(Needs(hidden=True)):
        assert part.prefill([1, 2, 3]).logits.device == GPUS[0]
    ran: list[nn.Module] = []
    for layer in target.layers:
        layer.register_forward_hook(lambda module, *_: ran.append(module))
    part.prefill([1, 2, 3])
    assert ran == [*target.layers][:3]


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        ([1, 3], [0, 1, 1, 1]),
        ([3, 1], [0, 0, 0, 1]),
        ([-5, 1], [1, 1, 1, 1]),  # drafters and head fill the first GPU
        ([1, 1, 2], [0, 1, 2, 2]),
    ],
)
def test_layers_are_placed_by_the_free_bytes_of_each_gpu(
    free_bytes: list[float], expected: list[int]
) -> None:
    model = tiny_llama()
    devices = [torch.device("cuda", index) for index in range(len(free_bytes))]
    device_by_name = device_map(model, devices, free_bytes)
    assert layer_indices(device_by_name) == expected
    others = {name: device.index for name, device in device_by_name.items() if "layers" not in name}
    assert others == {
        "model.embed_tokens": 0,
        "model.norm": 0,
        "model.rotary_emb": 0,
        "lm_head": 0,
    }


@pytest.fixture
def equal_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All devices have the same free memory."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9))


@pytest.mark.usefixtures("equal_memory")
@torch.inference_mode()
def test_a_folder_is_read_onto_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU stands for both GPUs, and the model runs its own forward."""
    random_of(config_of("glm4", num_hidden_layers=NUM_LAYERS)).save_pretrained(tmp_path)
    send = Mock(side_effect=lambda inputs, device, **_: inputs)
    monkeypatch.setattr(spread, "send_to_device", send)
    plain = load_target(tmp_path, dtype=torch.float32, device=CPU)
    assert not send.called
    on_both = load_target(
        tmp_path,
        dtype=torch.float32,
        device=CPU,
        spread=Spread((CPU, CPU)),
    )
    expected = plain.prefill([1, 2, 3]).logits
    send.reset_mock()
    assert torch.equal(on_both.prefill([1, 2, 3]).logits, expected)
    # positional and keyword arguments of each module
    assert send.call_count == 2 * (NUM_LAYERS + 4)


@pytest.mark.usefixtures("equal_memory")
def test_a_folder_is_given_to_transformers_with_the_device_of_each_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llama().save_pretrained(tmp_path)
    device_maps: list[dict[str, torch.device]] = []

    def from_pretrained(path: Path, *, device_map: dict[str, torch.device], **_: Any) -> None:
        device_maps.append(device_map)
        raise CheckpointError("no GPU here")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    for placement in (None, Spread(GPUS)):
        with pytest.raises(CheckpointError, match="no GPU here"):
            load_target(
                tmp_path,
                dtype=torch.float32,
                device=GPUS[0],
                spread=placement,
            )
    of_one_gpu, of_two_gpus = device_maps
    assert of_one_gpu == {"": GPUS[0]}
    assert layer_indices(of_two_gpus) == [0, 0, 1, 1]


def test_a_missing_tensor_is_named() -> None:
    lacking = random_source()
    del lacking.state["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"a test's source lacks model\.norm\.weight"):
        load_target(lacking, dtype=torch.float64, device=CPU)


def test_a_misshapen_tensor_is_named_with_its_shape() -> None:
    misshapen = random_source()
    misshapen.state["lm_head.weight"] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match=r"gives lm_head\.weight \[3, 3\]"):
        load_target(misshapen, dtype=torch.float64, device=CPU)
