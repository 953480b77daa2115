"""Bytes of weights read by a pass over a model.

Knows tensors and modules, not time or bandwidth. Rows of an embedding table and buffers such as
rotary tables are negligible and not counted.
"""

from collections.abc import Iterator

from torch import Tensor, nn
from transformers import PreTrainedModel


def weight_bytes(*holders: nn.Module | Tensor) -> int:
    """Bytes of these tensors and modules' stored tensors; shared memory counts once.

    Quantised weights count as they are stored, with their scales.
    """
    tensors = {}
    for holder in holders:
        held = [holder] if isinstance(holder, Tensor) else holder.state_dict().values()
        for tensor in (part for one in held for part in _stored(one)):
            tensors[tensor.data_ptr()] = tensor.nbytes
    return sum(tensors.values())


def _stored(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors in memory that a tensor consists of: several, if it is torchao's."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, Tensor):
            yield from _stored(part)


def pass_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights read by one forward of a language model, without the input embedding.

    An embedding that is also the output head is read completely, and counted.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    is_tied = table.data_ptr() == head.data_ptr()
    return weight_bytes(model) - (0 if is_tied else weight_bytes(table))
