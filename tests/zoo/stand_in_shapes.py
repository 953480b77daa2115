"""Shapes for tests: deeper and twice as wide as tiny, with grouped heads of 128 and more words."""

import json
from pathlib import Path

from specbench.types import Shape

SHAPE = Shape(
    num_layers=16, hidden_size=384, intermediate_size=1024, num_heads=6, num_kv_heads=3,
    vocab_size=3000, context=4096, own_head_dim=128,
)  # fmt: skip
DRAFT = Shape(
    num_layers=2, hidden_size=128, intermediate_size=256, num_heads=4, num_kv_heads=2,
    vocab_size=2900, context=2048, own_head_dim=64,
)  # fmt: skip


def write_config(folder: Path, **changes: object) -> Path:
    """Write a folder with the config.json of SHAPE and nothing else."""
    config = {
        "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 384,
        "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 3,
        "head_dim": 128, "vocab_size": 3000, "max_position_embeddings": 4096,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: setting for name, setting in {**config, **changes}.items() if setting is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder
