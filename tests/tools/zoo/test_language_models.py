"""Batches of generated chats, the losses of the language models, and their files.

The tokenizer of the tiny models, as transformers loads it.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from specbench.training.batches import Batch
from specbench.zoo import TINY
from tools.zoo.batches import ChatBatches, chats_in_rows, distillation_loss
from tools.zoo.models import load_model, write_model
from tools.zoo.text import sample, stream
from tools.zoo.tokenizer import (
    ASSISTANT_ID,
    BOS_ID,
    EOS_ID,
    USER_ID,
    VOCAB_SIZE,
    encode_dialogue,
    train_tokenizer,
)

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


TARGET = TINY / "target"
CHAT = [
    {"role": "user", "content": "Add 12 and 30."},
    {"role": "assistant", "content": "    return 42\n"},
    {"role": "user", "content": "Why?"},
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TARGET)


def test_training_again_gives_the_shipped_kind_of_tokenizer() -> None:
    one, two = train_tokenizer(3, 300), train_tokenizer(3, 300)
    assert one.get_vocab() == two.get_vocab()
    assert one.convert_tokens_to_ids(["<unk>", "<s>", "</s>"]) == [0, 1, 2]


def test_the_vocabulary_has_its_size_and_special_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenizer) == VOCAB_SIZE
    names = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
    assert tokenizer.convert_tokens_to_ids(names) == [0, BOS_ID, EOS_ID, USER_ID, ASSISTANT_ID]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)


def test_any_text_survives_a_round_trip(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "Größe 漢字 🙂 \t\n x == y ?"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_chat_starts_with_one_bos(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True).input_ids
    assert ids[0] == BOS_ID and ids.count(BOS_ID) == 1
    text = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert tokenizer(text, add_special_tokens=False).input_ids == ids


def test_a_chat_is_rendered_as_it_was_learned(tokenizer: PreTrainedTokenizerBase) -> None:
    dialogue = sample("mt_bench", random.Random(2))
    messages = [
        {"role": role, "content": text}
        for turn in dialogue.turns
        for role, text in (("user", turn.user), ("assistant", turn.assistant))
    ]
    ids, is_answer = encode_dialogue(tokenizer.backend_tokenizer, dialogue)
    assert tokenizer.apply_chat_template(messages).input_ids == ids
    assert len(ids) == len(is_answer) and is_answer[-1] and ids[-1] == EOS_ID
    prompt = tokenizer.apply_chat_template(messages[:3], add_generation_prompt=True).input_ids
    assert ids[: len(prompt)] == prompt and not is_answer[len(prompt) - 1]
