"""Bytes of weights read by a pass over a model.

Knows tensors and modules, not time or bandwidth. Rows of an embedding table and buffers such as
rotary tables are negligible and not counted.
"""

from torch import Tensor, nn
from transformers import PreTrainedModel


def weight_bytes(*holders: nn.Module | Tensor) -> int:
    """Bytes of these tensors and modules' parameters; shared memory counts once."""
    tensors = {}
    for holder in holders:
        for tensor in [holder] if isinstance(holder, Tensor) else holder.parameters():
            tensors[tensor.data_ptr()] = tensor.nbytes
    return sum(tensors.values())


def pass_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights read by one forward of a language model, without the input embedding.

    An embedding that is also the output head is read completely, and counted.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    is_tied = table.data_ptr() == head.data_ptr()
    return weight_bytes(model) - (0 if is_tied else weight_bytes(table))
