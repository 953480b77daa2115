"""The target over trees, with the model families that use the fused layers.

Tree decoding on each model class equals `generate`, or is refused with the reason.
"""

import json
import logging as python_logging
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.utils import logging

from specbench.engine import load, model_parts, supported
from specbench.engine import target as target_module
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.execution import Execution
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.layers.torch_attention import attention_kinds
from specbench.engine.load import load_target
from specbench.engine.model_parts import decoder, decoder_layers, with_first_layers
from specbench.engine.probe import replay_fault, tree_fault
from specbench.engine.supported import TESTED
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import CheckpointError, UserError
from specbench.measure.local import engine_setup
from specbench.types import Request
from tests.support.architectures import FULL, LIMITED, SMALL, WINDOW, config_of, random_of
from tests.support.checkpoint import change_config
from tests.support.fake_cuda import CheckedGraphs
from tests.support.models import generated, random_llama, random_target, save
from tests.support.recorders import rerun
from tests.support.tracing import TraceRecorder

GROUPED = {**SMALL, "num_hidden_layers": 3, "num_key_value_heads": 2}
WINDOWED = {"sliding_window": 6, "head_dim": 16}
GEMMA = {**GROUPED, **WINDOWED, "query_pre_attn_scalar": 24}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
}
YARN = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 32,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 16, "mlp_only_layers": [1]}
_of = AutoConfig.for_model
ARCHITECTURES = {
    "llama": _of("llama", **GROUPED),
    "llama, wide heads": _of("llama", **GROUPED, head_dim=24),
    "qwen2": _of("qwen2", **GROUPED),
    "qwen3": _of("qwen3", **GROUPED, head_dim=24),
    "qwen3 moe": _of("qwen3_moe", **GROUPED, **EXPERTS, num_experts=6, norm_topk_prob=False),
    "mixtral": _of("mixtral", **GROUPED, num_local_experts=4),
    "mistral": _of("mistral", **GROUPED, sliding_window=None),
    "mistral, window": _of("mistral", **GROUPED, sliding_window=6),
    "qwen3, windows": _of(
        "qwen3", **GROUPED, **WINDOWED, use_sliding_window=True, layer_types=MIXED
    ),
    "gemma2": _of("gemma2", **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
    "gemma3": _of("gemma3_text", **GEMMA, layer_types=MIXED, rope_parameters=ROPES),
    "gemma3, images": config_of("gemma3", text_config={**GEMMA, "model_type": "gemma3_text"}),
    "gpt-oss": _of(
        "gpt_oss", **GROUPED, **WINDOWED, num_local_experts=4, num_experts_per_tok=2,
        layer_types=MIXED, rope_parameters=YARN,
    ),
}  # fmt: skip


def random_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(ARCHITECTURES[name])).double().eval()
    model.config._experts_implementation = "eager"  # the other implementations take no float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(4)
            else:
                parameter.add_(torch.rand_like(parameter) - 0.5)  # norms and biases
    return model


class Oracle(Drafter):
    """A drafter that knows the answer. It adds wrong siblings, so every step commits a branch."""

    def __init__(self, answer: list[int], depth: int = 3) -> None:
        self.answer, self.depth = answer, depth

    def propose(self, state: State) -> DraftTree:
        done = len(state.token_ids) - len(state.request.prompt_ids)
        tokens, parents, parent = [state.pending], [0], 0
        for token in self.answer[done : done + self.depth]:
            tokens += [(token + 1) % 50, token, (token + 2) % 50]
            parents += [parent] * 3
            parent = len(tokens) - 2
        layout = TreeLayout.from_parents(parents, "cpu")
        return DraftTree(torch.tensor(tokens), layout, len(tokens))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tree_decoding_gives_the_tokens_of_generate(name: str) -> None:
    model = random_model(name)
    prompt = (1, 7, 8, 9, 10, 11)
    answer = generated(model, prompt, 40)
    target = Target(model)
    assert target.unfused_reason is None
    done = decode(target, Oracle(answer), Request(prompt, 40))
    assert list(done.token_ids) == answer
    assert done.accept_lengths == (4,) * 9 + (3,)


