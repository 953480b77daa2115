"""The rows of a model's embedding, read from the headers of its weight files."""

from pathlib import Path

from specbench.models.checkpoints import config_if_readable, weight_files
from specbench.models.tensor_header import safetensors_header

_NAMES = (".embed_tokens.weight", ".embed_in.weight", ".word_embeddings.weight", ".wte.weight")
"""The ends of the names of input embeddings in transformers' classes."""


def embedding_rows(folder: Path) -> int:
    """The number of token ids that the model can read; 0 if unknown.

    Pickles have no header. For them the config gives the number, and loading refuses an embedding
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
