"""Reports on the parts that a head uses, and on maps and output layers of zeros."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.measure.local.engine_load import describe_execution
from tests.methods.building import build_in, complete
from tests.methods.checkpoints import dflash, eagle, eagle3, hydra, medusa
from tests.methods.head_layouts import make_head, speculators, write_layout
from tests.support.models import prompts, random_llama, random_target, save
from tests.training.head_models import started

Change = Callable[[dict[str, Tensor]], Any]


@pytest.fixture
def target() -> Target:
    return random_target()


def changed(folder: Path, change: Change, name: str = "pytorch_model.bin") -> Path:
    tensors = torch.load(folder / name, weights_only=True)
    change(tensors)
    torch.save(tensors, folder / name)
    return folder


def output_weight(target: Target) -> Tensor:
    weight: Tensor = target.model.get_output_embeddings().weight
    return weight.detach().clone()


def identity_maps(tensors: dict[str, Tensor], vocab_size: int) -> None:
    tensors["d2t"] = torch.zeros(vocab_size, dtype=torch.long)
    tensors["t2d"] = torch.ones(vocab_size, dtype=torch.bool)


def test_the_output_layer_that_is_used_is_reported(target: Target, tmp_path: Path) -> None:
    folder = eagle3(target, tmp_path / "own")
    assert build_in(folder, "eagle3", target).weights_facts == (
        "output layer: its own lm_head.weight",
    )
    folder = eagle3(target, tmp_path / "tied", tie_word_embeddings=True)
    (fact,) = build_in(folder, "eagle3", target).weights_facts
    assert fact == "output layer: its own lm_head.weight, although tie_word_embeddings is true"
    folder = eagle(target, tmp_path / "shared")
    assert build_in(folder, "eagle2", target).weights_facts == ("output layer: the target's",)
    folder = eagle(target, tmp_path / "rows", draft_vocab=20)
    assert build_in(folder, "eagle", target).weights_facts == (
        "output layer: 20 rows of the target's",
    )
    folder = eagle(target, tmp_path / "copied")
    changed(folder, lambda tensors: tensors.update({"lm_head.weight": output_weight(target)}))
    header = describe_execution(build_in(folder, "eagle", target), "eager", None, is_joined=False)
    assert header.weights_facts == ("output layer: its own lm_head.weight, equal to the target's",)


def test_a_head_with_maps_to_themselves_may_lack_an_output_layer(
    target: Target, tmp_path: Path
) -> None:
    """The head drafts the same as with a copy of the target's."""
    vocab_size = target.vocab_size

    def drafted(name: str, change: Change) -> list[int]:
        folder = changed(eagle3(target, tmp_path / name, draft_vocab=vocab_size), change)
        drafter = build_in(folder, "eagle3", target)
        assert ("the target's" in drafter.weights_facts[0]) and not drafter.weights_notes
        with torch.inference_mode():
            tree = drafter.propose(started(drafter, target, list(prompts()[1])))
        token_ids: list[int] = tree.tokens.tolist()
        return token_ids

    def without(tensors: dict[str, Tensor]) -> None:
        identity_maps(tensors, vocab_size)
        del tensors["lm_head.weight"]

    def copied(tensors: dict[str, Tensor]) -> None:
        identity_maps(tensors, vocab_size)
        tensors["lm_head.weight"] = output_weight(target)

    assert drafted("without", without) == drafted("copied", copied)


def test_a_map_that_was_never_filled_is_named(target: Target, tmp_path: Path) -> None:
    size = 17

    def zero_map(tensors: dict[str, Tensor]) -> None:
        tensors["d2t"] = torch.zeros(size, dtype=torch.long)
        del tensors["t2d"]

    folder = changed(eagle3(target, tmp_path / "zero", draft_vocab=size), zero_map)
    (note,) = build_in(folder, "eagle3", target).weights_notes
    assert "d2t is all zeros" in note and "tokens 0 to 16" in note
    # Zeros are right if the draft vocabulary is the first ids, or leaves out only padding.
    first = torch.arange(target.vocab_size) < size
    changed(folder, lambda tensors: tensors.update(t2d=first))
    assert build_in(folder, "eagle3", target).weights_notes == ()
    size = target.vocab_size - 2
    folder = changed(eagle3(target, tmp_path / "padding", draft_vocab=size), zero_map)
    assert build_in(folder, "eagle3", target).weights_notes == ()


