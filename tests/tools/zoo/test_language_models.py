"""Batches of generated chats, the losses of the language models, and their files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.training.batches import Batch
from tools.zoo.batches import ChatBatches, chats_in_rows, distillation_loss
from tools.zoo.models import load_model, write_model
from tools.zoo.text import stream
from tools.zoo.tokenizer import BOS_ID, EOS_ID, train_tokenizer

TOKENIZER = train_tokenizer(seed=3, num_dialogues=300)
CORE = TOKENIZER.backend_tokenizer
BATCHES = ChatBatches(
    CORE, seed=0, num_rows=2, length=256, request_weight=0.3, held_out=frozenset()
)


def test_a_batch_depends_on_the_seed_and_its_index_alone() -> None:
    first, again, other = BATCHES[3], BATCHES[3], replace(BATCHES, seed=1)[3]
    assert torch.equal(first.ids, again.ids)
    assert not torch.equal(first.ids, other.ids)
    assert not torch.equal(first.ids, BATCHES[4].ids)


def test_rows_hold_whole_chats_and_are_nearly_full() -> None:
    batch = replace(BATCHES, num_rows=4, length=512)[0]
    assert batch.num_tokens > 0.95 * batch.ids.numel()
    for ids, weights in zip(batch.ids, batch.weights, strict=True):
        starts = (ids == BOS_ID).nonzero().flatten().tolist()
        assert starts[0] == 0 and weights[starts].tolist() == [0.0] * len(starts)
        assert all(ids[start - 1] == EOS_ID for start in starts[1:])


def test_answers_have_weight_one_and_requests_less_or_none() -> None:
    dialogue = next(stream(0))
    (turn,) = dialogue.turns
    answer = TOKENIZER(turn.assistant, add_special_tokens=False).input_ids
    scored = chats_in_rows(CORE, [dialogue]).weights[0].tolist()
    num_requested = len(scored) - len(answer) - 1
    assert scored == [0.0] * num_requested + [1.0] * (len(answer) + 1)
    trained = replace(BATCHES, num_rows=1, length=1024)[0].weights[0].tolist()
    assert trained[:1] == [0.0]
    assert trained[1:num_requested] == pytest.approx([0.3] * (num_requested - 1))
    assert trained[num_requested : len(scored)] == [1.0] * (len(answer) + 1)


def test_distilling_a_model_from_itself_has_no_loss() -> None:
    logits, other = torch.randn(2, 1, 4, 8).unbind(0)
    batch = Batch(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4), 4)
    assert distillation_loss(logits, logits + 3.0, batch).abs() < 1e-6
    assert distillation_loss(other, logits, batch) > 0.01


def test_a_written_model_loads_with_its_tokenizer(tmp_path: Path) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=48,
            vocab_size=2048,
        )
    )
    write_model(model.state_dict(), model.config, TOKENIZER, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert torch.allclose(loaded.lm_head.weight, model.lm_head.weight, atol=1e-3)
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
