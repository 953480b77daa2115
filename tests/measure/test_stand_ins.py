"""Stand-ins by name: models that have one, their sizes, and refusals.

A run records which of the target's layers a drafter read, and the layout of its checkpoint.
"""

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
from specbench.errors import MethodFault, UserError
from specbench.measure import methods, weights
from specbench.measure.local import engine
from specbench.measure.local.engine_load import broken_drafter
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.local.stand_ins import stand_in_of
from specbench.measure.spec import make_spec
from specbench.models.cards import find_model, known_models
from specbench.models.memory import num_parameters
from specbench.registry import get
from specbench.types import Request
from specbench.zoo.stand_in.plan import ARCHITECTURES
from tests.support.headers import make_header
from tests.support.methods import parse_methods
from tests.support.models import engine_backend, random_llama
from tests.support.weights import build
from tests.zoo.stand_in_shapes import write_config

LLAMAS = [
    name
    for name, card in known_models().items()
    if card.shape and card.shape.architecture in ARCHITECTURES
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
            num_numbers = stand_in.drafters[drafter.method].num_numbers
            assert num_numbers == pytest.approx(published, rel=2e-3), drafter.method
    assert ("sps" in stand_in.drafters) == (card.weights_of("sps") is not None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 8}, "8 layers, 12 are needed"),
        ({"hidden_size": 192}, "192 channels (hidden_size), 193 are needed"),
        ({"head_dim": 80}, "6 heads of 80"),
        ({"num_key_value_heads": 4}, "6 heads of 128 in 4 groups"),
        ({"model_type": "gemma2"}, "it is a gemma2 model"),
        ({"num_local_experts": 8}, "it is a llama model of 8 experts"),
        ({"model_type": "mixtral"}, "it is a mixtral model."),
        ({"hidden_size": 390, "num_attention_heads": 9}, "in 3 groups, and is 390 wide"),
        ({"hidden_size": None, "head_dim": "wide"}, "head_dim is 'wide'"),
    ],
    ids=str,
)
def test_a_shape_that_cannot_hold_tiny_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    card = find_model(str(write_config(tmp_path / "shape", **changes)))
    with pytest.raises(UserError) as refused:
        stand_in_of(card)
    assert reason in refused.value.message and refused.value.hint


def test_a_stand_in_has_its_declared_number_of_parameters(tmp_path: Path) -> None:
    stand_in = stand_in_of(find_model(str(write_config(tmp_path / "shape"))))
    target = load_target(stand_in.target, dtype=torch.bfloat16, device=torch.device("cpu"))
    parameters = list(target.model.parameters())
    assert {p.dtype for p in parameters} == {torch.bfloat16}
    assert stand_in.target.num_numbers == sum(p.numel() for p in parameters)
    method = get("eagle3")
    method.build(method.options(), BuildContext(target, stand_in.drafters["eagle3"]))


def test_the_layers_in_effect_are_recorded(
    tmp_path: Path,
) -> None:
    target = Target(random_llama(layers=8))
    drafters = {name: build(name, target, tmp_path) for name in ("vanilla", "eagle3")}
    fields = {"eagle_aux_hidden_state_layer_ids": None, "zeta": 1}
    drafters["guessed"] = build("eagle3", target, tmp_path / "+", fields)
    drafters["pld"] = broken_drafter(MethodFault("it does not import"))
    with engine_backend(target, drafters) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        info = backend.describe()
    execution, layers = info.execution, drafters["eagle3"].needs.layer_inputs
    assert layers and execution["eagle3"].layer_inputs == layers
    assert execution["vanilla"].layer_inputs == execution["pld"].layer_inputs == ()
    assert execution["guessed"].has_guessed_layers
    assert execution["eagle3"].weights_layout == "SafeAILab"
    assert execution["vanilla"].weights_layout == ""
    assert "layer_inputs" not in msgspec.to_builtins(execution["vanilla"])
    given = {"methods": {"eagle3": {"options": {"depth": 7, "layers": ""}}}}
    shown = partial(_execution, make_header(given).methods["eagle3"])
    text = "+".join(map(str, layers))
    assert shown(execution["eagle3"]) == (f"depth=7, layers={text}", "none, SafeAILab layout")
    assert shown(execution["guessed"])[0] == "depth=7, layers=2+4+5 (guessed)"
    assert shown(None) == ("depth=7", "none")
    notes = [warning for warning in info.warnings if warning.startswith("guessed: ")]
    assert notes[0].startswith("guessed: Its config has unknown fields: zeta.")
    assert notes[1].startswith("guessed: Its config names no target layers")


def test_a_card_names_the_layers_of_a_head_whose_config_is_ambiguous(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(weights, "resolve", lambda *args, **options: tmp_path)
    monkeypatch.setattr(weights, "check_checkpoint", lambda *args, **options: None)
    card = known_models()["gpt-oss-120b"]
    spec = cast(Any, SimpleNamespace(is_baseline_run=False, weights="hub", card=card))
    find = partial(weights.find_checkpoint, card, is_offline=True)
    repo = "nvidia/gpt-oss-120b-Eagle3-long-context"
    for given, layers in (("", "1+17+32"), (",layers=1+2+3", "1+2+3")):
        named = parse_methods([f"eagle3:weights={repo}{given}"])
        (method,) = methods.select_methods(spec, named, resolve_weights=find).methods
        assert method.options.layers == layers


def test_a_backend_whose_loading_failed_can_still_be_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(setup: object) -> None:
        raise UserError("The weights are damaged.")

    monkeypatch.setattr(engine, "load_engine", fail)
    backend = engine.EngineBackend(make_engine_setup(make_spec(methods=("pld",), device="cpu")))
    with pytest.raises(UserError, match="damaged"):
        backend.__enter__()
    assert backend.describe().preparation is None  # as the run's header asks for it
