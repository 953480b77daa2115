"""A head with one change is refused by name, named in the report, or drafts as before.

The table has changes that once passed in silence, and changes that an error did not name.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.engine.target import Target
from specbench.errors import CheckpointError
from specbench.methods._head_fields import INERT
from tests.methods.building import build_in
from tests.methods.checkpoints import IDS, MAKERS, Tensors, random
from tests.methods.head_layouts import make_head, speculators, write_layout
from tests.support.checkpoint import change_config
from tests.support.models import prompts, random_target
from tests.support.refusals import error_with
from tests.training.head_models import started


class Case(NamedTuple):
    """A change to a head's config or tensors, and the expected words of the error or the note.

    If `refused` and `told` are empty, the head drafts as the unchanged one, without a note.
    """

    config: Mapping[str, Any] = {}
    refused: str = ""
    told: str = ""
    tensors: Callable[[Tensors], object] = lambda tensors: None
    method: str = "eagle3"


@cache
def target(kind: str = "llama") -> Target:
    model = random_target(layers=8)
    model.config.model_type = kind
    return model


def a_head(case: Case, folder: Path) -> Path:
    """The method's usual head in a folder, changed."""
    base: dict[str, Any] = {IDS: [1, 2, 4]} if case.method in ("eagle3", "peagle") else {}
    MAKERS[case.method](target(), folder, **base)
    path = next(file for file in folder.iterdir() if file.suffix in (".bin", ".safetensors"))
    is_pickle = path.suffix == ".bin"
    tensors = torch.load(path) if is_pickle else load_file(path)
    case.tensors(tensors)
    torch.save(tensors, path) if is_pickle else save_file(tensors, path)
    change_config(folder, **case.config)
    return folder


@torch.no_grad()
def drafted(folder: Path, method: str, **options: Any) -> tuple[list[int], Any]:
    """The tokens drafted after two prompts, and the drafter."""
    drafter = build_in(folder, method, target(), **options)
    tokens = [
        token
        for prompt in map(list, prompts()[:2])
        for token in drafter.propose(started(drafter, target(), prompt)).tokens.tolist()
    ]
    return tokens, drafter


@cache
def unchanged(method: str) -> list[int]:
    from tempfile import mkdtemp

    return drafted(a_head(Case(method=method), Path(mkdtemp()) / "head"), method)[0]


def field(name: str, content: Any, method: str = "eagle3") -> Case:
    """A case with a field that some publisher uses in its arithmetic."""
    return Case({name: content}, f"has {name} {content!r}", method=method)


def scaled(**fields: Any) -> dict[str, Any]:
    return {"rope_scaling": fields}


