"""Tree decoding on each model class: equal to `generate`, or refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from specbench.engine import load
from specbench.engine import target as target_module
from specbench.engine.decode import decode
from specbench.engine.graphs import cuda as graphs
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.layers.torch_attention import attention_kinds, windowed
from specbench.engine.load import load_target
from specbench.engine.model_parts import decoder, decoder_layers, with_first_layers
from specbench.engine.probe import TESTED, replay_fault, tree_fault
from specbench.engine.target import Needs, Target
from specbench.errors import CheckpointError
from specbench.types import Request
from tests.engine.test_target import Oracle
from tests.support.architectures import FULL, LIMITED, WINDOW, config_of, random_of
from tests.support.models import generated, save
from tests.support.tracing import TraceRecorder

PROMPT = (1, 7, 8, 9, 10, 11)


def known(model_type: str) -> Any:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {model_type}")
    return config_of(model_type)


@pytest.mark.parametrize("model_type", [*FULL, *LIMITED])
def test_a_tree_has_the_tokens_of_generate_and_the_logits_of_plain_forwards(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step and, where the model runs its own forward, replayed as a graph."""
    monkeypatch.setattr(graphs, "BUCKET", 16)
    model = random_of(known(model_type))
    answer = generated(model, PROMPT, 24)
    target, replaying = Target(model), Graphs(TraceRecorder())
    for one in (target, Target(model, replaying))[: 2 if target.unfused_reason else 1]:
        done = decode(one, Oracle(answer), Request(PROMPT, 24))
        assert list(done.token_ids) == answer
        assert done.accept_lengths == (4,) * 5 + (3,)
    if target.unfused_reason:
        assert one.eager_reason is None and replay_fault(one) is None
        assert replaying.failures == set() and replaying.num_recordings > 2
    assert tree_fault(target) is None
    if model_type in LIMITED:
        target._kinds.update(dict.fromkeys(target._kinds))
        assert "differ from those of a plain forward" in str(tree_fault(target))


NEEDS = Needs(hidden=True, layer_inputs=(0, 2), all_prompt_positions=True)


@pytest.mark.parametrize("model_type", [*FULL, *LIMITED])
@torch.inference_mode()
def test_what_heads_read_of_a_model_is_what_its_layers_compute(model_type: str) -> None:
    """The final hidden states, which the head turns into logits, and the layers' inputs."""
    model = random_of(known(model_type))
    target = Target(model)
    with target.capture(NEEDS):
        forward = target.prefill(PROMPT)
    plain = decoder(model)(torch.tensor([PROMPT]), use_cache=False).last_hidden_state[0]
    assert forward.hidden is not None and set(forward.layer_inputs) == {0, 2}
    torch.testing.assert_close(forward.hidden, plain, rtol=1e-3, atol=1e-3)
    assert forward.layer_inputs[2].shape == (
        len(PROMPT),
        model.config.get_text_config().hidden_size,
    )
    assert len(decoder_layers(with_first_layers(model, 1))) == 1


def test_the_tested_classes_are_those_of_these_tests() -> None:
    configs = [config_of(name) for name in (*FULL, *LIMITED) if name in CONFIG_MAPPING]
    classes = {AutoModelForCausalLM._model_mapping[type(config)].__name__ for config in configs}
    assert classes <= TESTED
    assert classes == TESTED or len(configs) < len(FULL) + len(LIMITED)  # an older transformers


@torch.inference_mode()
def test_a_window_counts_from_a_nodes_position_and_not_from_its_row() -> None:
    mask = torch.zeros(3, 7)  # four tokens before three nodes at positions 4, 5 and 5
    positions = torch.tensor([4, 5, 5])
    kinds = {"sliding_attention": 3, "chunked_attention": 5}
    masks = windowed(mask, positions, torch.tensor(4), kinds)
    assert isinstance(masks, dict)
    sliding, chunked = ((masks[kind][0, 0] == 0).tolist() for kind in masks)
    assert sliding == [[0, 0, 1, 1, 1, 1, 1], *[[0, 0, 0, 1, 1, 1, 1]] * 2]
    assert chunked == [[1, 1, 1, 1, 1, 0, 0], *[[0, 0, 0, 0, 0, 1, 1]] * 2]


