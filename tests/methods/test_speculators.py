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

from tests.methods.head_layouts import LAYOUTS, make_head, write_layout
from tests.methods.test_head_layouts import drafted, layer_ids, target, target_states
from tests.support.models import prompts

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


def their_model(folder: Path, tensors: dict[str, torch.Tensor]) -> Any:
    """The package's own model with these weights, in float64; writes its config to the folder."""
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    fields = {**json.loads((folder / "config.json").read_text()), "speculators_config": VERIFIER}
    config = Eagle3SpeculatorConfig(**fields)
    config.save_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config)
    embedding = target().model.get_input_embeddings().weight
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
    model = their_model(folder, tensors)
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
