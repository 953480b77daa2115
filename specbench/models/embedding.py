"""Read the number of rows in a model's embedding from the headers of its weight files."""

from pathlib import Path

from specbench.models.checkpoints import config_if_readable, weight_files
from specbench.models.tensor_header import safetensors_header

_NAMES = (".embed_tokens.weight", ".embed_in.weight", ".word_embeddings.weight", ".wte.weight")
"""Name endings of input embeddings in the classes of transformers."""


def embedding_rows(folder: Path) -> int:
    """Return the number of token ids that the model can read, or 0 if it is unknown.

    Pickles have no header, so for them the config gives the number. Loading refuses an embedding
    with another number of rows.
    """
    rows: list[int] = []
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            config = config_if_readable(folder)
            return (config.get("text_config") or config).get("vocab_size") or 0
        tensors = safetensors_header(file, "The embedding")
        rows += [tensors[name]["shape"][0] for name in tensors if f".{name}".endswith(_NAMES)]
    return max(rows, default=0)  # layers that predict further tokens may have copies
