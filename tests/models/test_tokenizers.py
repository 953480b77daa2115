import json
from pathlib import Path

import pytest

from specbench.errors import CheckpointError
from specbench.models.tokenizers import eos_ids, load_tokenizer, vocab_size
from tests.models.making import make_tokenizer


def test_eos_tokens_come_from_tokenizer_config_and_generation_config(tmp_path: Path) -> None:
    make_tokenizer(extra=("<|eot_id|>",)).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    tokenizer = load_tokenizer(tmp_path)
    turn_end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert eos_ids(tmp_path, tokenizer) == {9, 2, turn_end}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert eos_ids(tmp_path, tokenizer) == {5, 6, 2, turn_end}
    for wrong in (2**63, -1):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, wrong]}))
        with pytest.raises(CheckpointError, match=f"eos_token_id {wrong} is not a token"):
            eos_ids(tmp_path, tokenizer)


def test_the_vocabulary_is_the_models_where_that_is_larger(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    size = len(tokenizer)
    assert vocab_size(tmp_path, tokenizer) == size
    for config, expected in (
        ({"vocab_size": size + 7}, size + 7),
        ({"vocab_size": 3, "text_config": {"vocab_size": size + 9}}, size + 9),
        ({"vocab_size": None}, size),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert vocab_size(tmp_path, tokenizer) == expected


def test_a_tokenizer_that_is_broken_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer in .* cannot be loaded"):
        load_tokenizer(tmp_path)


def test_a_sentencepiece_tokenizer_names_the_package_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"model")
    monkeypatch.setattr("specbench.models.tokenizers._is_installed", lambda name: "google" in name)
    with pytest.raises(CheckpointError, match="needs sentencepiece") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.hint == "`pip install sentencepiece`"