@torch.inference_mode()
def test_committed_paths_leave_the_cache_of_a_plain_forward() -> None:
    target, plain = random_target(), random_target()
    target.prefill((1, 5, 6), num_new=4)
    layout = TreeLayout.from_parents([0, 0, 0, 2, 3], "cpu")
    for _ in range(100):  # far beyond the reserved capacity
        target.forward(DraftTree(torch.tensor([7, 11, 8, 9, 12]), layout, 5))
        target.commit([0, 2, 3])
    plain.prefill((1, 5, 6, *(7, 8, 9) * 100))
    assert target.cache.length == plain.cache.length == 303
    for layer, plain_layer in zip(target.cache.layers, plain.cache.layers, strict=True):
        torch.testing.assert_close(layer.keys[:, :, :303], plain_layer.keys[:, :, :303])
        torch.testing.assert_close(layer.values[:, :, :303], plain_layer.values[:, :, :303])


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_number_of_layers_names_the_last_layers_output(name: str) -> None:
    """Llama runs in the engine's stack, Qwen3 may run transformers' own forward."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(ARCHITECTURES[name])).double().eval()
    last_outputs: list[Any] = []
    model.model.norm.register_forward_pre_hook(
        lambda _, args: last_outputs.append(args[0][0].clone())
    )
    model(torch.tensor([[1, 5, 6, 7, 8]]))
    target = Target(model)
    with target.capture(Needs(layer_inputs=(1, 3), all_prompt_positions=True)):
        last_input = target.prefill((1, 5, 6, 7)).layer_inputs[3]
        # Up to float32 rounding, which transformers' norms have in float64 models too.
        torch.testing.assert_close(last_input, last_outputs[0][:4], rtol=1e-5, atol=1e-6)
        tree = target.forward(DraftTree.chain(torch.tensor([8])))
        torch.testing.assert_close(tree.layer_inputs[3], last_outputs[0][4:])


@torch.inference_mode()
def test_extending_and_cropping_equals_prefilling() -> None:
    target = random_target()
    target.extend(torch.tensor([1, 5, 6]))
    target.extend(torch.tensor([9, 9]))
    target.crop(3)
    extended = target.extend(torch.tensor([7, 8]))
    torch.testing.assert_close(extended, target.prefill((1, 5, 6, 7, 8)).logits[0])


@pytest.mark.parametrize(
    ("tensors", "config", "fault"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, {},
         r"lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        ({"lm_head.weight": torch.zeros(49, 32)}, {}, r"lm_head\.weight"),
        ({}, {"num_hidden_layers": 1}, r"no place for: model\.layers\.1\..* and 6 more"),
    ],
    ids=["lacking", "misshapen", "of a deeper model"],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused_by_name(
    tensors: dict[str, Tensor | None],
    config: dict[str, int],
    fault: str,
    tmp_path: Path,
    transformers_warnings: list[str],
) -> None:
    folder = save(random_llama(layers=2), tmp_path)
    changed = {**load_file(folder / "model.safetensors"), **tensors}
    kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, **config)
    with pytest.raises(CheckpointError, match=fault):
        load_in(folder)
    assert transformers_warnings == []
    logging.get_logger("transformers").warning("after")
    assert transformers_warnings == ["after"]  # the level is restored


@pytest.fixture
def transformers_warnings() -> Iterator[list[str]]:
    """The messages that transformers logs, at its default level."""
    messages: list[str] = []
    handler = python_logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    verbosity = logging.get_verbosity()
    logging.set_verbosity_warning()
    logging.add_handler(handler)
    yield messages
    logging.remove_handler(handler)
    logging.set_verbosity(verbosity)


def test_a_damaged_pickle_is_refused_and_its_code_is_not_executed(tmp_path: Path) -> None:
    folder = save(random_llama(layers=1), tmp_path)
    (folder / "model.safetensors").unlink()
    ran = tmp_path / "ran"
    (folder / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(ran).encode() + b"'\ntR."
    )
    with pytest.raises(CheckpointError, match="does not load as a causal language model"):
        load_in(folder)
    assert not ran.exists()


@pytest.mark.parametrize(("prompt", "budget"), [((1,) * 512, 5), ((), 5), ((1, 5), 0)])
def test_a_request_that_cannot_be_completed_is_refused(
    prompt: tuple[int, ...], budget: int
) -> None:
    with pytest.raises(UserError, match=r"context|budget"):
        decode(random_target(), Oracle([]), Request(prompt, budget))


PROMPT = (1, 7, 8, 9, 10, 11)
EAGER = {"falcon", "phimoe"}
"""Model types whose code copies from the host, which fails in a capture on a GPU."""
NEEDS = Needs(hidden=True, layer_inputs=(0, 2), all_prompt_positions=True)


@pytest.mark.parametrize("model_type", [*FULL, *LIMITED])
def test_a_tree_has_the_tokens_of_generate_and_the_logits_and_states_of_plain_forwards(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees run step by step and, if the model runs its own forward, replayed as a graph.

    Heads read the inputs of layers, and the final hidden states that give the logits.
    """
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {model_type}")
    monkeypatch.setattr("specbench.engine.buckets.BUCKET", 16)
    model = random_of(config_of(model_type))
    answer = generated(model, PROMPT, 24)
    target, replaying = Target(model), Graphs(TraceRecorder())
    for decoding in (target, Target(model, replaying))[: 2 if target.unfused_reason else 1]:
        done = decode(decoding, Oracle(answer), Request(PROMPT, 24))
        assert list(done.token_ids) == answer
        assert done.accept_lengths == (4,) * 5 + (3,)
    if target.unfused_reason:
        assert decoding.eager_reason is None and replay_fault(decoding) is None
        assert replaying.failures == set() and replaying.num_recordings > 2
    assert tree_fault(target) is None
    with target.capture(NEEDS), torch.inference_mode():
        forward = target.prefill(PROMPT)
        plain = decoder(model)(torch.tensor([PROMPT]), use_cache=False).last_hidden_state[0]
    assert forward.hidden is not None and set(forward.layer_inputs) == {0, 2}
    torch.testing.assert_close(forward.hidden, plain, rtol=1e-3, atol=1e-3)
    width = model.config.get_text_config().hidden_size
    assert forward.layer_inputs[2].shape == (len(PROMPT), width)
    assert len(decoder_layers(with_first_layers(model, 1))) == 1
    if model_type in LIMITED:
        kinds = target._stack._kinds if target._stack else target._kinds
        kinds.update(dict.fromkeys(kinds))
        assert "differ from those of a plain forward" in str(tree_fault(target))
    if target.unfused_reason:
        checked = CheckedGraphs(rerun)
        decode(Target(model.to(torch.bfloat16), checked), Oracle([]), Request(PROMPT, 4))
        assert checked.num_checked >= 1
        assert bool(checked.refused) == (model_type in EAGER), checked.refused


