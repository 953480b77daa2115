"""A head drafts the tokens that the speculators package drafts with the same files.

The package pins older transformers, so it has an environment of its own:
`pip install --no-deps speculators`, with what its import asks for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.training.files import write_head
from tests.methods.head_layouts import LAYOUTS, make_head, write_layout
from tests.methods.test_head_layouts import drafted, layer_ids, target, target_states
from tests.support.models import prompts
from tests.training.head_models import micro_model, random_head, target_outputs

speculators = pytest.importorskip(
    "speculators", reason="the speculators package is not installed (its own forward is compared)"
)
NAMES = [name for name in LAYOUTS if name.startswith("speculators")]
VERIFIER = {
    "algorithm": "eagle3",
    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
    "default_proposal_method": "greedy",
    "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
}


def their_model(
    folder: Path, tensors: dict[str, torch.Tensor], embedding: torch.Tensor, **more: Any
) -> Any:
    """The package's own model with these weights, in float64; writes its config to the folder."""
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    fields = {**json.loads((folder / "config.json").read_text()), **more}
    config = Eagle3SpeculatorConfig(**fields)
    config.save_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config)
    weights = {"embed_tokens.weight": embedding, **tensors}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(key.startswith("verifier_") for key in missing), missing
    return model.double().eval()


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_the_draft_tokens_are_those_of_speculators(name: str, tmp_path: Path) -> None:
    """Theirs trains on a whole text at once: depth d at a position reads the text's own tokens."""
    layout = LAYOUTS[name]
    tensors = make_head(target(), layout)
    folder = write_layout(target(), layout, tensors, tmp_path)
    embedding = target().model.get_input_embeddings().weight
    model = their_model(folder, tensors, embedding, speculators_config=VERIFIER)
    for prompt in map(list, prompts()):
        tokens, _ = drafted(folder, prompt)
        known, depth = len(prompt) - 1, len(tokens)
        states = torch.cat(target_states(prompt[:-1], layer_ids(layout)), -1)
        states = torch.cat([states, states.new_zeros(depth, states.shape[1])])
        text = torch.tensor([[*prompt[1:], *tokens]])
        by_depth = model(
            states[None], text, torch.zeros_like(text), ttt_steps=depth, position_ids=None
        )
        theirs = [int(ids[0, known - 1]) for ids in by_depth]
        offsets = tensors.get("d2t", torch.zeros(target().vocab_size, dtype=torch.long))
        assert tokens == [i + int(offsets[i]) for i in theirs]


@torch.no_grad()
def test_a_trained_head_is_read_by_speculators(tmp_path: Path) -> None:
    model = micro_model()
    head = random_head("eagle3", model)
    write_head(head, tmp_path, "speculators", "org/model")
    embedding = model.get_input_embeddings().weight
    theirs = their_model(tmp_path, load_file(tmp_path / "model.safetensors"), embedding)
    ids = torch.arange(3, 40)[None]
    outputs = target_outputs(head, model, ids)
    states = torch.cat([outputs.layer_inputs[i] for i in head.layer_ids], -1).double()
    text = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    (found,) = theirs(states, text, torch.zeros_like(text), ttt_steps=1)
    expected = head.draft_logits(ids, outputs)[0].argmax(-1)
    assert torch.equal(found[:, :-1], expected[:, :-1])
