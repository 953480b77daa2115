"""Ends of answers: the tokens that checkpoints list, and those that templates write."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from specbench.models.cards import find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.tokenizers import end_tokens, load_tokenizer
from tests.support.checkpoint import make_tokenizer

EXTRA = ("<|stop|>", "<|done|>", "<|done|>!", "<|role|>")
START = "{% for m in messages %}<|role|>{{ m.role }}:{{ m.content }}"
END = "{% endfor %}{% if add_generation_prompt %}<|role|>assistant:{% endif %}"
LAST_IS_OTHER = "{{ '<|done|>' if loop.last and m.role == 'assistant' else '<|stop|>' }}"


def folder_with(path: Path, jinja: str, **generation: Any) -> Path:
    make_tokenizer(extra=EXTRA, chat_template=jinja).save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 11}))
    if generation:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def codec_with(path: Path, jinja: str) -> ChatCodec:
    return load_codec(folder_with(path, jinja), find_model(str(path)), "auto")


def token_id(codec: ChatCodec, token: str) -> int:
    return int(codec.tokenizer.convert_tokens_to_ids(token))


@pytest.mark.parametrize(
    ("written", "token"),
    [
        ("<|stop|>", "<|stop|>"),
        (" <|stop|>\n", "<|stop|>"),
        ("\n<|stop|><|role|>", "<|stop|>"),
        ("<|done|>!", "<|done|>!"),
        (LAST_IS_OTHER, "<|done|>"),
        ("\n", None),
        ("\n\nEND", None),
        ("{{ raise_exception('no answer') if m.role == 'assistant' }}<|stop|>", None),
    ],
)
def test_the_special_token_after_a_last_answer_is_an_end(
    written: str, token: str | None, tmp_path: Path
) -> None:
    codec = codec_with(tmp_path, START + written + END)
    expected = set() if token is None else {token_id(codec, token)}
    assert codec.eos_ids == {2, 11} | expected
    assert codec.end_id == (token_id(codec, token) if token else 2)
    ends = {"config.json": (11,), "tokenizer": (2,)}
    assert codec.describe().ends == ends | ({"chat template": tuple(expected)} if token else {})


def test_without_a_template_there_is_no_end_of_a_turn(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, START + "<|stop|>" + END)
    assert load_codec(folder, find_model(str(folder)), "none").eos_ids == {2, 11}


@pytest.mark.parametrize(
    ("generation", "ids"),
    [
        ({"eos_token_id": "7"}, {7}),
        ({"eos_token_id": ["7", 8]}, {7, 8}),
        ({"eos_token_id": [[7], [8, [9]]]}, {7, 8, 9}),
        ({"eos_token_id": [None, 7]}, {7}),
        ({"eos_token_id": None}, {11}),
        ({"eos_token_id": []}, {11}),
        ({"bos_token_id": 1}, {11}),
        ({"eos_token_id": [True, 7.5, {}]}, {11}),
    ],
)
def test_ids_are_read_in_every_form_that_checkpoints_have(
    generation: dict[str, Any], ids: set[int], tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, START, **generation)
    assert {*chain(*end_tokens(folder, load_tokenizer(folder)).values())} == {2} | ids


def test_ids_of_a_language_model_within_another_are_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, START)
    config = {"model_type": "two", "text_config": {"eos_token_id": [5, "6"]}}
    (folder / "config.json").write_text(json.dumps(config))
    assert {*chain(*end_tokens(folder, load_tokenizer(folder)).values())} == {2, 5, 6}
