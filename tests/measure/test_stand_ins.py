"""Stand-ins by name: models that have one, their sizes, and refusals.

A run records which layers of the target a drafter read, and its checkpoint's layout.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from specbench.cli.catalog import _execution
from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.errors import CheckpointError, UserError
from specbench.log.backend import ExecutionHeader
from specbench.measure import methods
from specbench.measure.local.engine_load import broken_drafter
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.spec import RunSpec
from specbench.measure.stand_ins import stand_in_of
from specbench.models import memory
from specbench.models.cards import find_model, known_models
from specbench.models.memory import num_parameters
from specbench.registry import get
from specbench.types import Request
from specbench.zoo.stand_in.plan import ARCHITECTURES, StandIn
from tests.methods.building import build_random
from tests.support.headers import make_header
from tests.support.models import engine_backend, random_llama
from tests.support.weights import build
from tests.zoo.stand_in_shapes import write_config

LLAMAS = [
    name
    for name, card in known_models().items()
    if card.shape and card.shape.num_experts == 1 and card.shape.architecture in ARCHITECTURES
]


@pytest.mark.parametrize("name", LLAMAS)
def test_a_stand_in_has_the_size_of_the_real_model_and_its_heads(name: str) -> None:
    card = find_model(name)
    stand_in = stand_in_of(card)
    assert card.shape is not None
    assert stand_in.target.num_numbers == pytest.approx(card.shape.num_parameters, rel=1e-3)
    for drafter in card.draft_weights:
        published = num_parameters(card, drafter)
        # The embedding of sps may be its head, too. Shipped heads are smaller than published ones.
        if published and drafter.method != "sps" and not drafter.is_shipped:
            made = stand_in.drafters[drafter.method].num_numbers
            assert made == pytest.approx(published, rel=2e-3), drafter.method
    assert ("sps" in stand_in.drafters) == (card.weights_of("sps") is not None)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 8}, "8 layers, 12 are needed"),
        ({"hidden_size": 192}, "192 channels (hidden_size), 193 are needed"),
        ({"head_dim": 80}, "6 heads of 80"),
        ({"num_key_value_heads": 4}, "6 heads of 128 in 4 groups"),
        ({"model_type": "gemma2"}, "it is a gemma2 model"),
        ({"num_local_experts": 8}, "it is a llama model of 8 experts"),
        ({"hidden_size": 390, "num_attention_heads": 9}, "in 3 groups, and is 390 wide"),
        ({"hidden_size": None, "head_dim": "wide"}, "head_dim is 'wide'"),
    ],
    ids=str,
)
def test_a_shape_that_cannot_hold_tiny_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    card = find_model(str(write_config(tmp_path / "shape", **changes)))
    assert reason in refusal(lambda: stand_in_of(card))


def test_too_little_memory_is_reported_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 8 * 10**9)
    spec = RunSpec("vicuna-13b", ("eagle2",), device="cpu", dtype="bfloat16", weights="stand-in")
    message = refusal(lambda: make_engine_setup(spec))
    assert "The stand-in of vicuna-13b does not fit" in message
    assert "29.5 GB in bfloat16" in message and "8.0 GB free" in message


def built(folder: Path, dtype: torch.dtype) -> tuple[Target, StandIn]:
    stand_in = stand_in_of(find_model(str(write_config(folder))))
    return load_target(stand_in.target, dtype=dtype, device=torch.device("cpu")), stand_in


def test_a_stand_in_has_its_declared_number_of_parameters(tmp_path: Path) -> None:
    target, stand_in = built(tmp_path / "shape", torch.bfloat16)
    parameters = list(target.model.parameters())
    assert {p.dtype for p in parameters} == {torch.bfloat16}
    assert stand_in.target.num_numbers == sum(p.numel() for p in parameters)
    method = get("eagle3")
    method.build(method.options(), BuildContext(target, stand_in.drafters["eagle3"]))


def test_a_head_of_another_stand_in_is_refused_by_name(tmp_path: Path) -> None:
    target, _ = built(tmp_path / "shape", torch.float32)
    wide = stand_in_of(find_model(str(write_config(tmp_path / "wide", hidden_size=576))))
    hydra, context = get("hydra"), BuildContext(target, wide.drafters["hydra"])
    with pytest.raises(CheckpointError, match="checkpoint of the stand-in of wide has"):
        hydra.build(hydra.options(), context)


def test_the_layers_in_effect_are_recorded_and_shown(tmp_path: Path) -> None:
    target = Target(random_llama(layers=8))
    drafters = {name: build(name, target, tmp_path) for name in ("vanilla", "eagle3")}
    drafters["pld"] = broken_drafter("it does not import")
    with engine_backend(target, drafters) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        found = backend.describe().execution
    layers = drafters["eagle3"].needs.layer_inputs
    assert layers and found["eagle3"].layer_inputs == layers
    assert found["vanilla"].layer_inputs == found["pld"].layer_inputs == ()
    assert found["eagle3"].weights_layout == "SafeAILab"
    assert found["vanilla"].weights_layout == ""
    assert "layer_inputs" not in msgspec.to_builtins(found["vanilla"])


def test_guessed_layers_and_unknown_fields_are_recorded_shown_and_told(tmp_path: Path) -> None:
    target = Target(random_llama(layers=8))
    fields = {"eagle_aux_hidden_state_layer_ids": None, "zeta": 1}
    drafters = {"eagle3": build_random("eagle3", target, tmp_path, fields)}
    with engine_backend(target, drafters) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        info = backend.describe()
    assert info.execution["eagle3"].has_guessed_layers
    about = make_header({"methods": {"eagle3": {"options": {"layers": ""}}}}).methods
    assert _execution(about["eagle3"], info.execution["eagle3"])[0] == "layers=2+4+5 (guessed)"
    assert info.warnings[0].startswith("eagle3: Its config has fields that are not known: zeta.")
    assert info.warnings[1].startswith("eagle3: Its config names no target layers")


def test_a_card_names_the_layers_of_a_head_whose_config_is_ambiguous(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(methods, "resolve", lambda *args, **options: tmp_path)
    monkeypatch.setattr(methods, "check_checkpoint", lambda *args, **options: None)
    card = known_models()["gpt-oss-120b"]
    spec = cast(Any, SimpleNamespace(is_baseline_run=False, weights="hub"))
    find = partial(methods.find_checkpoint, card, is_offline=True)
    repo = "nvidia/gpt-oss-120b-Eagle3-long-context"
    for given, layers in (("", "1+17+32"), (",layers=1+2+3", "1+2+3")):
        named = methods.parse_methods([f"eagle3:weights={repo}{given}"])
        (one,) = methods.select_methods(spec, card, named, resolve_weights=find).methods
        assert one.options.layers == layers


def test_a_run_shows_the_layers_that_no_option_named() -> None:
    about = make_header({"methods": {"eagle3": {"options": {"depth": 7, "layers": ""}}}}).methods
    assert _execution(about["eagle3"], None) == ("depth=7", "none")
    mode = ExecutionHeader("eager", None, (2, 16, 29), "speculators")
    shown = ("depth=7, layers=2+16+29", "none, speculators layout")
    assert _execution(about["eagle3"], mode) == shown
