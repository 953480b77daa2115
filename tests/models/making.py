"""Small cards, tokenizers and checkpoint folders for the tests of this room."""

import json
import struct
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from specbench.errors import CheckpointError
from specbench.models.checkpoints import check_checkpoint

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 16,
    "dtype": "float16",
}


def make_tokenizer(
    extra: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    *,
    adds_bos: bool = True,
    adds_eos: bool = False,
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: <unk> <s> </s>, the 256 bytes, `words`, then `extra` specials."""
    tokens = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = ("<s> " if adds_bos else "") + "$A" + (" </s>" if adds_eos else "")
    special = [("<s>", 1), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=special
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    if extra:
        made.add_special_tokens({"additional_special_tokens": list(extra)})
    made.chat_template = chat_template
    return made


def write_safetensors(path: Path, num_values: int = 8, dtype: str = "F16") -> Path:
    """A valid file with one flat tensor; only the header is ever looked at."""
    size = {"F16": 2, "F32": 4, "I64": 8}[dtype]
    entry = {"dtype": dtype, "shape": [num_values], "data_offsets": [0, num_values * size]}
    header = json.dumps({"w": entry, "__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(num_values * size))
    return path


def make_checkpoint(folder: Path, **config: object) -> Path:
    """A folder with config, one safetensors file and a tokenizer file, as far as files can tell."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors")
    return folder


def refusal(folder: Path, *, needs_tokenizer: bool = True) -> str:
    """The message about a checkpoint folder that is refused."""
    with pytest.raises(CheckpointError) as caught:
        check_checkpoint(folder, what="Model mine", needs_tokenizer=needs_tokenizer)
    assert caught.value.message.startswith("Model mine: ")
    assert caught.value.hint
    return caught.value.message


def write_jsonl(path: Path, rows: list[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


CARD = """
name = "haiku"
title = "Haiku"
description = "Three lines."
"""


def drop_card(root: Path, text: str = CARD, name: str = "haiku") -> Path:
    """A card below `root`, which a test puts on the package's search path."""
    path = root / "datasets" / "cards" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