def put(**tensors: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda old: old.update({name.replace("__", "."): t for name, t in tensors.items()})


def as_dtype(key: str, dtype: torch.dtype) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({key: tensors[key].to(dtype)})


def filled(key: str, number: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[key].view(-1)[3:4].fill_(number)


def offsets(offset: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors["d2t"].fill_(offset)


def lacking(key: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(key)


def named(prefix: str) -> Callable[[Tensors], object]:
    def rename(tensors: Tensors) -> None:
        for key in [*tensors]:
            tensors[prefix + key] = tensors.pop(key)

    return rename


MTP = "model.layers.8."
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
NO_MAP = "d2t that is not a map to distinct ids"
ARITHMETIC = {
    f"{method}: {name}": field(name, content, method)
    for method in ("eagle", "eagle3", "peagle", "dflash")
    for name, content in {
        "rope_is_neox_style": False, "is_neox_style": False, "rope_interleave": True,
        "rotary_dim": 4, "rotary_pct": 0.5, "rope_ratio": 2.0, "no_rope_layers": [0],
        "position_embedding_type": "absolute", "scale_emb": 12, "scale_depth": 1.4,
        "dim_model_base": 256, "clip_qkv": 8.0, "norm_type": "layernorm", "attention_sink": True,
        "sliding_window_pattern": 6, "add_para_norm": True, "use_aux_norm": True,
        "target_model_type": "llama4_text", "compression_config": {}, "gist_conditioning": True,
        "shift_label": True, "use_sliding_window": True, "use_cla": True, "logit_scale": 0.5,
        "partial_rotary_factor": 0.5, "layer_types": ["sliding_attention"],
    }.items()
}  # fmt: skip


def block(**changes: Any) -> dict[str, Any]:
    """The fields of DFlash's head, some of them changed."""
    return {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1, 2], **changes}}


OF_METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "dflash": {
        "without mask_token_id": block(mask_token_id=None),
        "mask_token_id 50, but there are 50 tokens": block(mask_token_id=50),
        "target_layer_ids None": block(target_layer_ids=None),
        "[0, 1, 7] in its config, not increasing numbers from -1 to 6":
            block(target_layer_ids=[0, 1, 7]),
        "[2, 1, 0] in its config, not increasing": block(target_layer_ids=[2, 1, 0]),
        "target_layer_ids [0, '1', 2]": block(target_layer_ids=[0, "1", 2]),
        "fc.weight of shape [32, 96], not [32, 64]": block(target_layer_ids=[0, 1]),
        "for a target of 9 layers, but this target has 8": {"num_target_layers": 9},
        "block_size None": {"block_size": None},
        "block_size 1": {"block_size": 1},
        "is_causal True": {"is_causal": True},
        "sliding_attention": {"layer_types": ["full_attention", "sliding_attention"]},
        "dflash_config.use_swa True": block(use_swa=True),
        "dflash_config.gru_hidden_dim": block(gru_hidden_dim=4),
        "markov_rank 0": {"markov_rank": 0},
    },
    "peagle": {
        "a config without mask_token_id or ptd_token_id or pard_token": {"ptd_token_id": None},
        "ptd_token_id 50, but there are 50 tokens": {"ptd_token_id": 50},
        "parallel_drafting 2": {"parallel_drafting": 2},
    },
    "mtp": {f"num_nextn_predict_layers {n}, not 1": {"num_nextn_predict_layers": n}
            for n in (None, 0, 2)},
    "eagle3": {
        "lacks fc_norm.0.weight": {"fc_norm": True},
        "lacks input_norm.weight": {"norm_before_fc": True},
        "eagle_config.parallel_draft_step 2": {"eagle_config": {"parallel_draft_step": 2}},
        "use_aux_hidden_state False": {"eagle_config": {"use_aux_hidden_state": False}},
        "eagle_config.new_field": {"eagle_config": {"new_field": 1}},
        "eagle_config is not a JSON object": {"eagle_config": [1]},
        "rope_parameters.partial_rotary": {"rope_parameters": {"partial_rotary_factor": 0.5}},
    },
}  # fmt: skip
"""By method: the words of an error, and the fields that it is about."""

CASES: dict[str, Case] = {
    **ARITHMETIC,
    **{
        f"{method}: {said}": Case(fields, said, method=method)
        for method, cases in OF_METHODS.items()
        for said, fields in cases.items()
    },
    **{
        f"EAGLE with {fields}": Case(fields, f"{switch} True", method="eagle")
        for switch in ("fc_norm", "norm_before_fc", "norm_output")
        for fields in ({switch: True}, {"eagle_config": {switch: True}})
    },
    **{
        f"layers {layers}": Case({IDS: layers}, IDS)
        for layers in ([1, 1, 2], [0, 1, 9], [-1, 0, 1], "all")
    },
    **{f"d2t of {n}": Case(refused=NO_MAP, tensors=offsets(n)) for n in (-1, 1000)},
    **{
        f"{method} without {key}": Case(refused=f"lacks {key}", tensors=lacking(key), method=method)
        for method, key in (
            ("dflash", "hidden_norm.weight"), ("dflash", "layers.1.self_attn.k_norm.weight"),
            ("mtp", f"{MTP}enorm.weight"), ("mtp", f"{MTP}mlp.up_proj.weight"),
            ("peagle", "mask_hidden"),
        )
    },
    **{
        f"a mask feature of shape {shape}": Case(
            refused=f"mask_hidden of shape {shape}", method="peagle",
            tensors=put(mask_hidden=torch.zeros(shape)),
        )
        for shape in ([95], [2, 48])
    },
    "MTP's scales": Case(
        refused=f"unexpected tensors: {MTP}mlp.up_proj.weight_scale_inv", method="mtp",
        tensors=put(**{f"{MTP}mlp.up_proj.weight_scale_inv": torch.ones(1)}),
    ),
    "MTP's own embedding": Case(
        refused=f"{MTP}embed_tokens.weight that is not the target's", method="mtp",
        tensors=put(**{f"{MTP}embed_tokens.weight": torch.ones(50, 32)}),
    ),
    "MTP of another depth": Case(
        refused=f"no tensor whose name begins with {MTP}", tensors=named("old."), method="mtp"
    ),
    "EAGLE's bias": Case(
        {"bias": True}, "lacks fc.bias", tensors=lacking("fc.bias"), method="eagle"
    ),
    "a norm that is switched off": Case(
        {"fc_norm": False}, "fc_norm.0.weight, but its config does not switch fc_norm on",
        tensors=put(fc_norm__0__weight=torch.ones(32)),
    ),
    "d2t with one token for all": Case(
        refused=NO_MAP, tensors=lambda t: t["d2t"].copy_(-torch.arange(len(t["d2t"])))
    ),
    "t2d of three": Case(refused="t2d of shape [3]", tensors=put(t2d=torch.zeros(3))),
    "no t2d": Case(tensors=lacking("t2d")),
    "what is computed anyway": Case(
        {"norm_output": False, "eagle_config": {"use_last_layernorm": True,
         "use_mtp_layernorm": False, "parallel_draft_step": 1}}
    ),
    "a constant of old files": Case(
        method="eagle", tensors=put(layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4))
    ),
    "yarn's alpha": Case(scaled(**YARN, alpha=2.0), "rope_scaling.alpha"),
    "a factor without a type": Case(scaled(factor=2.0), "rope_scaling.factor 2.0 without"),
    "the activation twice": Case(
        {"hidden_activation": "gelu"}, "hidden_act 'silu', but hidden_activation 'gelu'"
    ),
    "use_qk_norm": Case({"use_qk_norm": True}, "q_norm.weight, but use_qk_norm True"),
    "qk_norm": Case({"qk_norm": True}, "q_norm.weight, but qk_norm True"),
    "eagle_fc_bias": Case({"eagle_fc_bias": True}, "fc.bias, but eagle_fc_bias True"),
    "EAGLE's vocabulary cut": Case(
        {"truncated_vocab_size": 9}, "but truncated_vocab_size 9", method="eagle"
    ),
    "EAGLE's layers": Case({IDS: [1, 2, 4]}, f"{IDS} [1, 2, 4]", method="eagle"),
    "DFlash's layers": field("target_layer_ids", [1, 2, 3]),
    "speculators' layers": field("aux_hidden_state_layer_ids", [1, 2, 3]),
    "the layers misspelt": field("aux_hidden_states_layer_ids", [1, 2, 3]),
    "DSpark": Case({"architectures": ["DSparkDraftModel"]}, "'DSparkDraftModel', not a head"),
    "unknown fields": Case(
        {"made_up_switch": True, "zeta": 0, "eta": None}, told="fields: made_up_switch, zeta."
    ),
    "DFlash's unknown field": Case({"zeta": 0}, told="unknown fields: zeta.", method="dflash"),
    "a window that nothing turns off": Case({"sliding_window": 64}, told="sliding_window"),
    "a window that is off": Case({"sliding_window": 64, "use_sliding_window": False}),
    "layers of the official config": Case({"num_hidden_layers": 40}, told="num_hidden_layers 40"),
    "no layers": Case({IDS: None}, told="no target layers, so it reads the inputs of layers [2, 4"),
    "two lists of layers": Case(
        {"eagle_config": {IDS: [1, 3, 4]}}, f"[1, 2, 4], but eagle_config.{IDS} [1, 3, 4]"
    ),
    "layers counted both ways": Case({"eagle_config": {IDS: [0, 1, 3]}}),
    "layers that are truth values": Case({IDS: [False, True, 4]}, "[False, True, 4]"),
    "the number of layers": Case(
        {"num_aux_hidden_states": 4}, "num_aux_hidden_states 4, but the number of its target"
    ),
    "mask_token_id twice": Case(
        {"mask_token_id": 4}, "mask_token_id 4, but dflash_config.mask_token_id 3", method="dflash"
    ),
    "two names of the mask": Case(
        {"mask_token_id": 7}, "mask_token_id 7, but ptd_token_id 3", method="peagle"
    ),
    "two ropes": Case(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
         **scaled(type="linear", factor=2.0)},
        "has rope_parameters {'rope_type': 'default'}, but rope_scaling",
    ),
    "one rope twice": Case({"rope_theta": 1e4, "rope_parameters":
        {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": {"type": "default"}}),
    "another vocabulary": Case({"vocab_size": 200}, "vocab_size 200, but the target's"),
    "another draft vocabulary": Case({"draft_vocab_size": 9}, "draft_vocab_size 9, but the rows"),
    "another width": Case({"target_hidden_size": 64}, "target_hidden_size 64, but the target's"),
    "the t2d of another head": Case(
        refused="t2d and a d2t that name", tensors=lambda t: t.update(t2d=t["t2d"].flip(0))
    ),
    "d2t in int32": Case(tensors=as_dtype("d2t", torch.int32)),
    "d2t in float32": Case(refused="d2t in torch.float32", tensors=as_dtype("d2t", torch.float32)),
    "int8 without scales": Case(
        refused="fc.weight in torch.int8, without scales", tensors=as_dtype("fc.weight", torch.int8)
    ),
    "fp8 without scales": Case(
        refused="fc.weight in torch.float8_e4m3fn, without scales",
        tensors=as_dtype("fc.weight", torch.float8_e4m3fn),
    ),
    "float64": Case(tensors=as_dtype("fc.weight", torch.float64)),
    "biases that are switched off": Case(
        {"qkv_bias": False}, "q_proj.bias, but qkv_bias False", method="eagle",
        tensors=lambda tensors: tensors.update(
            {f"layers.0.self_attn.{n}_proj.bias": torch.ones(32 if n == "q" else 16) for n in "qkv"}
        ),
    ),
    "NaN": Case(refused="norm.weight with NaN", tensors=filled("norm.weight", torch.nan)),
    "infinity": Case(refused="fc.weight with NaN", tensors=filled("fc.weight", torch.inf)),
    "hidden_act": Case({"hidden_act": "wibble"}, "hidden_act 'wibble'"),
    "a prefix": Case(refused="names like 'draft_model.d2t'", tensors=named("draft_model.")),
    "a known prefix": Case(tensors=named("model.")),
    "tied DFlash": Case({"tie_word_embeddings": True}, method="dflash"),
    "tied EAGLE": Case({"tie_word_embeddings": True}, method="eagle"),
    "fields without effect": Case({n: "x" for names in INERT.values() for n in names.split()
                                   if n not in ("speculators_model_type", "auto_map")}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_changed_head_is_refused_by_name_or_reported_or_drafts_as_before(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    folder = a_head(case, tmp_path / "head")
    if case.refused:
        with pytest.raises(CheckpointError) as caught:
            build_in(folder, case.method, target())
        assert case.refused in caught.value.message
        has_option = case.method == "peagle" and "a config without mask" in case.refused
        assert ("--method peagle:mask_token=ID" in caught.value.hint) == has_option
        return
    tokens, drafter = drafted(folder, case.method)
    assert bool(drafter.weights_notes) == bool(case.told)
    assert all(case.told in note for note in drafter.weights_notes)
    if IDS not in case.config or "eagle_config" in case.config:
        assert tokens == unchanged(case.method)


OTHERS = "eagle/eagle3 eagle3/eagle eagle3/eagle2 dflash/eagle3 eagle3/dflash eagle/peagle"


@pytest.mark.parametrize(("other_kind", "method"), [other.split("/") for other in OTHERS.split()])
def test_a_head_of_another_kind_is_refused_by_its_kind(
    other_kind: str, method: str, tmp_path: Path
) -> None:
    folder = a_head(Case({"architectures": None}, method=other_kind), tmp_path)
    with pytest.raises(CheckpointError, match=f"is a head of {other_kind}, not of "):
        build_in(folder, method, target())


def test_ambiguous_layers_of_gpt_oss_are_refused(tmp_path: Path) -> None:
    folder = a_head(Case({IDS: None, "eagle_config": {IDS: [1, 3, 4]}}), tmp_path)
    assert build_in(folder, "eagle3", target()).needs.layer_inputs == (2, 4, 5)
    with pytest.raises(CheckpointError, match=r"publishers disagree") as caught:
        build_in(folder, "eagle3", target("gpt_oss"))
    assert "layers=1+3+4" in caught.value.hint and "layers=2+4+5" in caught.value.hint
    chosen = build_in(folder, "eagle3", target("gpt_oss"), layers="1+3+4")
    assert chosen.needs.layer_inputs == (1, 3, 4)


def test_only_layers_that_nothing_names_are_guessed(tmp_path: Path) -> None:
    folder = a_head(Case({IDS: None}), tmp_path)
    for name, options in (("eagle3", {}), ("sam", {"other": "eagle3"})):
        drafter = build_in(folder, name, target(), **options)
        assert drafter.has_guessed_layers and drafter.weights_layout == "SafeAILab"
    chosen = build_in(folder, "eagle3", target(), layers="1+2+4")
    assert not chosen.has_guessed_layers and not chosen.weights_notes


def test_options_replace_the_rotary_base_and_the_mask_token(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 30.0}
    config: dict[str, Any] = {"rope_theta": 30.0, "rope_parameters": rope}
    other = a_head(Case(config), tmp_path / "other")
    usual = a_head(Case(), tmp_path / "usual")
    expected = drafted(other, "eagle3")[0]
    assert expected != drafted(usual, "eagle3")[0]
    assert drafted(usual, "eagle3", rope_theta=30.0)[0] == expected
    assert drafted(other, "eagle3", rope_theta=1e4)[0] == unchanged("eagle3")
    unnamed = a_head(Case({"ptd_token_id": None}, method="peagle"), tmp_path / "unnamed")
    assert drafted(unnamed, "peagle", mask_token=3)[0] == unchanged("peagle")
    with pytest.raises(CheckpointError, match="has mask_token 60, but there are"):
        build_in(unnamed, "peagle", target(), mask_token=60)


@torch.no_grad()
def test_a_copy_of_the_projection_in_an_eagle_head_is_used(tmp_path: Path) -> None:
    """vLLM's converter writes such a copy into every file."""
    weight = target().model.get_output_embeddings().weight.detach()
    same = a_head(Case(method="eagle", tensors=put(lm_head__weight=weight)), tmp_path / "same")
    tokens, drafter = drafted(same, "eagle")
    assert tokens == unchanged("eagle")
    assert drafter.model._head is target().model.get_output_embeddings()
    other = put(lm_head__weight=random(*weight.shape, seed=5))
    changed = a_head(Case(method="eagle", tensors=other), tmp_path / "other")
    assert drafted(changed, "eagle")[0] != tokens


@pytest.mark.parametrize(("layer", "changes", "message"), [
    ("llama", {"speculators_config": {"verifier": {"architectures": ["Qwen3ForCausalLM"]}}},
     "verifier of architecture 'Qwen3ForCausalLM', not 'LlamaForCausalLM'"),
    ("qwen3", {"transformer_layer_config": {"model_type": "llama"}}, "has layers.0.self_attn"),
    ("llama", {"speculators_config": {"verifier": {"architectures": ["LlamaForX"]}}}, ""),
    ("llama", {"speculators_config": {"verifier": {"architectures": 3}}}, ""),
])  # fmt: skip
def test_a_head_of_speculators_names_its_verifier_and_its_layers(
    layer: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    layout = speculators(layer)
    folder = write_layout(target(), layout, make_head(target(), layout), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for name, section in changes.items():
        config[name] = {**config.get(name, {}), **section}
    (folder / "config.json").write_text(json.dumps(config))
    if not message:
        assert build_in(folder, "eagle3", target()).weights_notes == ()
        return
    with error_with(CheckpointError, message):
        build_in(folder, "eagle3", target())


ODD: tuple[Any, ...] = ({}, {"a": [1]}, [1], [[1]], 10**30, True, "x", -1.5)


@pytest.mark.parametrize("field", [
    "rope_theta", "rope_scaling", "num_key_value_heads", "max_position_embeddings", "layer_types",
    "hidden_act", "architectures", "speculators_config", "eagle_config", IDS, "draft_vocab_size",
])  # fmt: skip
def test_a_field_of_any_type_is_refused_or_harmless(field: str, tmp_path: Path) -> None:
    for number, content in enumerate(ODD):
        folder = a_head(Case({field: content}), tmp_path / str(number))
        try:
            build_in(folder, "eagle3", target())
        except CheckpointError as error:
            assert str(folder) in error.message