@pytest.mark.parametrize(
    ("maker", "key"),
    [(eagle3, "lm_head.weight"), (medusa, "3.1.weight"), (hydra, "hydra_lm_head.2.weight")],
)
def test_an_output_layer_of_zeros_is_named(
    maker: Callable[..., Path], key: str, target: Target, tmp_path: Path
) -> None:
    folder = maker(target, tmp_path / "head")
    (file,) = (path.name for path in folder.iterdir() if path.name != "config.json")
    assert build_in(folder, maker.__name__, target).weights_notes == ()
    changed(folder, lambda tensors: tensors[key].zero_(), file)
    (note,) = build_in(folder, maker.__name__, target).weights_notes
    assert note.startswith(f"Its {key} is all zeros")


def test_a_draft_model_without_an_output_is_named(target: Target, tmp_path: Path) -> None:
    model = random_llama(layers=1, max_position_embeddings=77)
    drafter = build_in(save(model, tmp_path / "whole"), "sps", target)
    assert (drafter.weights_notes, drafter.num_positions) == ((), 77)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    (note,) = build_in(save(model, tmp_path / "zero"), "sps", target).weights_notes
    assert "output layer is all zeros" in note


@pytest.mark.parametrize("method", ["sps", "pard"])
def test_a_text_beyond_the_embedding_of_a_draft_model_is_named(
    method: str, target: Target, tmp_path: Path
) -> None:
    model = random_llama(layers=1, vocab_size=target.vocab_size - 9)
    model.config.pard_token = 3
    drafter = build_in(save(model, tmp_path), method, target)
    last_row = target.vocab_size - 10
    # Ids that the run never uses do no harm, as in published pairs with other padding.
    assert complete(target, drafter, (1, 7, last_row), max_new_tokens=3).steps
    text = f"has the token {last_row + 1}, and the draft model's embedding has the rows 0 to"
    with pytest.raises(UserError, match=text):
        complete(target, drafter, (1, 7, last_row + 1))


def test_a_rotary_embedding_that_differs_from_the_targets_is_a_fact(
    target: Target, tmp_path: Path
) -> None:
    folder = eagle3(target, tmp_path / "base", rope_theta=700.0)
    drafter = build_in(folder, "eagle3", target)
    assert drafter.weights_facts[0] == "rope_theta 700.0, the target's 10000.0"
    assert drafter.weights_notes == ()
    assert len(build_in(folder, "eagle3", target, rope_theta=10000.0).weights_facts) == 1
    scaled = {"rope_type": "linear", "factor": 2.0}
    folder = eagle(target, tmp_path / "scaled", rope_scaling=scaled)
    facts = build_in(folder, "eagle", target).weights_facts
    assert "rope_type linear, the target's default" in facts
    assert "factor 2.0, the target's None" in facts


def test_the_positions_are_those_that_a_config_states(target: Target, tmp_path: Path) -> None:
    stated = eagle3(target, tmp_path / "stated", max_position_embeddings=96)
    assert build_in(stated, "eagle3", target).num_positions == 96
    assert build_in(eagle3(target, tmp_path / "silent"), "eagle3", target).num_positions == 0
    block = dflash(target, tmp_path / "block", max_position_embeddings=64)
    assert build_in(block, "dflash", target).num_positions == 64
    larger = random_target(
        layers=7
    )  # the layers' classes have defaults, which the config does not state
    layout = speculators()
    folder = write_layout(larger, layout, make_head(larger, layout), tmp_path / "spec")
    assert build_in(folder, "eagle3", larger).num_positions == 0
    pair_head = eagle(target, tmp_path / "pair", max_position_embeddings=33)
    drafter = build_in(pair_head, "sam", target, other="eagle2")
    header = describe_execution(drafter, "eager", None, is_joined=False)
    assert (header.num_positions, header.weights_facts) == (33, ("output layer: the target's",))