def test_every_class_listed_as_tested_is_tested_here() -> None:
    configs = [config_of(name) for name in (*FULL, *LIMITED) if name in CONFIG_MAPPING]
    classes = {AutoModelForCausalLM._model_mapping[type(config)].__name__ for config in configs}
    assert classes <= TESTED
    assert classes == TESTED or len(configs) < len(FULL) + len(LIMITED)  # an older transformers


def test_a_window_as_long_as_the_context_limits_nothing() -> None:
    model = random_of(config_of("mistral", sliding_window=128))
    assert Target(model).unfused_reason is None
    assert attention_kinds(model.config) == {"sliding_attention": None}


ORIGINAL = "original_max_position_embeddings"
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
LOCAL = {"attention_types": [[["global", "local"], 1]], "num_layers": 2}
LOCAL |= {"vocab_size": 50, "hidden_size": 32, "num_heads": 4, "window_size": WINDOW}
ALIBI = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_the_context_of_llama_4_ends_before_its_queries_are_scaled() -> None:
    config = config_of("llama4_text", max_position_embeddings=2**20, floor_scale=1124)
    assert Target(random_of(config)).context == 100
    assert Target(random_of(config_of("llama4_text"))).context == 128


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("phi3", {"rope_scaling": {"type": "longrope", **FACTORS}, ORIGINAL: 64}),
        ("llama", {"rope_parameters": {"rope_type": "longrope", **FACTORS, ORIGINAL: 64}}),
    ],
)
def test_the_context_of_a_longrope_ends_where_its_frequencies_change(
    model_type: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    fields = config_of(model_type).to_dict() | {"rope_parameters": None} | fields
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert model_parts.context_length(AutoConfig.from_pretrained(tmp_path)) == 64
    assert engine_setup.context_length(tmp_path, "a model") == 64


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
    monkeypatch.setattr(supported, "TESTED", frozenset())
    with pytest.raises(CheckpointError, match=fault):
        load_in(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_untested_class_is_probed_once_and_starts_with_an_empty_cache(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(random_of(config_of("olmo3")), tmp_path)
    probe = Mock(wraps=tree_fault)
    monkeypatch.setattr(supported, "tree_fault", probe)
    assert load_in(folder, dtype) and not probe.called
    monkeypatch.setattr(supported, "TESTED", frozenset())
    assert load_in(folder, dtype).cache.length == 0
    assert probe.call_count == 1
    monkeypatch.setattr(target_module, "windowed", lambda mask, *_: mask[None, None])
    with pytest.raises(CheckpointError, match="Olmo3ForCausalLM, which cannot run over a tree"):
        load_in(folder, dtype)


def load_in(
    folder: Path, dtype: torch.dtype = torch.float32, execution: Execution | None = None
) -> Target:
    return load_target(folder, dtype=dtype, device=torch.device("cpu"), execution=execution)
