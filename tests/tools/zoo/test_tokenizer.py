"""The tokenizer of the tiny models, as transformers loads it."""

import random

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench.zoo import TINY
from tools.zoo.text import sample
from tools.zoo.tokenizer import (
    ASSISTANT_ID,
    BOS_ID,
    EOS_ID,
    USER_ID,
    VOCAB_SIZE,
    encode_dialogue,
    train_tokenizer,
)

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
