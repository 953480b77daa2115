"""What a pass over a model reads of memory: its weights, in bytes.

Knows tensors and modules. Knows nothing of time or bandwidth. A row read of an embedding table, and
buffers such as rotary tables, are next to nothing and not counted.
"""

from torch import Tensor, nn
from transformers import PreTrainedModel


def weight_bytes(*holders: nn.Module | Tensor) -> int:
    """Bytes of these tensors and of these modules' parameters, what is shared counted once."""
    tensors = {}
    for holder in holders:
        for tensor in [holder] if isinstance(holder, Tensor) else holder.parameters():
            tensors[tensor.data_ptr()] = tensor.nbytes
    return sum(tensors.values())


def pass_bytes(model: PreTrainedModel) -> int:
    """Bytes that one forward of a language model reads: all weights but the input embedding's.

    An embedding that serves as the output head too is read whole, and counted.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    is_tied = table.data_ptr() == head.data_ptr()
    return weight_bytes(model) - (0 if is_tied else weight_bytes(table))