def test_a_window_as_long_as_the_context_limits_nothing() -> None:
    model = random_of(config_of("mistral", sliding_window=128))
    assert Target(model).unfused_reason is None
    assert attention_kinds(model.config) == {"sliding_attention": None}


LOCAL = {"attention_types": [[["global", "local"], 1]], "num_layers": 2}
LOCAL |= {"vocab_size": 50, "hidden_size": 32, "num_heads": 4, "window_size": WINDOW}
ALIBI = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_the_context_of_llama_4_ends_before_its_queries_are_scaled() -> None:
    config = config_of("llama4_text", max_position_embeddings=2**20, floor_scale=1124)
    assert Target(random_of(config)).context == 100
    assert Target(random_of(config_of("llama4_text"))).context == 128


@pytest.mark.parametrize(
    ("model_type", "values", "reason"),
    [
        ("gpt_neo", LOCAL, "local attention, whose window counts rows"),
        ("falcon", {**ALIBI, "alibi": True}, "alibi, which counts rows"),
        ("t5", {}, "encoder-decoder"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "bidirectional"),
        ("qwen3_next", {}, "linear_attention, whose state cannot forget"),
        ("mistral", {"sliding_window": -1}, "a window of -1 tokens"),
    ],
)
def test_attention_that_a_tree_cannot_use_is_refused_with_the_reason(
    model_type: str, values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config_of(model_type, **values).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"is a {model_type} model with {reason}"):
        load_in(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "values", "reason"),
    [
        ("bloom", {"n_layer": 1, "n_head": 4}, "takes no position ids"),
        ("rwkv", {"num_hidden_layers": 2, "attention_hidden_size": 32}, "recurrent state"),
    ],
)
def test_a_model_without_positions_or_with_a_recurrent_state_is_refused(
    model_type: str, values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = config_of(model_type, vocab_size=50, hidden_size=32, **values)
    with pytest.raises(CheckpointError, match=f"is a {model_type} model, which .*{reason}"):
        load_in(save(random_of(config), tmp_path))


@pytest.mark.parametrize(
    ("model_type", "values", "fault"),
    [
        ("gpt_neo", LOCAL, "differ from those of a plain forward by"),
        ("falcon", {**ALIBI, "alibi": True}, "it fails over a tree: "),
    ],
)
def test_the_probe_finds_differences_that_no_config_field_shows(
    model_type: str, values: dict[str, Any], fault: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(load, "check_attention", lambda *_: None)
    folder = save(random_of(config_of(model_type, **values)), tmp_path)
    if model_type == "falcon":
        monkeypatch.setattr(load, "TESTED", TESTED - {"FalconForCausalLM"})
    with pytest.raises(CheckpointError, match=fault):
        load_in(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_untested_class_is_probed_once_and_starts_with_an_empty_cache(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(random_of(config_of("olmo3")), tmp_path)
    probed: list[Target] = []

    def probe(model: Target) -> str | None:
        probed.append(model)
        return tree_fault(model)

    monkeypatch.setattr(load, "tree_fault", probe)
    assert load_in(folder, dtype) and not probed
    monkeypatch.setattr(load, "TESTED", frozenset())
    assert load_in(folder, dtype).cache.length == 0
    assert len(probed) == 1
    monkeypatch.setattr(target_module, "windowed", lambda mask, *_: mask[None, None])
    with pytest.raises(CheckpointError, match="Olmo3ForCausalLM, which cannot run over a tree"):
        load_in(folder, dtype)


def load_in(folder: Path, dtype: torch.dtype = torch.float32) -> Target:
    return load_target(folder, dtype=dtype, device=torch.device("cpu"))
