"""Files of the language models, and the tokenizer of the tiny models as transformers loads it."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from specbench.zoo import TINY
from tools.zoo.models import load_model, write_model
from tools.zoo.text import sample
from tools.zoo.tokenizer import (
    BOS_ID,
    EOS_ID,
    encode_dialogue,
    train_tokenizer,
)

TOKENIZER = train_tokenizer(seed=3, num_dialogues=300)


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
