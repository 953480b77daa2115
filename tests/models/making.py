"""Small cards, tokenizers and checkpoint folders for the tests in this folder."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 16,
    "dtype": "float16",
}


def write_safetensors(path: Path, num_values: int = 8, dtype: str = "F16") -> Path:
    """Write a valid file with one flat tensor. Only its header is ever read."""
    size = {"F16": 2, "F32": 4, "I64": 8}[dtype]
    entry = {"dtype": dtype, "shape": [num_values], "data_offsets": [0, num_values * size]}
    header = json.dumps({"w": entry, "__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(num_values * size))
    return path


def make_checkpoint(folder: Path, **config: object) -> Path:
    """Write a folder that looks like a checkpoint: a config, a safetensors file and a tokenizer
    file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors")
    return folder


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
"""A chat template that writes each message after its role."""
CARD = """
name = "haiku"
title = "Haiku"
description = "Three lines."
"""


def drop_card(root: Path, text: str = CARD, name: str = "haiku") -> Path:
    """Write a card below `root`, which the test puts on the package's search path."""
    path = root / "datasets" / "cards" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
